"""Networks and addresses: both families, one form each, and no text is taken for what it is not."""

import pytest
from pydantic import ValidationError

from proxy.config.model import ListenerConfig
from proxy.config.networks import (
    MOST_NETWORKS,
    HostLists,
    Networks,
    parse_address,
    parse_network,
    parse_networks,
)

LISTENER = {"listen": ":9092", "upstream": "127.0.0.1:19092"}


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        (" 192.0.2.7 ", "192.0.2.7/32"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("::1", "::1/128"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::/0", "::/0"),
    ],
)
def test_a_network_has_one_form(text, network):
    assert parse_network(text) == network
    assert parse_network(network) == network


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1/8", "10.0.0.0/33", "host", "10.0.0", "1" * 100, None, 5, "fe80::1%eth0/64"],
)
def test_what_is_no_network_is_refused(text):
    with pytest.raises(ValueError, match="is not a network"):
        parse_network(text)


def test_lists_have_commas_and_a_bound():
    assert parse_networks("10.0.0.0/8,::1") == ("10.0.0.0/8", "::1/128")
    assert len(parse_networks(",".join(["10.0.0.0/8"] * MOST_NETWORKS))) == MOST_NETWORKS
    for wrong in ("", "10.0.0.0/8,", ["10.0.0.0/8"], ",".join(["::1"] * (MOST_NETWORKS + 1))):
        with pytest.raises(ValueError):
            parse_networks(wrong)


def test_configuration_has_them_as_a_text():
    entry = ListenerConfig.model_validate({**LISTENER, "allow": "10.0.0.0/8, ::1"})
    assert entry.allow == ("10.0.0.0/8", "::1/128") and entry.deny is None
    assert entry.model_dump(mode="json", by_alias=True)["allow"] == "10.0.0.0/8, ::1/128"
    with pytest.raises(ValidationError, match="is not a network"):
        ListenerConfig.model_validate({**LISTENER, "deny": "10.0.0.0/99"})


@pytest.mark.parametrize(
    ("text", "in_v4", "in_v6"),
    [
        ("10.1.2.3", True, False),
        ("::ffff:10.1.2.3", True, False),
        ("11.1.2.3", False, False),
        ("2001:db8::5", False, True),
        ("2001:db8::5%eth0", False, True),
        ("::a01:203", False, False),
        ("?", False, False),
    ],
)
def test_addresses_are_compared_in_one_form(text, in_v4, in_v6):
    address = parse_address(text)
    assert (address in Networks(["10.0.0.0/8"])) is in_v4
    assert (address in Networks(["2001:db8::/32"])) is in_v6
    assert (address in Networks(["10.0.0.0/8", "2001:db8::/32"])) is (in_v4 or in_v6)
    assert address not in Networks([])


@pytest.mark.parametrize(
    ("allow", "deny", "admitted"),
    [
        ((), (), ["10.0.0.1", "192.0.2.1", "::1", "?"]),
        (("10.0.0.0/8",), (), ["10.0.0.1"]),
        ((), ("10.0.0.0/8",), ["192.0.2.1", "::1"]),
        (("0.0.0.0/0",), ("10.0.0.0/8",), ["192.0.2.1"]),
        (("10.0.0.0/8",), ("10.0.0.0/8",), []),
        (("::/0",), (), ["::1"]),
    ],
)
def test_deny_goes_before_allow(allow, deny, admitted):
    lists = HostLists(allow, deny)
    everybody = ["10.0.0.1", "192.0.2.1", "::1", "?"]
    assert [one for one in everybody if lists.admits(parse_address(one))] == admitted
