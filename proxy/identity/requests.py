"""Token requests: what Forebay asks of the broker about delegation tokens, over a connection of its own.

Owns the four requests, the name of Forebay's own principal, and the words for each refusal. Must
not know who needs a token. Invariants:
* Forebay is the renewer of each token that it creates; the broker lets nobody else renew or expire
  it but its owner (DelegationTokenControlManager.allowedToRenew).
* a token is returned only after the broker itself knows it. The controller creates it, and the
  broker that is asked learns it a moment later (DelegationTokenPublisher).
* a broker works on one request of a connection at a time, and the controller takes tens of
  milliseconds for a token. So CONNECTIONS create, each one token at a time, and one more asks for
  all tokens together whether the broker knows them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from protocol import control
from protocol.errors import BadFrame, ErrorCode
from proxy.net.own_connections import CLIENT_ID
from proxy.net.signed_session import SignInRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from protocol.primitives import Frame
    from proxy.accounting.counters import Counters
    from proxy.config.model import Config
    from proxy.net.broker_connection import BrokerConnection

CREATE_VERSION, RENEW_VERSION, EXPIRE_VERSION, DESCRIBE_VERSION = 3, 2, 2, 3
"""Owners other than who asks exist from CreateDelegationToken 3 on (KIP-373)."""
CONNECTIONS: Final = tuple(f"tokens-{number}" for number in range(4))
"""Names of Forebay's own connections for these requests."""
LOOKING: Final = "tokens-look"
"""Name of the one that asks whether the broker knows a token."""
LOOK_EVERY_S = 0.02
FIRST_LOOK_S, LONGEST_LOOK_S = 0.005, 0.1
OWN_LIFETIME_S = 60.0
"""Life of the token that shows Forebay its own principal."""
ATTEMPTS = 2
"""The broker may have closed the connection as idle, or at the end of its session."""

_DISABLED: Final = (
    "the broker has no delegation tokens; add delegation.token.secret.key=SECRET, the same everywhere, to "
    "server.properties of all brokers and controllers, and restart them"
)
_NOT_ALLOWED: Final = (
    "the broker takes no token requests on Forebay's own connection; sign in there by SASL "
    "(upstreamCredentials), and not with a delegation token"
)


class OwnLinks(Protocol):
    """Forebay's own connections (`proxy.net.own_connections.OwnConnections`)."""

    @property
    def refusal(self) -> str:
        """Why there is none."""

    def link(self, name: str) -> BrokerConnection | None:
        """The connection of a name; None: it is being opened."""


class TokenServices(Protocol):
    """Handed to what deals with tokens."""

    @property
    def config(self) -> Config:
        """What was configured."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""

    @property
    def own_connections(self) -> OwnLinks:
        """Forebay's own connections."""


class TokenRequests:
    """Asks the broker. All methods that wait raise SignInRefused, ConnectionError or BadFrame."""

    def __init__(self, services: TokenServices) -> None:
        self._services = services
        self._requester = ""
        self._free: asyncio.Queue[str] | None = None
        self._unknown: dict[str, tuple[str, asyncio.Future[None]]] = {}
        """Tokens that the broker does not know yet, by id: the owner, and who waits."""
        self._looking: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def take_turn(self) -> AsyncIterator[str]:
        """Context of one token's requests, with the name of the connection for them. Others wait, in
        their order: there are at most `delegationTokens.limit`.
        """
        if self._free is None:  # now that there is an event loop
            self._free = asyncio.Queue()
            for name in CONNECTIONS:
                self._free.put_nowait(name)
        name = await self._free.get()
        try:
            yield name
        finally:
            self._free.put_nowait(name)

    @property
    def requester(self) -> str:
        """Forebay's own principal, a user's name; "" until the broker has said it."""
        return self._requester

    async def create(self, name: str, owner: str, lifetime_s: float) -> control.CreatedToken:
        """A token of the user `owner` that the broker knows, for at most `lifetime_s` over all renewals.
        `name`: a connection whose turn it is.
        """
        if not self._requester:
            own = await self._create(name, None, (), OWN_LIFETIME_S)
            self._requester = own.requester
        made = await self._create(name, owner, (self._requester,), lifetime_s)
        if made.owner != owner:
            self.expire(made.hmac)
            raise SignInRefused(
                "error", f"the broker made a token of {made.owner!r} where {owner!r} was asked for"
            )
        await self._wait_known(owner, made.token_id)
        return made

    async def _create(
        self, name: str, owner: str | None, renewers: tuple[str, ...], lifetime_s: float
    ) -> control.CreatedToken:
        frame = control.build_create_token_request(
            CREATE_VERSION,
            0,
            CLIENT_ID,
            owner=owner,
            renewers=renewers,
            max_lifetime_ms=round(lifetime_s * 1000),
        )
        made = control.scan_create_token_response(await self._call(name, frame), CREATE_VERSION)
        if made.error_code != ErrorCode.NONE:
            raise self._explain(made.error_code, owner or "Forebay itself")
        return made

    async def _wait_known(self, owner: str, token_id: str) -> None:
        """Until the broker knows a token. The caller's timeout ends the wait."""
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unknown[token_id] = owner, known
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            await known
        finally:
            self._unknown.pop(token_id, None)

    async def _look(self) -> None:
        """Ask for all unknown tokens, until there are none. An error is told to all who wait."""
        pause_s = FIRST_LOOK_S
        try:
            while self._unknown:
                before = len(self._unknown)
                self._resolve(await self._describe())
                pause_s = min(2 * pause_s, LONGEST_LOOK_S)
                if len(self._unknown) < before:
                    pause_s = FIRST_LOOK_S
                await asyncio.sleep(pause_s)
        except (SignInRefused, ConnectionError, BadFrame) as error:
            for _, known in self._unknown.values():
                if not known.done():
                    known.set_exception(self.describe(error))
        finally:
            self._looking = None

    async def _describe(self) -> frozenset[str]:
        owners = sorted({owner for owner, _ in self._unknown.values()})
        frame = control.build_describe_tokens_request(DESCRIBE_VERSION, 0, CLIENT_ID, owners=owners)
        answer = await self._call(LOOKING, frame)
        error_code, known = control.scan_described_tokens(answer, DESCRIBE_VERSION)
        if error_code != ErrorCode.NONE:
            raise self._explain(error_code, owners[0])
        return known

    def _resolve(self, known: frozenset[str]) -> None:
        for token_id in known & self._unknown.keys():
            _, waiting = self._unknown.pop(token_id)
            if not waiting.done():
                waiting.set_result(None)

    async def renew(self, name: str, hmac: bytes) -> int | None:
        """When a renewed token expires, in milliseconds of the broker's clock; None if the broker
        does not renew it.
        """
        frame = control.build_renew_token_request(RENEW_VERSION, 0, CLIENT_ID, hmac=hmac)
        answer = await self._call(name, frame)
        error_code, expires_at_ms = control.scan_renew_token_response(answer, RENEW_VERSION)
        return expires_at_ms if error_code == ErrorCode.NONE else None

    def expire(self, hmac: bytes) -> None:
        """Ask the broker to expire a token, and wait for nothing: it ends by itself, too."""
        link = self._services.own_connections.link(CONNECTIONS[0])
        if link is not None:
            frame = control.build_expire_token_request(EXPIRE_VERSION, 0, CLIENT_ID, hmac=hmac)
            link.send(frame, 0, self._note_expired)

    def _note_expired(self, answer: Frame | None) -> None:
        self._services.counters.tokens.expire(answer is not None)

    async def _call(self, name: str, frame: bytes) -> Frame:
        for attempt in range(1, ATTEMPTS + 1):
            link = await self._find_link(name)
            try:
                return await link.call(frame, 0)
            except ConnectionError:
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _find_link(self, name: str) -> BrokerConnection:
        """Forebay's own connection, once it is open. The caller's timeout ends the wait."""
        while True:
            link = self._services.own_connections.link(name)
            if link is not None:
                return link
            await asyncio.sleep(LOOK_EVERY_S)

    def describe(self, error: Exception) -> SignInRefused:
        """The refusal to tell of an error."""
        if isinstance(error, SignInRefused):
            return SignInRefused(error.reason, f"{error}")
        why = self._services.own_connections.refusal or f"{error}" or type(error).__name__
        return SignInRefused(
            "connection", f"no delegation token by Forebay's own connection to the broker: {why}"
        )

    def _explain(self, error_code: int, owner: str) -> SignInRefused:
        if error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
            return SignInRefused("disabled", _DISABLED)
        if error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED:
            return SignInRefused("listener", _NOT_ALLOWED)
        if error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED:
            return SignInRefused(
                "authorization",
                f"Forebay may not create tokens for User:{owner}: kafka-acls.sh --bootstrap-server BROKER --add "
                f"--allow-principal 'User:{self._requester}' --operation CreateTokens --user-principal '*'",
            )
        return SignInRefused(
            "error", f"the broker refuses a token for {owner} with error {error_code}"
        )
