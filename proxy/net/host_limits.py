"""Limits by address: connections that one client address has open, and how fast it opens them.

Owns the count and the token bucket of each address, of all listeners together. Must not know a socket, nor how a
connection is closed. Time is an argument, in seconds. Invariants:
* an IPv6 address counts as its /64: a host has all addresses of that network.
* an address with open connections is never forgotten; of the others at most IDLE_LIMIT are remembered, and the
  one that opened a connection longest ago is forgotten first.

Kafka's own, which see Forebay's address alone: max.connections.per.ip (SocketServer.ConnectionQuotas) and the
rate of KIP-612, after which a broker waits before it closes the connection.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from proxy.config.model import HELD_CONNECTIONS

if TYPE_CHECKING:
    from proxy.config.networks import IpAddress

IDLE_LIMIT = 10_000
"""Addresses without connections whose rate is remembered."""
BURST_S = 10.0
"""Seconds of the rate that an address may use at once, as in a broker's window (quota.window.num: 11)."""
LONGEST_DELAY_S = 1.0
"""Most seconds for which a connection above the rate is held before it is closed (a broker's quota window)."""
_V6_SHIFT = 64


class _Host:
    """Open connections of an address, and the tokens that it had at `at`, in seconds."""

    __slots__ = ("at", "connections", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.connections = 0
        self.tokens = tokens
        self.at = at


class HostLimits:
    """The counts of all addresses. `most`: connections of an address; `rate`: new ones per second. 0: no limit.
    `is_active`: there is a limit. `delayed`: connections that are held before they are closed. `len`: addresses
    that are known.
    """

    __slots__ = ("_busy", "_idle", "delayed", "is_active", "most", "rate")

    def __init__(self, most: int, rate: int) -> None:
        self.set_limits(most, rate)
        self.delayed = 0
        self._busy: dict[int, _Host] = {}
        self._idle: dict[int, _Host] = {}

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def set_limits(self, most: int, rate: int) -> None:
        """Take other limits. Connections beyond them stay."""
        self.most, self.rate = most, rate
        self.is_active = bool(most or rate)

    def has_room(self, address: IpAddress) -> bool:
        """Return True if the address may have one more connection."""
        host = self._busy.get(_key(address))
        return not self.most or host is None or host.connections < self.most

    def take_token(self, address: IpAddress, now: float) -> float:
        """Let the address open a connection now: 0.0. Above its rate: the seconds after which it may, at most
        LONGEST_DELAY_S, and nothing is taken.
        """
        if not self.rate:
            return 0.0
        key, burst = _key(address), max(1.0, self.rate * BURST_S)
        host = self._busy.get(key) or self._idle.pop(key, None) or _Host(burst, now)
        if not host.connections:
            self._remember(key, host)
        host.tokens = min(burst, host.tokens + (now - host.at) * self.rate)
        host.at = now
        if host.tokens < 1.0:
            return min(LONGEST_DELAY_S, (1.0 - host.tokens) / self.rate)
        host.tokens -= 1.0
        return 0.0

    def _remember(self, key: int, host: _Host) -> None:
        if len(self._idle) >= IDLE_LIMIT:
            del self._idle[next(iter(self._idle))]
        self._idle[key] = host

    def enter(self, address: IpAddress, now: float) -> None:
        """Count a connection of the address that is open; call `leave` when it is closed."""
        key = _key(address)
        host = self._busy.get(key)
        if host is None:
            host = self._idle.pop(key, None) or _Host(max(1.0, self.rate * BURST_S), now)
            self._busy[key] = host
        host.connections += 1

    def leave(self, address: IpAddress) -> None:
        """Undo `enter`."""
        key = _key(address)
        host = self._busy[key]
        host.connections -= 1
        if not host.connections:
            del self._busy[key]
            if self.rate:
                self._remember(key, host)

    def begin_delay(self) -> bool:
        """Hold one more connection before it is closed; call `end_delay` then. False: too many are held."""
        if self.delayed >= HELD_CONNECTIONS:
            return False
        self.delayed += 1
        return True

    def end_delay(self) -> None:
        """Undo `begin_delay`."""
        self.delayed -= 1


def _key(address: IpAddress) -> int:
    """A number that no other address has; the same for all addresses of an IPv6 /64."""
    if isinstance(address, ipaddress.IPv6Address):
        return (int(address) >> _V6_SHIFT) + (1 << 32)
    return int(address)
