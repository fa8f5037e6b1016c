"""Advertised address: whether the broker tells clients of a listener an address of Forebay's.

Owns the comparison, its result and its words. Must not know how an answer came here. A broker in front of which Forebay
stands must name Forebay in `advertised.listeners` of the clients' listener: otherwise clients reach Forebay by their
bootstrap address alone, and go past it after their first Metadata. Invariants:
* an address with another port than the listener's is none of ours, unless `listeners[].advertised` says so.
* an address with that port is ours if its host is one of this machine's, or is not known.
* nothing is changed or refused: the result is a warning, once for each new address and once more when the broker's
  settings are known, and a metric.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from proxy.config.units import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from proxy.config.model import ListenerConfig

log = logging.getLogger("forebay.advertised")

EVERY_S: Final = 60.0
"""Time between two answers to clients of a listener that are looked at."""
ADVERTISED, LISTENERS = "advertised.listeners", "listeners"
SETTINGS: Final = (ADVERTISED, LISTENERS)
"""The broker's settings that the words are made of, where Forebay may read them."""
PORT, HOST = "port", "host"
_ENTRY = re.compile(r"\s*([A-Za-z0-9_.-]+)://(.*):(\d+)\s*")


class ListenerPlace(Protocol):
    """A listener, as this module uses it (`proxy.net.listener.Listener`)."""

    name: str
    config: ListenerConfig
    upstream: Address
    bound: Address | None


class NamedBroker(Protocol):
    """A broker, as an answer names it (`protocol.metadata.BrokerAddress`)."""

    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Seen(NamedTuple):
    """What the broker has told clients of a listener last: its own address, or those of all where it is not known."""

    listener: ListenerPlace
    brokers: Sequence[NamedBroker]


class AdvertisedCheck:
    """The comparison for all listeners. `settings`: the broker's own of SETTINGS, as far as they are known."""

    def __init__(self, node_id: Callable[[], int], now: Callable[[], float]) -> None:
        """`node_id`: of this broker; -1 while it is not known. `now`: in seconds."""
        self._node_id, self._now = node_id, now
        self.settings: Mapping[str, str | None] = {}
        self.mismatches: dict[tuple[str, str], int] = {}
        """Answers that name an address which is none of ours, by listener and by what differs."""
        self.differs: dict[str, str] = {}
        """What differs now, by listener: PORT, HOST, or "" if the address is ours."""
        self._looked_at: dict[str, float] = {}
        self._seen: dict[str, Seen] = {}
        self._told: dict[str, str] = {}
        self._resolving: asyncio.Task[None] | None = None

    def is_due(self, listener: ListenerPlace) -> bool:
        """Whether the next answer to a client of a listener is to be looked at."""
        return self._now() - self._looked_at.get(listener.name, float("-inf")) >= EVERY_S

    def note(self, listener: ListenerPlace, brokers: Sequence[NamedBroker]) -> None:
        """Note an answer of the broker, to a client of a listener or as if to one."""
        if brokers and listener.bound is not None:
            self._looked_at[listener.name] = self._now()
            self._seen[listener.name] = Seen(listener, brokers)
            self._judge(self._seen[listener.name])

    def learn_settings(self, settings: Mapping[str, str | None]) -> None:
        """Note the broker's settings, and who it is: what was seen before is judged by them."""
        self.settings = {name: settings[name] for name in SETTINGS if name in settings}
        for seen in self._seen.values():
            self._judge(seen)

    def _judge(self, seen: Seen) -> None:
        listener, node_id = seen.listener, self._node_id()
        own = [one for one in seen.brokers if one.node_id == node_id] or seen.brokers
        addresses = [Address(one.host, one.port) for one in own]
        expected = listener.config.advertised
        if expected is not None:
            is_ours = any(
                (one.host.lower(), one.port) == (expected.host.lower(), expected.port)
                for one in addresses
            )
            differs = "" if is_ours else find_difference(addresses, expected.port)
            self._conclude(listener, differs, addresses[0])
            return
        assert listener.bound is not None
        alike = [one for one in addresses if one.port == listener.bound.port]
        if not alike:
            self._conclude(listener, PORT, addresses[0])
        elif self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(
                self._find_host(listener, alike)
            )

    async def _find_host(self, listener: ListenerPlace, alike: Sequence[Address]) -> None:
        are_elsewhere = await asyncio.to_thread(lambda: all(is_elsewhere(one) for one in alike))
        self._conclude(listener, HOST if are_elsewhere else "", alike[0])

    def _conclude(self, listener: ListenerPlace, differs: str, address: Address) -> None:
        self.differs[listener.name] = differs
        if differs:
            key = listener.name, differs
            self.mismatches[key] = self.mismatches.get(key, 0) + 1
        text = explain(listener, differs, address, self.settings) if differs else ""
        if text == self._told.get(listener.name, ""):
            return
        self._told[listener.name] = text
        fields = {"listener": listener.name, "advertised": str(address)}
        if differs:
            log.warning(text, extra=fields)
        else:
            log.info("the broker tells clients an address of Forebay's now", extra=fields)


def find_difference(addresses: Iterable[Address], port: int) -> str:
    """What no address has in common with the expected one: PORT, or HOST alone."""
    return HOST if any(one.port == port for one in addresses) else PORT


def is_elsewhere(address: Address) -> bool:
    """Whether a host is known, and none of its addresses is this machine's. Blocks: it may ask a name server."""
    try:
        found = socket.getaddrinfo(address.host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return not any(_is_local(family, place[0]) for family, _, _, _, place in found)


def _is_local(family: int, host: str | int) -> bool:
    """Only an address of this machine can be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((host, 0))
    except OSError:
        return False
    return True


def explain(
    listener: ListenerPlace, differs: str, address: Address, settings: Mapping[str, str | None]
) -> str:
    """What is wrong, and the line that mends it."""
    assert listener.bound is not None
    expected = listener.config.advertised or Address(address.host, listener.bound.port)
    if differs == HOST and listener.config.advertised is None:
        return (
            f"the broker tells clients of listener {listener.name} that it is at {address}, no address of this "
            f"machine: if something there leads to Forebay, set listeners[].advertised: {address}; else name this "
            f"machine in the broker's {ADVERTISED}"
        )
    is_broker = address.port == listener.upstream.port
    who = "the broker itself" if is_broker else "none of Forebay's addresses"
    return (
        f"the broker tells clients of listener {listener.name} that it is at {address}, {who}: they go past Forebay "
        f"after their first request. In the broker's server.properties: {build_line(address, expected, settings)}"
    )


def build_line(address: Address, expected: Address, settings: Mapping[str, str | None]) -> str:
    """The broker's setting with `expected` in place of `address`; with LISTENER for the name where that is not
    known.
    """
    entries = (settings.get(ADVERTISED) or settings.get(LISTENERS) or "").split(",")
    matches = [match for match in map(_ENTRY.fullmatch, entries) if match is not None]
    mended = []
    for match in matches:
        name, host, port = match.groups()
        is_it = int(port) == address.port and host in (address.host, "")
        mended.append(f"{name}://{expected if is_it else f'{host}:{port}'}")
    if f"{expected}" not in "".join(mended):
        return f"{ADVERTISED}=LISTENER://{expected}, and the other listeners as they are"
    return f"{ADVERTISED}={','.join(mended)}"
