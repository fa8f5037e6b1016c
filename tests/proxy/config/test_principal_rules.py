"""Mapping rules: what Kafka's SslPrincipalMapper accepts, refuses and makes of a name.

Owns the cases. The expected values follow from the rules of KIP-371 and of java.util.regex; the names are of
certificates that Kafka's documentation shows.
"""

import pytest

from proxy.config.principal_rules import map_principal, parse_rules

SERVICES = r"RULE:^CN=(.*?),OU=Services.*$/$1/L"
PEOPLE = r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=App,O=Org", "CN=App,O=Org"),
        (f"{SERVICES}, DEFAULT", "CN=App,OU=Services,O=Org", "app"),
        (f"{SERVICES}, DEFAULT", "CN=App,O=Org", "CN=App,O=Org"),
        (f"{SERVICES},{PEOPLE}", "CN=Duke,OU=Dev,O=Org,C=US", "DUKE@DEV"),
        (f"{SERVICES},{PEOPLE}", "CN=App", None),
        ("", "CN=App", None),
        (" , ,, DEFAULT ,", "CN=App", "CN=App"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Last\, First,O=Org", r"Last\, First"),
        (r"RULE:CN=(.*)/user\/$1/", "CN=a", "user/a"),
        (r"RULE:CN=(.*)/\$1-$1/", "CN=a", "$1-a"),
        (r"RULE:CN=(.*)/$1$2$10/", "CN=a", "a$2a0"),
        (r"RULE:CN=(.*)/$0!/", "CN=a", "CN=a!"),
        (r"RULE:(a)|(b)/[$1$2]/", "b", "[b]"),
        (r"RULE:.*/x/", "ab", "xx"),  # String.replaceAll replaces the empty rest, too
        (r"RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "CN=xyz,O=o", "xyz"),
        (r"RULE:CN=(\w+)/$1/, RULE:CN=(.*)/other/", "CN=é", "other"),  # \w is ASCII in Java
        ("RULE:CN=part/x/", "CN=partial", None),
    ],
)
def test_first_rule_for_the_whole_name_decides(rules, name, principal):
    assert map_principal(parse_rules(rules), name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT DEFAULT",
        "RULE:CN=(.*)",
        "RULE:CN=(.*)/$1",
        "rule:CN=(.*)/$1/",
        "RULE:CN=(.*)/$1/L/U",
        "RULE:CN=(.*)/LU",
        "RULE:CN=(.*)/$1/l",
        "RULE:CN=(/$1/",
        "RULE:CN=.*/$1/",
        "RULE:CN=(.*)/$x/",
        r"RULE:\p{Alpha}/x/",
        "RULE:[a-z&&[^b]]/x/",
        "DEFAULT, nobody",
    ],
)
def test_what_kafka_or_python_cannot_use_is_refused(rules):
    with pytest.raises(ValueError, match=r"has |names "):
        parse_rules(rules)


def test_a_long_rule_is_quoted_in_part():
    with pytest.raises(ValueError) as refusal:
        parse_rules("x" * 10_000)
    assert len(str(refusal.value)) < 200
