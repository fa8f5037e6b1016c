"""Tokens of principals: made on first use, shared, renewed in time, bounded, forgotten.

Owns a played own connection and a clock. It must not know how a token is shown to the broker. Invariant: nothing
sleeps but for the pauses of the code under test, of milliseconds.
"""

import asyncio
from types import SimpleNamespace

import pytest

from proxy.accounting.counters import Counters
from proxy.config.model import Config
from proxy.identity import requests
from proxy.identity.tokens import REFUSED_PAUSE_S, RENEW_AT, DelegationTokens
from proxy.net.signed_session import SignInRefused
from tests.proxy.event_loop import until
from tests.proxy.token_broker import CREATE, DESCRIBE, EXPIRE, RENEW, REQUESTER, TokenBook

AUTHORIZATION_FAILED, DISABLED, NOT_ALLOWED, NOT_FOUND = 65, 61, 64, 62
LISTENERS = [{"listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}]


class PlayedLink:
    """One of Forebay's own connections."""

    def __init__(self, book):
        self.book = book
        self.losses = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call(self, frame, correlation_id):
        assert correlation_id == 0
        await self.may_answer.wait()
        if self.losses:
            self.losses -= 1
            raise ConnectionError("it is gone")
        return self.book.answer(frame)

    def send(self, frame, correlation_id, on_answer):
        assert correlation_id == 0
        on_answer(self.book.answer(frame))


class BusyLink(PlayedLink):
    """One that takes a turn of the loop for each answer; `most`: requests that were under way at once."""

    def __init__(self, book):
        super().__init__(book)
        self.flying = self.most = 0

    async def call(self, frame, correlation_id):
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0)
        self.flying -= 1
        return await super().call(frame, correlation_id)


class World:
    """`tokens`, the broker's `book` behind them, and a clock."""

    def __init__(self, life_s=100.0, most_s=1000.0, **settings):
        self.clock = 5000.0
        self.book = TokenBook(life_s, most_s)
        self.links = [PlayedLink(self.book)]
        self.refusal = ""
        self.counters = Counters()
        config = Config.model_validate(
            {
                "listeners": LISTENERS,
                "delegationTokens": settings,
                "limits": {"connectTimeout": "60s"},
            }
        )
        services = SimpleNamespace(
            config=config, counters=self.counters, now=lambda: self.clock, own_connections=self
        )
        self.tokens = DelegationTokens(services)

    def link(self, name):
        assert name in (*requests.CONNECTIONS, requests.LOOKING)
        return self.links[0] if self.links else None

    async def borrow(self, principal):
        """A signer of a principal that has its token."""
        signer = self.tokens.open(principal)
        return signer, await signer.borrow()


async def refused(world, principal):
    with pytest.raises(SignInRefused) as caught:
        await world.borrow(principal)
    return caught.value


async def test_a_token_is_made_on_first_use_for_its_owner_and_shared():
    world = World()
    assert world.book.calls == []
    one, token = await world.borrow("CN=app,O=org")
    other, same = await world.borrow("CN=app,O=org")
    assert token is same
    own, asked = world.book.made(CREATE)
    assert own.owner_principal_name is None
    assert (asked.owner_principal_type, asked.owner_principal_name) == ("User", "CN=app,O=org")
    assert [row.principal_name for row in asked.renewers] == [REQUESTER]
    assert asked.max_lifetime.total_seconds() == 86_400
    assert (len(world.tokens), world.counters.tokens.created) == (1, 1)
    for signer in (one, other):
        signer.close()


async def test_connections_that_ask_at_once_make_one_token():
    world = World()
    world.links[0].may_answer.clear()
    waiting = [asyncio.ensure_future(world.borrow("app")) for _ in range(50)]
    await asyncio.sleep(0)
    world.links[0].may_answer.set()
    tokens = {token for _, token in await asyncio.gather(*waiting)}
    assert len(tokens) == 1
    assert len(world.book.made(CREATE)) == 2


async def test_a_token_waits_until_the_broker_itself_knows_it(monkeypatch):
    monkeypatch.setattr(requests, "FIRST_LOOK_S", 0.0)
    world = World()
    world.book.hidden_looks = 5
    await world.borrow("app")
    assert len(world.book.made(DESCRIBE)) == 6


async def test_many_principals_at_once_wait_for_their_turn(monkeypatch):
    monkeypatch.setattr(requests, "FIRST_LOOK_S", 0.0)
    world = World()
    busy = BusyLink(world.book)
    world.links = [busy]
    names = [f"app-{number}" for number in range(100)]
    taken = await asyncio.gather(*(world.borrow(name) for name in names))
    assert len({token.token_id for _, token in taken}) == len(names)
    assert 1 < busy.most <= len(requests.CONNECTIONS) + 1
    assert len(world.book.made(DESCRIBE)) < len(names), "one question is for several tokens"


async def test_an_error_of_the_look_ends_all_waits():
    world = World()
    world.book.errors[DESCRIBE] = NOT_ALLOWED
    for refusal in await asyncio.gather(*(refused(world, name) for name in "ab")):
        assert refusal.reason == "listener"
    del world.book.errors[DESCRIBE]
    await world.borrow("c")


async def test_a_due_token_is_renewed_and_stays_the_same():
    world = World(life_s=100.0)
    _, token = await world.borrow("app")
    world.clock += 100 * RENEW_AT - 1
    assert (await world.borrow("app"))[1] is token
    assert world.book.made(RENEW) == []
    world.clock += 2
    assert (await world.borrow("app"))[1] is token
    (renewed,) = world.book.made(RENEW)
    assert renewed.hmac == token.token_id.encode()
    assert world.counters.tokens.renewed == 1
    assert (await world.borrow("app"))[1] is token
    assert len(world.book.made(RENEW)) == 1


async def test_at_the_end_of_its_life_another_token_is_made():
    world = World(life_s=100.0, most_s=100.0)
    _, token = await world.borrow("app")
    world.clock += 100 * RENEW_AT + 1
    assert (await world.borrow("app"))[1].token_id != token.token_id
    assert world.book.made(RENEW) == []


async def test_a_token_that_the_broker_does_not_renew_is_replaced():
    world = World()
    _, token = await world.borrow("app")
    world.book.errors[RENEW] = NOT_FOUND
    world.clock += 100 * RENEW_AT + 1
    assert (await world.borrow("app"))[1].token_id != token.token_id


async def test_a_due_token_serves_until_its_end_if_there_is_no_other():
    world = World(life_s=100.0, most_s=100.0)
    _, token = await world.borrow("app")
    world.book.errors[CREATE] = AUTHORIZATION_FAILED
    world.clock += 100 * RENEW_AT + 1
    assert (await world.borrow("app"))[1] is token
    world.clock += 100 * (1 - RENEW_AT)
    assert (await refused(world, "app")).reason == "authorization"


async def test_a_rejected_token_is_replaced():
    world = World()
    signer, token = await world.borrow("app")
    signer.reject(token)
    fresh = await signer.borrow()
    assert fresh.token_id != token.token_id
    signer.reject(token)  # another connection had it, too
    assert await signer.borrow() is fresh
    assert world.counters.tokens.failures["refused"] == 2


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (AUTHORIZATION_FAILED, "authorization", "kafka-acls.sh"),
        (DISABLED, "disabled", "delegation.token.secret.key"),
        (NOT_ALLOWED, "listener", "upstreamCredentials"),
        (42, "error", "error 42"),
    ],
)
async def test_a_refusal_names_what_helps(code, reason, remedy):
    world = World()
    world.book.errors[CREATE] = code
    refusal = await refused(world, "app")
    assert refusal.reason == reason
    assert remedy in f"{refusal}"
    assert world.counters.tokens.failures == {reason: 1}


async def test_the_acl_that_is_missing_names_forebays_own_principal():
    world = World()
    await world.borrow("app")
    world.book.errors[CREATE] = AUTHORIZATION_FAILED
    text = f"{await refused(world, 'other')}"
    assert f"--allow-principal 'User:{REQUESTER}'" in text
    assert "User:other" in text


async def test_a_refusal_stands_for_a_moment():
    world = World()
    world.book.errors[CREATE] = DISABLED
    await refused(world, "app")
    await refused(world, "app")
    assert len(world.book.made(CREATE)) == 1
    world.clock += REFUSED_PAUSE_S
    del world.book.errors[CREATE]
    await world.borrow("app")


async def test_a_token_of_another_owner_is_never_used():
    world = World()
    await world.borrow("app")
    world.book.named = "somebody"
    assert (await refused(world, "other")).reason == "error"
    assert len(world.book.made(EXPIRE)) == 1


async def test_a_lost_connection_is_tried_once_more():
    world = World()
    world.links[0].losses = 1
    await world.borrow("app")
    world.links[0].losses = 2
    world.refusal = "wrong password"
    refusal = await refused(world, "other")
    assert refusal.reason == "connection"
    assert "wrong password" in f"{refusal}"


async def test_an_own_connection_that_comes_late_is_awaited(monkeypatch):
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 0.0)
    world = World()
    links, world.links = world.links, []
    waiting = asyncio.ensure_future(world.borrow("app"))
    await until(lambda: len(world.tokens) == 1)
    world.links = links
    await waiting


async def test_at_the_limit_the_longest_unused_makes_room_and_used_ones_stay():
    world = World(limit=3)
    signers = {}
    for principal in "abc":
        signers[principal], _ = await world.borrow(principal)
    refusal = await refused(world, "d")
    assert (refusal.reason, len(world.tokens)) == ("limit", 3)
    assert "delegationTokens.limit" in f"{refusal}"
    for principal in "ba":
        signers[principal].close()
        world.clock += 1
    _, fourth = await world.borrow("d")
    assert [body.hmac for body in world.book.made(EXPIRE)] == [b"token-2"]
    assert (len(world.tokens), fourth.token_id) == (3, "token-4")
    created = world.counters.tokens.created
    await world.borrow("a")
    assert world.counters.tokens.created == created


async def test_a_token_without_connections_is_forgotten_after_a_while():
    world = World(keep="30s")
    one, _ = await world.borrow("app")
    other, _ = await world.borrow("app")
    one.close()
    one.close()
    world.clock += 1000
    world.tokens.tick(world.clock)
    assert len(world.tokens) == 1
    other.close()
    world.tokens.tick(world.clock + 29)
    assert (len(world.tokens), world.book.made(EXPIRE)) == (1, [])
    world.tokens.tick(world.clock + 30)
    assert len(world.tokens) == 0
    assert len(world.book.made(EXPIRE)) == 1
    assert world.counters.tokens.expired == 1


async def test_the_end_of_the_process_expires_all():
    world = World()
    for principal in "abc":
        await world.borrow(principal)
    world.tokens.close()
    assert len(world.book.made(EXPIRE)) == 3
    assert len(world.tokens) == 0


async def test_a_session_is_told_to_its_owner_with_the_time_before_the_sign_in():
    world, told = World(), []
    signer = world.tokens.open(
        "app", lambda began_at, lifetime_s: told.append((began_at, lifetime_s))
    )
    signer.begin_session(60.0, 0.5)
    assert told == [(world.clock - 0.5, 60.0)]
    assert world.counters.tokens.sign_ins == 1
