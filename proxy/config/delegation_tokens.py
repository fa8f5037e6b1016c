"""The keys of `delegationTokens`, and the type of a listener's mapping rules.

Owns types, defaults, limits and meaning of these keys. Must not read anything.
docs/configuration.md is generated from this file.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from proxy.config.principal_rules import parse_rules
from proxy.config.section import Section
from proxy.config.units import KIB, Count, Duration


def _check_rules(text: str) -> str:
    parse_rules(text)
    return text


PrincipalRulesText = Annotated[
    str, StringConstraints(max_length=16 * KIB), AfterValidator(_check_rules)
]
"""Rules of `ssl.principal.mapping.rules` (config/principal_rules.py)."""


class DelegationTokensConfig(Section):
    """Delegation tokens (KIP-48) by which Forebay signs in as a client's principal; in memory alone."""

    limit: Count = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Principals with a token. Beyond it the one that nobody has used for longest is "
        "forgotten; if all have connections, further principals are refused.",
    )
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-256",
        description="SASL mechanism for tokens; the broker's listener must enable it.",
    )
    lifetime_s: Duration = Field(
        default=86_400.0,
        ge=2.0,
        le=31_536_000.0,
        description="Life of a token over all renewals, at most the broker's "
        "`delegation.token.max.lifetime.ms`. Then another one is created.",
    )
    keep_s: Duration = Field(
        default=300.0,
        ge=0.0,
        le=86_400.0,
        description="Time for which a token is kept without a connection of its principal. Then the "
        "broker is asked to expire it.",
    )
    check_principal: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        default="forebay-check",
        description="User for whom a token is created at the start, to see whether Forebay may. Name one of "
        "the clients' principals where Forebay's right does not reach all users.",
    )
