"""The plan of a canary: where it connects, what it writes and how often, and the bar for Forebay.

Owns the derivation of both sides from Forebay's own configuration. Must not open a socket. Invariants:
* both sides lead to the same broker, with the same credentials; only the way differs.
* secrets are read when a side is opened, and kept nowhere here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from proxy.broker_client import build_direct_endpoint, build_through_endpoint, find_local
from proxy.config.units import parse_remote_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.broker_client import Endpoint
    from proxy.config.model import Config, ListenerConfig
    from proxy.config.units import Address

SideName = Literal["through", "direct"]
SIDES: Final[tuple[SideName, SideName]] = ("through", "direct")
TOPIC = "forebay-canary-{node}"


class PlanRefused(ValueError):
    """The configuration does not say enough for a canary; the message names the flag that does."""


class LatencyBar(NamedTuple):
    """A latency through Forebay is good up to `factor` times the direct one plus `plus_s` seconds."""

    factor: float
    plus_s: float

    def holds(self, through_s: float, direct_s: float) -> bool:
        """Whether Forebay's latency is good."""
        return through_s <= self.factor * direct_s + self.plus_s


@dataclass(frozen=True, slots=True)
class Side:
    """One way to the broker. `certificate_file`, `key_file`: a client certificate, where the listener requires one."""

    name: SideName
    address: Address
    listener: ListenerConfig
    certificate_file: str | None = None
    key_file: str | None = None

    def build_endpoint(self) -> Endpoint:
        """How to connect, by the present content of the certificates' files. Raises OSError if one cannot be loaded."""
        if self.name == "direct":
            return build_direct_endpoint(self.listener, self.address)
        return build_through_endpoint(
            self.listener, self.address, self.certificate_file, self.key_file
        )


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """What a canary does. `topic` may hold `{node}`, for the broker's node id. Times are in seconds."""

    through: Side
    direct: Side
    topic: str
    every_s: float
    timeout_s: float
    bar: LatencyBar

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both, in the order of SIDES."""
        return self.through, self.direct


def derive_sides(
    config: Config,
    listener: str | None = None,
    through: str | None = None,
    direct: str | None = None,
    client_certificate: Sequence[str] = (),
) -> tuple[Side, Side]:
    """Both sides, by the listener of that name (None: the first that is no passThrough). `through`, `direct`:
    HOST:PORT to use instead of its `listen` and `upstream`. `client_certificate`: two files, certificate and key.
    Raises PlanRefused.
    """
    named = [
        one
        for one in config.listeners
        if one.name == listener or (listener is None and not one.pass_through)
    ]
    if not named:
        known = ", ".join(one.name for one in config.listeners)
        raise PlanRefused(f"--listener: there is no {listener!r}; there are {known}")
    entry = named[0]
    if entry.pass_through or entry.proxy_protocol != "none":
        key_name = "passThrough" if entry.pass_through else "proxyProtocol"
        raise PlanRefused(f"listener {entry.name} has {key_name}: name another one by --listener")
    certificate, key = client_certificate or (None, None)
    if entry.tls is not None and entry.tls.client_auth == "required" and certificate is None:
        raise PlanRefused(
            f"listener {entry.name} requires client certificates: name --client-certificate CERTIFICATE KEY"
        )
    ahead = _parse("--through", through) or _find_local(entry.listen)
    past = _parse("--direct", direct) or entry.upstream
    return Side("through", ahead, entry, certificate, key), Side("direct", past, entry)


def _parse(flag: str, text: str | None) -> Address | None:
    try:
        return None if text is None else parse_remote_address(text)
    except ValueError as refusal:
        raise PlanRefused(f"{flag}: {text!r} {refusal}") from None


def _find_local(listen: Address) -> Address:
    if listen.port == 0:
        raise PlanRefused(f"the listener has any free port ({listen}): name it by --through")
    return find_local(listen)
