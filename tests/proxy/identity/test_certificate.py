"""The user's name that a certificate gives: by its subject or an alternative name, and by the rules."""

import pytest

from proxy.config.model import ListenerTls
from proxy.identity.certificate import LONGEST_NAME, find_principal
from tests.proxy.identity.test_distinguished_name import NameOID, attribute, build


class Presented:
    """A TLS connection whose other side has shown a certificate."""

    def __init__(self, subject="app", names=()):
        self._der = build(*([attribute(NameOID.COMMON_NAME, subject)] for _ in subject[:1]))
        self._names = names

    def getpeercert(self, binary_form=False, /):
        return self._der if binary_form else {"subjectAltName": self._names}


def build_tls(**values):
    return ListenerTls(certificate_file="c", key_file="k", client_auth="required", **values)


SPIFFE = ("URI", "spiffe://org/app")


@pytest.mark.parametrize(
    ("values", "presented", "principal"),
    [
        ({}, Presented(), "CN=app"),
        ({"principal_mapping_rules": "RULE:CN=(.*)/$1/U"}, Presented(), "APP"),
        ({"principal_from": "uri"}, Presented(names=(("DNS", "a"), SPIFFE)), "spiffe://org/app"),
        ({"principal_from": "dns"}, Presented(names=(SPIFFE, ("DNS", "a"), ("DNS", "b"))), "a"),
        ({"principal_from": "email"}, Presented(names=(("email", "a@b.c"),)), "a@b.c"),
        (
            {"principal_from": "uri", "principal_mapping_rules": "RULE:spiffe:..org.(.*)/$1/"},
            Presented(names=(SPIFFE,)),
            "app",
        ),
    ],
)
def test_the_chosen_part_is_mapped(values, presented, principal):
    assert find_principal(build_tls(**values), presented) == principal


@pytest.mark.parametrize(
    ("values", "presented"),
    [
        ({"principal_mapping_rules": "RULE:CN=nobody/x/"}, Presented()),
        ({"principal_from": "uri"}, Presented(names=(("DNS", "a"),))),
        ({}, Presented(subject="")),
        ({"principal_mapping_rules": "RULE:CN=.*//"}, Presented()),
        ({"principal_from": "dns"}, Presented(names=(("DNS", "a" * (LONGEST_NAME + 1)),))),
    ],
)
def test_no_name_is_no_principal(values, presented):
    """An empty owner would be Forebay itself to the broker."""
    with pytest.raises(ValueError):
        find_principal(build_tls(**values), presented)


def test_no_certificate_is_no_principal():
    class Nothing:
        def getpeercert(self, binary_form=False, /):
            return None

    with pytest.raises(ValueError):
        find_principal(build_tls(), Nothing())
