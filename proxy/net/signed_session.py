"""Signed session: a connection to the broker on which Forebay signs in as a client's principal. [socket]

Owns the SASL exchange before the first request, and its repetition before the session's end
(KIP-368). Must not know where tokens come from. Invariants:
* no request of a client reaches the broker before the broker has accepted the principal: until then
  requests wait in the framed transport, within the bounds of a connection that is being opened.
* between the first and the last message of a repeated exchange nothing else is sent; requests wait
  in the broker connection.
* a token that the broker does not accept is given back, and one other is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from random import random
from typing import TYPE_CHECKING, cast

from protocol.errors import BadFrame
from protocol.framing import SMALL_BYTES, Framer
from proxy.net import sasl_client

if TYPE_CHECKING:
    from protocol.primitives import Frame
    from proxy.net.broker_connection import BrokerConnection, Dial
    from proxy.net.delegation_token import DelegationToken
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.services import Signer

log = logging.getLogger("forebay.signed_session")

RENEW_AT, RENEW_SPREAD = 0.7, 0.1
"""Share of a session after which the exchange is repeated, and the range over which connections
that began together are spread.
"""
SHORTEST_S = 1.1
"""A broker takes no second exchange within a second (KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS)."""
RETRY_S = 1.0
LARGEST_ANSWER_BYTES = 32 << 10
assert LARGEST_ANSWER_BYTES <= SMALL_BYTES  # a larger one would need a buffer of its own
ATTEMPTS = 2
"""Tokens that are tried: the broker may have forgotten the first."""


class SignInRefused(ConnectionError):
    """Forebay cannot sign in as a principal. `reason` is a label, the message has the remedy."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SignInSocket(asyncio.Protocol):
    """A socket during its SASL exchange: one request at a time, and its response."""

    def __init__(self) -> None:
        self._framer = Framer(LARGEST_ANSWER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._awaited: asyncio.Future[Frame] | None = None
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the socket is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with bytes of the broker."""
        try:
            for frame in self._framer.received(data):
                if self._awaited is None or self._awaited.done():
                    raise BadFrame("the broker answered what nobody asked")
                self._awaited.set_result(bytes(frame))
        except BadFrame as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the socket is closed."""
        self._fail(ConnectionError(f"the broker closed the connection{f': {exc}' if exc else ''}"))

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)

    async def call(self, frame: bytes) -> Frame:
        """Send a request and wait for its response. Raises ConnectionError or BadFrame."""
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        self._awaited = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return await self._awaited


class SignedSession:
    """The session of one broker connection."""

    __slots__ = ("_link", "_renewing", "_signer", "_timer")

    def __init__(self, link: BrokerConnection, signer: Signer) -> None:
        self._link = link
        self._signer = signer
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def connect(self, dial: Dial, framed: FramedTransport) -> None:
        """Open a socket, sign in on it, and hand it to `framed`. Raises SignInRefused, OSError or
        TimeoutError if that fails, the last after the dial's timeout.
        """
        for attempt in range(1, ATTEMPTS + 1):
            token = await self._signer.borrow()
            try:
                async with asyncio.timeout(dial.connect_timeout_s):
                    await self._sign_in(dial, framed, token)
                return
            except sasl_client.NoSasl as error:
                raise self._refuse(dial, "listener", error) from error
            except (sasl_client.AuthenticationRefused, BadFrame) as error:
                self._signer.reject(token)
                if attempt == ATTEMPTS:
                    raise self._refuse(dial, "refused", error) from error

    def _refuse(self, dial: Dial, reason: str, error: Exception) -> SignInRefused:
        return SignInRefused(
            reason,
            f"cannot sign in at {dial.host}:{dial.port} by a delegation token: {error}; the listener needs SASL, "
            "with the mechanism of delegationTokens.mechanism in its sasl.enabled.mechanisms",
        )

    async def _sign_in(self, dial: Dial, framed: FramedTransport, token: DelegationToken) -> None:
        exchange = SignInSocket()
        transport = await dial.open(lambda: exchange)
        began_at = asyncio.get_running_loop().time()
        try:
            lifetime_s = await sasl_client.authenticate_token(exchange.call, token)
        except BaseException:
            transport.abort()
            raise
        transport.set_protocol(framed)
        framed.connection_made(transport)
        self._begin(lifetime_s, began_at)

    def _begin(self, lifetime_s: float, began_at: float) -> None:
        """Note a session after an exchange that began at `began_at`, of the event loop's clock."""
        took_s = asyncio.get_running_loop().time() - began_at
        self._signer.begin_session(lifetime_s, took_s)
        if lifetime_s > 0:
            share = RENEW_AT + RENEW_SPREAD * random()
            self._renew_in(max(lifetime_s * share, SHORTEST_S))

    def _renew_in(self, delay_s: float) -> None:
        self._cancel_timer()
        if not self._link.closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start_renewal)

    def _start_renewal(self) -> None:
        self._timer = None
        if self._renewing is not None:
            self._renew_in(RETRY_S)
        elif self._link.is_connected:  # else the next socket signs in
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
            self._renewing.add_done_callback(self._end_renewal)

    def _end_renewal(self, task: asyncio.Task[None]) -> None:
        self._renewing = None
        if not task.cancelled() and task.exception() is not None:
            log.error("renewing a session failed", exc_info=task.exception())

    async def _renew(self) -> None:
        """Repeat the exchange on the open connection. A token that cannot be had leaves the session
        as it is, and is asked for again; the broker ends the session in time.
        """
        try:
            token = await self._signer.borrow()
        except SignInRefused as error:
            log.warning("a client's session cannot be renewed yet", extra={"reason": f"{error}"})
            self._renew_in(RETRY_S)
            return
        with contextlib.suppress(ConnectionError), self._link.hold_requests() as call:
            began_at = asyncio.get_running_loop().time()
            try:
                self._begin(await sasl_client.authenticate_token(call, token), began_at)
            except sasl_client.NoSasl:
                return  # the broker ends no session of this listener
            except (sasl_client.AuthenticationRefused, BadFrame) as error:
                self._signer.reject(token)
                self._link.lose(f"the broker does not renew the session: {error}")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End renewals, and the signer's work; the connection is gone."""
        self._cancel_timer()
        self._signer.close()
        if self._renewing is not None:
            self._renewing.cancel()
