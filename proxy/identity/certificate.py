"""Certificates of clients: the user's name that one gives.

Owns the choice of the part of a certificate, and its mapping. Must not know connections, nor
whether a certificate is trusted: the TLS handshake has verified it. Invariant: a name is not empty,
since the broker takes a token request for an empty owner as one for Forebay itself
(DelegationTokenControlManager.createDelegationToken).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from proxy.config.principal_rules import map_principal, parse_rules
from proxy.identity.distinguished_name import read_subject

if TYPE_CHECKING:
    from proxy.config.model import ListenerTls
    from proxy.config.principal_rules import PrincipalRule
    from proxy.net.services import Certificate

_KINDS: Final = {"dns": "DNS", "uri": "URI", "email": "email"}
"""Kinds of subject alternative names as `ssl` calls them, by `principalFrom`."""
_LISTENERS = 64
"""Most listeners that a configuration has."""
LONGEST_NAME = 1024


@lru_cache(_LISTENERS)
def _read_rules(text: str) -> tuple[PrincipalRule, ...]:
    return parse_rules(text)


def find_principal(tls: ListenerTls, presented: Certificate) -> str:
    """The user's name that the certificate gives by `principalFrom` and `principalMappingRules`, as
    a broker's listener would find it (DefaultKafkaPrincipalBuilder). Raises ValueError if the
    certificate gives none.
    """
    if tls.principal_from == "subject":
        name = read_subject(presented.getpeercert(True) or b"")
    else:
        name = _find_alternative(presented.getpeercert() or {}, _KINDS[tls.principal_from])
    principal = map_principal(_read_rules(tls.principal_mapping_rules), name)
    if principal is None:
        raise ValueError(f"no rule of tls.principalMappingRules matches {name!r}")
    if not 0 < len(principal) <= LONGEST_NAME:
        raise ValueError(f"{name!r} gives a name of {len(principal)} characters")
    return principal


def _find_alternative(fields: dict[str, Any], kind: str) -> str:
    names = [value for one, value in fields.get("subjectAltName", ()) if one == kind]
    if not names:
        raise ValueError(f"no subject alternative name of the kind {kind}")
    return str(names[0])
