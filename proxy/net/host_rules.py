"""Host rules of a listener: which addresses may connect, how often, and whose word an address is.

Owns the judgement of a connection by its address, and which connections are counted for whom. Must not know
what is read from a connection but the PROXY header. Invariants:
* an address is believed from a PROXY header only if the header comes from `trustedProxies`.
* a connection is judged once, before its TLS handshake where there is one; the number of connections of its
  address is compared again when it is made, since handshakes of one address run side by side.
* what a proxy opens for itself (a check of health) is not judged and not counted.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from proxy.config.networks import HostLists, Networks, parse_address
from proxy.net.proxy_protocol import BadProxyHeader, read_header
from proxy.net.tls_handshakes import TIMEOUT_S, RefusedClient

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Hashable

    from proxy.config.model import ListenerConfig
    from proxy.config.networks import IpAddress
    from proxy.net.host_limits import HostLimits
    from proxy.net.proxy_protocol import ProxiedPeer

DENIED, TOO_MANY, TOO_FAST = "denied_address", "connections_per_address", "connection_rate"
NO_HEADER, UNTRUSTED = "proxy_header", "untrusted_proxy"
"""Causes of refusals, as `forebay_disconnects_total` has them."""


class HostVerdict(NamedTuple):
    """`cause` "": the connection may be made. `delay_s`: how long it is held before it is closed."""

    cause: str = ""
    delay_s: float = 0.0


ADMITTED = HostVerdict()


class HostRules:
    """The rules of one listener."""

    __slots__ = ("_counted", "_has_lists", "_limits", "_lists", "_now", "_proxies", "is_proxied")

    def __init__(
        self, config: ListenerConfig, limits: HostLimits, now: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._now = now
        self._counted: dict[Hashable, IpAddress] = {}
        self.is_proxied = config.proxy_protocol == "v2"
        self.set_lists(config)

    def set_lists(self, config: ListenerConfig) -> None:
        """Take other lists, for the connections that are made from now on."""
        self._lists = HostLists(config.allow or (), config.deny or ())
        self._has_lists = bool(self._lists)
        self._proxies = Networks(config.trusted_proxies or ())

    @property
    def is_active(self) -> bool:
        """Whether an address can be refused."""
        return self._has_lists or self._limits.is_active

    def judge(self, address: IpAddress | None) -> HostVerdict:
        """Judge one more connection of an address; None: it cannot be read. Takes a token of its rate."""
        if not self._lists.admits(address):
            return HostVerdict(DENIED)
        if address is None:
            return ADMITTED
        if not self._limits.has_room(address):
            return HostVerdict(TOO_MANY)
        delay_s = self._limits.take_token(address, self._now())
        return HostVerdict(TOO_FAST, delay_s) if delay_s else ADMITTED

    # -- connections that are made -------------------------------------------------------------------------

    def enter(self, link: Hashable, address: IpAddress | None) -> bool:
        """Count a connection that was judged. Return False if its address has too many by now."""
        if address is None or not self._limits.is_active:
            return True
        if not self._limits.has_room(address):
            return False
        if link not in self._counted:
            self._counted[link] = address
            self._limits.enter(address, self._now())
        return True

    def count(self, link: Hashable, host: str) -> None:
        """Count a connection from before the limits."""
        address = parse_address(host)
        if address is not None and link not in self._counted and self._limits.is_active:
            self._counted[link] = address
            self._limits.enter(address, self._now())

    def leave(self, link: Hashable) -> None:
        """Undo `enter`, if it has counted the connection, which is closed."""
        address = self._counted.pop(link, None) if self._counted else None
        if address is not None:
            self._limits.leave(address)

    def hold(self, delay_s: float, end: Callable[[], object]) -> None:
        """Run `end`, which closes a connection, after a delay, so that its client does not come back at once.
        At the limit of held connections it runs now.
        """
        if not delay_s or not self._limits.begin_delay():
            end()
            return
        asyncio.get_running_loop().call_later(delay_s, self._end_hold, end)

    def _end_hold(self, end: Callable[[], object]) -> None:
        self._limits.end_delay()
        end()

    # -- before TLS ----------------------------------------------------------------------------------------

    async def meet(self, client: socket.socket) -> ProxiedPeer | None:
        """Judge a connection before its handshake, by its header if the listener wants one, which is read.
        Returns what a header says, or None. Raises RefusedClient; a client above its rate is held then.
        """
        address = find_peer(client)
        peer = None
        if self.is_proxied:
            if address not in self._proxies:
                raise RefusedClient(UNTRUSTED, f"{address} is in no network of trustedProxies")
            peer = await _read_header(client)
            if peer.is_local:
                return peer
            address = peer.address
        verdict = self.judge(address) if self.is_active else ADMITTED
        if verdict.cause:
            held = client.dup() if verdict.delay_s else client
            self.hold(verdict.delay_s, held.close)
            raise RefusedClient(verdict.cause, f"{address}")
        return peer


def find_peer(client: socket.socket) -> IpAddress | None:
    """The address of a connected client; None if it is gone, or has none."""
    try:
        return parse_address(client.getpeername()[0])
    except OSError:
        return None


async def _read_header(client: socket.socket) -> ProxiedPeer:
    """The header of a connection that has just been accepted. Raises RefusedClient."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await read_header(partial(loop.sock_recv, client))
    except (BadProxyHeader, TimeoutError, OSError) as error:
        raise RefusedClient(NO_HEADER, str(error) or "no header in time") from error
