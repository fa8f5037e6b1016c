"""Delegation tokens: one for each principal as whom Forebay signs in to the broker (KIP-48, KIP-373).

Owns the tokens of this process, their number and their ends. Must not know clients' requests, nor
how a token is shown (proxy/net/signed_session.py). Invariants:
* a token is in memory alone, and is shared by all connections of its principal.
* there are at most `delegationTokens.limit`; the one that nobody has used for longest makes room.
* a token is renewed, or another one created, at RENEW_AT of its time, when a connection asks.
* the broker's own answer says whose a token is; one of another owner is never used.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import BadFrame
from proxy.identity import certificate
from proxy.identity.requests import TokenRequests
from proxy.net.delegation_token import DelegationToken
from proxy.net.signed_session import SignInRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from protocol.control import CreatedToken
    from proxy.config.model import ListenerTls
    from proxy.identity.requests import TokenServices
    from proxy.net.services import Certificate

log = logging.getLogger("forebay.tokens")

RENEW_AT = 0.5
"""Share of a token's time after which it is renewed: sessions begun before have at least the rest."""
REFUSED_PAUSE_S = 1.0
"""Time for which a refusal stands for further connections of its principal."""


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token, and when it is due and ends, in seconds of Forebay's clock."""

    token: DelegationToken
    created: CreatedToken
    created_at: float
    expires_at_ms: int
    due_at: float

    @property
    def expires_at(self) -> float:
        """When the broker stops accepting it, if it is not renewed. The broker's clock is not read."""
        return self.created_at + (self.expires_at_ms - self.created.issued_at_ms) / 1000

    @property
    def is_renewable(self) -> bool:
        """Whether the broker would give it more time."""
        return self.expires_at_ms < self.created.ends_at_ms


@dataclass(slots=True)
class PrincipalToken:
    """The token of one principal. `users`: connections that have asked for it and are open."""

    principal: str
    users: int = 0
    idle_since: float = 0.0
    held: HeldToken | None = None
    making: asyncio.Task[HeldToken] | None = None
    refusal: SignInRefused | None = None
    refused_at: float = field(default=float("-inf"))

    def join(self) -> None:
        """Note one more connection."""
        self.users += 1

    def leave(self, now: float) -> None:
        """Note that a connection is gone."""
        self.users -= 1
        self.idle_since = now

    def hold(self, held: HeldToken | None) -> None:
        """Use this token from now on; None: the next one asked for is made."""
        self.held, self.refusal = held, None

    def refuse(self, refusal: SignInRefused, now: float) -> None:
        """Note that there is no token for now."""
        self.refusal, self.refused_at = refusal, now

    def begin(self, making: Coroutine[object, object, HeldToken]) -> asyncio.Task[HeldToken]:
        """Make a token; all who ask meanwhile wait for it."""
        self.making = asyncio.get_running_loop().create_task(making)
        self.making.add_done_callback(self._end)
        return self.making

    def _end(self, task: asyncio.Task[HeldToken]) -> None:
        self.making = None
        if not task.cancelled():
            task.exception()  # whoever waited has it

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs it."""
        return self.users == 0 and self.making is None


class ConnectionSigner:
    """Signs the connections of one client, or of its catch-up connection (`net.services.Signer`)."""

    __slots__ = ("_began", "_entry", "_principal", "_tokens")

    def __init__(
        self,
        tokens: DelegationTokens,
        principal: str,
        began: Callable[[float, float], None] | None,
    ) -> None:
        self._tokens = tokens
        self._principal = principal
        self._began = began
        self._entry: PrincipalToken | None = None

    async def borrow(self) -> DelegationToken:
        """Return a token of the principal, made now if need be. Raises SignInRefused."""
        if self._entry is None:
            self._entry = self._tokens.enter(self._principal)
        return await self._tokens.take(self._entry)

    def reject(self, token: DelegationToken) -> None:
        """Note that the broker does not accept `token`."""
        if self._entry is not None:
            self._tokens.reject(self._entry, token)

    def begin_session(self, lifetime_s: float, took_s: float) -> None:
        """Note a sign-in."""
        began_at = self._tokens.note_session(took_s)
        if self._began is not None:
            self._began(began_at, lifetime_s)

    def close(self) -> None:
        """Give the principal back."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._tokens.leave(entry)


class DelegationTokens:
    """The tokens of the process (`net.services.SignIns`)."""

    def __init__(self, services: TokenServices) -> None:
        self._services = services
        self._config = services.config.delegation_tokens
        self._requests = TokenRequests(services)
        self._entries: dict[str, PrincipalToken] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def limit(self) -> int:
        """Most principals at a time."""
        return self._config.limit

    def find_principal(self, tls: ListenerTls, presented: Certificate) -> str:
        """The user's name that a client's certificate gives. Raises ValueError without one."""
        return certificate.find_principal(tls, presented)

    def open(
        self, principal: str, began: Callable[[float, float], None] | None = None
    ) -> ConnectionSigner:
        """The signer of a connection. Nothing is asked of the broker before `borrow`."""
        return ConnectionSigner(self, principal, began)

    # -- principals ----------------------------------------------------------------------------------------

    def enter(self, principal: str) -> PrincipalToken:
        """Note a connection of a principal, until `leave`. Raises SignInRefused at the limit."""
        entry = self._entries.get(principal)
        if entry is None:
            if len(self._entries) >= self._config.limit:
                self._make_room()
            entry = self._entries[principal] = PrincipalToken(principal)
        entry.join()
        return entry

    def _make_room(self) -> None:
        idle = [entry for entry in self._entries.values() if entry.is_idle]
        if not idle:
            raise self._count(
                SignInRefused(
                    "limit",
                    f"{len(self._entries)} principals have connections; raise delegationTokens.limit",
                )
            )
        self._forget(min(idle, key=lambda entry: entry.idle_since))

    def leave(self, entry: PrincipalToken) -> None:
        """Note that a connection of the principal is gone."""
        entry.leave(self._services.now())

    def tick(self, now: float) -> None:
        """Timed: forget tokens without a connection for `delegationTokens.keep`."""
        for entry in [one for one in self._entries.values() if one.is_idle]:
            if now - entry.idle_since >= self._config.keep_s:
                self._forget(entry)

    def _forget(self, entry: PrincipalToken) -> None:
        del self._entries[entry.principal]
        if entry.held is not None:
            self._requests.expire(entry.held.created.hmac)

    def close(self) -> None:
        """Ask the broker to expire all tokens: the process ends."""
        for entry in list(self._entries.values()):
            if entry.making is not None:
                entry.making.cancel()
            self._forget(entry)

    # -- tokens --------------------------------------------------------------------------------------------

    async def take(self, entry: PrincipalToken) -> DelegationToken:
        """The principal's token. One that is due is used as long as the broker takes it, if there is
        no other. Raises SignInRefused.
        """
        now, held = self._services.now(), entry.held
        if held is not None and now < held.due_at:
            return held.token
        if entry.refusal is not None and now - entry.refused_at < REFUSED_PAUSE_S:
            refusal = entry.refusal
        else:
            try:
                return (await asyncio.shield(entry.making or entry.begin(self._make(entry)))).token
            except SignInRefused as error:
                refusal = error
        if held is not None and entry.held is held and self._services.now() < held.expires_at:
            return held.token
        raise SignInRefused(refusal.reason, f"{refusal}")

    def reject(self, entry: PrincipalToken, token: DelegationToken) -> None:
        """Note that the broker does not accept a principal's token: the next one is another."""
        self._services.counters.tokens.fail("refused")
        if entry.held is not None and entry.held.token is token:
            entry.hold(None)

    def note_session(self, took_s: float) -> float:
        """Count a sign-in that took so long. Returns when it began."""
        self._services.counters.tokens.sign_in()
        return self._services.now() - took_s

    async def _make(self, entry: PrincipalToken) -> HeldToken:
        timeout_s = self._services.config.limits.connect_timeout_s
        try:
            async with self._requests.take_turn() as turn, asyncio.timeout(timeout_s):
                held = await self._renew(turn, entry.held) if entry.held is not None else None
                held = held or await self._create(turn, entry.principal)
        except (ConnectionError, TimeoutError, BadFrame) as error:
            refusal = self._count(self._requests.describe(error))
            entry.refuse(refusal, self._services.now())
            raise refusal from error
        entry.hold(held)
        return held

    async def _create(self, turn: str, principal: str) -> HeldToken:
        asked_at = self._services.now()
        made = await self._requests.create(turn, principal, self._config.lifetime_s)
        token = DelegationToken(made.token_id, made.hmac, self._config.mechanism)
        self._services.counters.tokens.create()
        life_s = (made.expires_at_ms - made.issued_at_ms) / 1000
        return HeldToken(token, made, asked_at, made.expires_at_ms, asked_at + life_s * RENEW_AT)

    async def _renew(self, turn: str, held: HeldToken) -> HeldToken | None:
        """The same token with more time; None if the broker gives none."""
        now = self._services.now()
        if not held.is_renewable or now >= held.expires_at:
            return None
        expires_at_ms = await self._requests.renew(turn, held.created.hmac)
        if expires_at_ms is None:
            return None
        self._services.counters.tokens.renew()
        renewed = HeldToken(held.token, held.created, held.created_at, expires_at_ms, 0.0)
        left_s = renewed.expires_at - now
        return HeldToken(
            held.token, held.created, held.created_at, expires_at_ms, now + left_s * RENEW_AT
        )

    def _count(self, refusal: SignInRefused) -> SignInRefused:
        self._services.counters.tokens.fail(refusal.reason)
        return refusal
