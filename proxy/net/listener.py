"""Listener: a client-facing socket and the one broker behind it. [socket]

Owns accepting, TLS on both sides and the list of client connections. Must not know the clients'
requests, nor who has bound the socket (proxy/sockets.py). Invariants: a connection above
`limits.maxConnections` is closed at once and counted; after `stop` nothing is accepted.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from proxy.config.networks import parse_address
from proxy.net.broker_connection import Dial
from proxy.net.client_connection import ClientConnection
from proxy.net.host_rules import ADMITTED, TOO_MANY, HostRules, HostVerdict, find_peer
from proxy.net.services import Kept, Services
from proxy.net.tls_handshakes import RefusedClient, TlsServer
from proxy.sockets import BACKLOG, end_vanished, find_address
from proxy.tls_context import build_client_context, build_server_context, naming_files

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from proxy.config.model import Limits, ListenerConfig
    from proxy.config.networks import IpAddress
    from proxy.config.units import Address
    from proxy.net.proxy_protocol import ProxiedPeer
    from proxy.net.tls_handshakes import Made

log = logging.getLogger("forebay.listener")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """What connections are made by: how the broker is reached, and the TLS settings toward clients (None: plain
    text).
    """

    config: ListenerConfig
    dial: Dial
    catch_up_dial: Dial | None
    server_context: ssl.SSLContext | None


class Listener(Generic[Services, Kept]):
    """The running part of one entry of `listeners` in the configuration."""

    def __init__(
        self,
        broker: Services,
        config: ListenerConfig,
        dispatch: Callable[[ClientConnection[Services, Kept]], Kept],
    ) -> None:
        """`dispatch` makes the handlers of a connection's requests. Raises OSError (ssl.SSLError
        included) if a file of `upstreamTls` cannot be loaded.
        """
        self.broker = broker
        self.config = config
        self.dispatch = dispatch
        self.name = config.name
        self.upstream: Address = config.upstream
        self.dial = build_dial(config, config.upstream, broker.config.limits)
        self.catch_up_dial = (
            build_dial(config, config.catch_up_upstream, broker.config.limits)
            if config.catch_up_upstream is not None
            else None
        )
        self.links: dict[ClientConnection[Services, Kept], None] = {}
        self.tended: dict[ClientConnection[Services, Kept], None] = {}
        """Connections with a pending timeout, for the janitor, which also removes them."""
        self.hosts = HostRules(config, broker.host_limits, broker.now)
        self._met: dict[ClientConnection[Services, Kept], IpAddress | None] = {}
        """Connections that were judged before their handshake, until they are made, and their addresses.
        """
        self.wants_sasl = False
        """Whether the broker has accepted a SASL exchange here, a client's or Forebay's own. A
        broker's listener without SASL refuses the handshake (KafkaApis.handleSaslHandshakeRequest).
        """
        self.bound: Address | None = None
        """The address that clients connect to; None before `start`."""
        self.is_bypassed = False
        """Whether connections that are made from now on are relayed unread."""
        self.is_paused = False
        """Whether another process accepts clients in this one's place."""
        self._resuming: asyncio.Task[None] | None = None
        self._servers: list[asyncio.Server | TlsServer] = []
        self._sockets: Sequence[socket.socket] = ()
        self.accepted = 0
        """Number of clients accepted, without those whose TLS handshake has failed."""
        self._stopping = False
        self.drained = asyncio.Event()
        """Set once `stop` was called and the last client connection is closed."""

    @property
    def is_bound(self) -> bool:
        """Whether clients can connect, here or where another process accepts them."""
        is_bound = bool(self._servers) and all(one.is_serving() for one in self._servers)
        return self.is_paused or is_bound

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept clients from `sockets`, which listen, and own them; none while paused. Raises OSError if a
        file of `tls` cannot be loaded.
        """
        context = build_listener_context(self.config)
        self._sockets, self.bound = sockets, find_address(sockets)
        if not self.is_paused:
            await self._accept_from([one.dup() for one in sockets], context)
        if self.is_paused:  # since then
            self._close_servers()
        log.info(
            "listener %s: clients at %s, broker at %s",
            self.name,
            self.bound,
            self.upstream,
            extra={"listener": self.name},
        )
        if self.config.catch_up_upstream is not None:
            log.info(
                "listener %s: history comes by the broker's listener at %s; clients that authenticate by "
                "%s cannot be shown there and stay on the first",
                self.name,
                self.config.catch_up_upstream,
                "GSSAPI" if self.config.use_delegation_tokens else "SCRAM or GSSAPI",
                extra={"listener": self.name},
            )

    async def _accept_from(
        self, sockets: Sequence[socket.socket], context: ssl.SSLContext | None
    ) -> None:
        """Accept from `sockets`, which the servers own and close."""
        loop = asyncio.get_running_loop()
        for one in sockets:
            one.setblocking(False)
        is_shared = self.broker.handshakes.turns is not None
        if context is None and not self.hosts.is_proxied and not is_shared:
            for one in sockets:
                self._servers.append(
                    await loop.create_server(self._accept, sock=one, backlog=BACKLOG)
                )
        else:
            server = TlsServer(self.broker.handshakes, context, self._accept_tls, self._find_first)
            server.start(sockets)
            self._servers.append(server)

    def bypass(self, is_bypassed: bool, is_paused: bool) -> None:
        """Relay connections unread from now on, or no more; `is_paused`: another process accepts them. Those that
        are open finish, so that their clients come back: within `shutdown.gracePeriod`.
        """
        if (is_bypassed, is_paused) == (self.is_bypassed, self.is_paused):
            return
        was_paused, self.is_bypassed, self.is_paused = self.is_paused, is_bypassed, is_paused
        if self.bound is not None and not self._stopping:
            if self._resuming is not None:
                self._resuming.cancel()
            if is_paused:
                self._close_servers()
            elif was_paused:
                self._resuming = asyncio.get_running_loop().create_task(self._resume())
        leaving = list(self.links)
        for link in leaving:
            link.finish()
        if leaving:
            grace_s = self.broker.config.shutdown.grace_period_s
            asyncio.get_running_loop().call_later(grace_s, self._cut, leaving)

    async def _resume(self) -> None:
        """Accept again. A file that cannot be loaded any more is logged, and leaves the listener unbound."""
        try:
            context = build_listener_context(self.config)
            if not (self._stopping or self.is_paused):
                await self._accept_from([one.dup() for one in self._sockets], context)
        except OSError as error:
            fields = {"listener": self.name, "reason": f"{error}"}
            log.error("the listener cannot accept again", extra=fields)
        if self._stopping or self.is_paused:
            self._close_servers()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []

    def _cut(self, leaving: Sequence[ClientConnection[Services, Kept]]) -> None:
        for link in leaving:
            if link in self.links:
                link.close("drain_timeout")

    def adopt(self, settings: ListenerSettings, limits: Limits) -> None:
        """Use other settings for the connections that are made from now on, and other limits for all. The address,
        the broker and whether there is TLS must be the same.
        """
        self.config = settings.config
        self.set_dials(settings.dial, settings.catch_up_dial)
        self.hosts.set_lists(settings.config)
        if settings.server_context is not None:
            self.set_context(settings.server_context)
        for one in self._sockets:
            end_vanished(one, limits.idle_timeout_s)
        for link in list(self.links):
            link.set_limits(limits)
            self.hosts.count(link, link.host)

    def _begin(self, principal: str | None = None) -> ClientConnection[Services, Kept]:
        self.accepted += 1
        return ClientConnection(self, self.accepted, principal)

    def set_dials(self, dial: Dial, catch_up_dial: Dial | None) -> None:
        """Reach the broker by other dials, for clients that connect from now on."""
        self.dial, self.catch_up_dial = dial, catch_up_dial

    def set_context(self, context: ssl.SSLContext) -> None:
        """Use other TLS settings toward clients, for the handshakes that begin from now on."""
        for server in self._servers:
            if isinstance(server, TlsServer):
                server.set_context(context)

    def _accept(self) -> asyncio.BaseProtocol:
        return self._begin().framed

    def _accept_tls(self, transport: asyncio.Transport) -> None:
        """Make a connection for a client that has finished its TLS handshake."""
        link = self._identify(transport)
        if link is not None:
            transport.set_protocol(link.framed)
            link.framed.connection_made(transport)

    def _identify(self, transport: asyncio.Transport) -> ClientConnection[Services, Kept] | None:
        """The connection of a client that has finished what comes before its first request. None: its
        certificate gives no principal, where that would be its identity, and it is closed.
        """
        principal = None
        if self.config.tls is not None and self.config.signs_in_for_clients:
            presented = transport.get_extra_info("ssl_object")
            try:
                principal = self.broker.sign_ins.find_principal(self.config.tls, presented)
            except ValueError as error:
                self.broker.counters.clients.reject("no_principal")
                log.warning(
                    "closing a client whose certificate gives no principal",
                    extra={"listener": self.name, "reason": f"{error}"},
                )
                transport.abort()
                return None
        return self._begin(principal)

    def _find_first(self) -> Callable[[socket.socket], Awaitable[Made]] | None:
        """What comes before the handshake of a connection; None: nothing."""
        return self._meet if self.hosts.is_proxied or self.hosts.is_active else None

    async def _meet(self, client: socket.socket) -> Made:
        """Judge a client by its address, or by that in its PROXY header. Raises RefusedClient."""
        try:
            peer = await self.hosts.meet(client)
        except RefusedClient as refusal:
            fields = {"listener": self.name, "cause": refusal.cause, "reason": str(refusal)}
            log.warning("closing a client before its first request", extra=fields)
            raise
        return partial(self._accept_met, peer, find_peer(client))

    def _accept_met(
        self, peer: ProxiedPeer | None, address: IpAddress | None, transport: asyncio.Transport
    ) -> None:
        """`_accept_tls` for a client that was judged, by what `peer` says or by its own `address`."""
        link = self._identify(transport)
        if link is None:
            return
        if peer is not None and not peer.is_local:
            link.framed.peer = str(peer)
        self._met[link] = address if peer is None else peer.address
        transport.set_protocol(link.framed)
        link.framed.connection_made(transport)
        self._met.pop(link, None)

    def opened(self, link: ClientConnection[Services, Kept]) -> None:
        """Add `link`, which is counted as active already, or close it above
        `limits.maxConnections`.
        """
        broker = self.broker
        if broker.handshakes.open_connections > broker.config.limits.max_connections:
            link.close("too_many_connections", "closing a client at limits.maxConnections")
            return
        if (self._met or self.hosts.is_active) and not self._admit(link):
            return
        self.links[link] = None
        if self._stopping or self.is_paused or link.is_unread is not self.is_bypassed:
            link.finish()  # it was accepted before

    def _admit(self, link: ClientConnection[Services, Kept]) -> bool:
        """Judge a connection that was not judged before its handshake, and count it for its address. False:
        it is closed, now or after a delay.
        """
        verdict = ADMITTED
        if link in self._met:
            address = self._met.pop(link)
        else:
            address = parse_address(link.host)
            verdict = self.hosts.judge(address)
        if not verdict.cause and not self.hosts.enter(link, address):
            verdict = HostVerdict(TOO_MANY)
        if verdict.cause:
            blame = "closing a client by the rules for its address"
            link.framed.hold_reading(self.hosts)
            self.hosts.hold(verdict.delay_s, partial(link.close, verdict.cause, blame))
        return not verdict.cause

    def adopt_modes(self) -> None:
        """Have each connection judge the requests that arrive from now on by the cache modes in force."""
        for link in self.links:
            link.adopt_mode()

    def saw_sasl(self) -> None:
        """Note that the broker wants SASL here."""
        self.wants_sasl = True

    def tend(self, link: ClientConnection[Services, Kept]) -> None:
        """Have the janitor check `link`, which has a pending timeout."""
        self.tended[link] = None

    def closed(self, link: ClientConnection[Services, Kept]) -> None:
        """Remove `link`, which is closed."""
        self.links.pop(link, None)
        self.hosts.leave(link)
        self.tended.pop(link, None)
        self._note_drained()

    def _note_drained(self) -> None:
        if self._stopping and not self.links:
            self.drained.set()

    def stop(self) -> None:
        """Stop accepting, and let every client finish. `drained` is set when the last connection is
        closed.
        """
        self._stopping = True
        self._close_servers()
        for one in self._sockets:
            one.close()
        for link in list(self.links):
            link.finish()
        self._note_drained()

    def abort(self) -> None:
        """Close all client connections at once: the grace period is over."""
        for link in list(self.links):
            link.close("drain_timeout")


AnyListener: TypeAlias = "Listener[Any, Any]"
"""A listener where its own part alone is used."""


def build_dial(config: ListenerConfig, address: Address, limits: Limits) -> Dial:
    """How to reach the broker at `address`, with the TLS settings of `config`. Raises OSError
    (ssl.SSLError included) if a file cannot be loaded.
    """
    host, port = address
    tls = config.upstream_tls
    return Dial(
        host,
        port,
        build_client_context(tls) if tls.enabled else None,
        tls.server_name or host,
        limits.connect_timeout_s,
        limits.max_response_frame_bytes,
    )


def load_settings(config: ListenerConfig, limits: Limits) -> ListenerSettings:
    """The settings of a listener, with the present content of its certificates' files. Raises ValueError, which names
    the keys of the files, if one cannot be loaded.
    """
    server_context = load_listener_context(config)
    dial, catch_up_dial = load_dials(config, limits)
    return ListenerSettings(config, dial, catch_up_dial, server_context)


def load_listener_context(config: ListenerConfig) -> ssl.SSLContext | None:
    """The part of `load_settings` toward clients; None: plain text."""
    with naming_files("tls", config.tls):
        return build_listener_context(config)


def load_dials(config: ListenerConfig, limits: Limits) -> tuple[Dial, Dial | None]:
    """The part of `load_settings` toward the broker: for `upstream` and `catchUpUpstream`."""
    with naming_files("upstreamTls", config.upstream_tls):
        dial, catch_up = build_dial(config, config.upstream, limits), config.catch_up_upstream
        return dial, build_dial(config, catch_up, limits) if catch_up is not None else None


def build_listener_context(config: ListenerConfig) -> ssl.SSLContext | None:
    """TLS settings toward clients, or None for plain text. Raises OSError (ssl.SSLError included) if a file cannot
    be loaded.
    """
    if config.tls is None:
        return None
    is_required = config.tls.client_auth == "required"
    return build_server_context(config.tls, ssl.CERT_REQUIRED if is_required else ssl.CERT_NONE)
