"""A broker connection on which Forebay signs in by a token, against a loopback broker.

Owns a signer that has as many tokens as a test says. It must not know where tokens come from. Invariant: nothing
sleeps.
"""

import asyncio
import base64
from contextlib import asynccontextmanager

import pytest

from protocol import api
from proxy.accounting.counters import Counters
from proxy.net import signed_session
from proxy.net.broker_connection import BrokerConnection, Dial
from proxy.net.byte_budget import ByteBudget
from proxy.net.delegation_token import DelegationToken
from proxy.net.signed_session import SignInRefused
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.token_broker import serve_tokens

GOOD, SECRET = "good", b"secret"
SIGNS_IN = [(api.SASL_HANDSHAKE, 0), (api.SASL_AUTHENTICATE, 0), (api.SASL_AUTHENTICATE, 0)]
METADATA = 3


def build_request(correlation_id):
    body = METADATA.to_bytes(2, "big") + bytes(2) + correlation_id.to_bytes(4, "big") + b"\xff\xff"
    return len(body).to_bytes(4, "big") + body


class PlayedSigner:
    """Has one token after another."""

    def __init__(self, *names):
        self.names = list(names)
        self.rejected, self.sessions, self.borrowed = [], [], 0
        self.is_closed = False
        self.may_borrow = asyncio.Event()
        self.may_borrow.set()
        self.refusals = 0

    async def borrow(self):
        await self.may_borrow.wait()
        self.borrowed += 1
        if self.refusals:
            self.refusals -= 1
            raise SignInRefused("limit", "there is no token")
        return DelegationToken(self.names[0], SECRET, "SCRAM-SHA-256")

    def reject(self, token):
        self.rejected.append(token.token_id)
        if len(self.names) > 1:
            self.names.pop(0)

    def begin_session(self, lifetime_s, took_s):
        assert took_s >= 0
        self.sessions.append(lifetime_s)

    def close(self):
        self.is_closed = True


class Signed:
    """A link with a signer, and what became of it."""

    def __init__(self, port, signer):
        self.lost: list[str] = []
        self.answers: list[tuple[int, bool]] = []
        dial = Dial("127.0.0.1", port, None, None, PATIENCE_S, 1000)
        self.signer = signer
        self.link = BrokerConnection(
            dial, ByteBudget(1 << 20), Counters(), self.lost.append, signer=signer
        )

    def ask(self, correlation_id):
        self.link.send(
            build_request(correlation_id),
            correlation_id,
            lambda answer: self.answers.append((correlation_id, answer is not None)),
        )


@asynccontextmanager
async def signed(*names):
    async with serve_tokens({GOOD: base64.b64encode(SECRET)}) as (played, port):
        one = Signed(port, PlayedSigner(*names))
        try:
            yield played, one
        finally:
            one.link.close()


async def test_requests_wait_for_the_sign_in_and_keep_their_order():
    async with signed(GOOD) as (played, one):
        one.signer.may_borrow.clear()
        one.ask(7)
        one.ask(8)
        await asyncio.sleep(0)
        assert played.seen == []
        one.signer.may_borrow.set()
        await until(lambda: len(one.answers) == 2)
        assert played.seen == [*SIGNS_IN, (METADATA, 7), (METADATA, 8)]
        assert one.signer.sessions == [0]
        assert one.answers == [(7, True), (8, True)]


async def test_a_token_that_the_broker_forgot_is_replaced_by_one_other():
    async with signed("forgotten", GOOD) as (played, one):
        one.ask(7)
        await until(lambda: one.answers)
        assert one.signer.rejected == ["forgotten"]
        assert played.seen[-4:] == [*SIGNS_IN, (METADATA, 7)]


async def test_no_request_leaves_if_no_token_is_accepted():
    async with signed("forgotten") as (played, one):
        one.ask(7)
        await until(lambda: one.lost)
        assert one.signer.rejected == ["forgotten", "forgotten"]
        assert "sasl.enabled.mechanisms" in one.lost[0]
        assert METADATA not in [key for key, _ in played.seen]
        assert one.answers == [(7, False)]
        assert one.signer.is_closed


async def test_a_listener_without_sasl_is_named():
    async with signed(GOOD) as (played, one):
        played.handshake_error = 34
        one.ask(7)
        await until(lambda: one.lost)
        assert "no SASL" in one.lost[0]
        assert one.signer.rejected == []


async def test_no_token_ends_the_connection_with_the_remedy():
    async with signed(GOOD) as (played, one):
        one.signer.refusals = 1
        one.ask(7)
        await until(lambda: one.lost)
        assert one.lost == ["there is no token"]
        assert played.seen == []


async def test_a_client_that_leaves_meanwhile_leaves_nothing_open():
    async with signed(GOOD) as (played, one):
        played.is_deaf = True
        one.ask(7)
        await until(lambda: len(played.seen) == 2)
        one.link.close()
        played.is_deaf = False
        assert one.answers == [(7, False)]


async def renew(played, one):
    """Sign in, and let the session's end come near."""
    played.lifetime_ms = 3_600_000
    one.ask(7)
    await until(lambda: one.answers)
    played.seen.clear()
    one.link._session._start_renewal()


async def test_a_session_is_renewed_on_the_open_connection_and_requests_wait():
    async with signed(GOOD) as (played, one):
        await renew(played, one)
        await until(lambda: one.link._held is not None)
        one.ask(8)
        one.ask(9)
        await until(lambda: len(one.answers) == 3)
        assert played.seen == [*SIGNS_IN, (METADATA, 8), (METADATA, 9)]
        assert one.signer.sessions == [3600, 3600]
        assert len(played.writers) == 1


async def test_requests_before_a_renewal_are_answered_first():
    async with signed(GOOD) as (played, one):
        await renew(played, one)
        played.is_mute = True
        await until(lambda: one.link._session._renewing is None)
        one.ask(8)
        one.link._session._start_renewal()
        await until(lambda: len(played.seen) == 5)
        assert played.seen[3:] == [(METADATA, 8), (api.SASL_HANDSHAKE, 0)]


async def test_a_renewal_that_is_refused_ends_the_connection_and_answers_all():
    async with signed(GOOD) as (played, one):
        played.lifetime_ms = 3_600_000
        one.ask(7)
        await until(lambda: one.answers)
        played.secrets.clear()
        one.link._session._start_renewal()
        await until(lambda: one.link._held is not None)
        one.ask(8)
        await until(lambda: one.lost)
        assert "does not renew the session" in one.lost[0]
        assert one.answers == [(7, True), (8, False)]
        assert one.signer.rejected == [GOOD]


async def test_a_broker_that_vanishes_during_a_renewal_answers_all():
    async with signed(GOOD) as (played, one):
        played.lifetime_ms = 3_600_000
        one.ask(7)
        await until(lambda: one.answers)
        played.is_deaf = True
        one.link._session._start_renewal()
        await until(lambda: len(played.seen) == 6)
        one.ask(8)
        played.writers[0].close()
        await until(lambda: one.lost and len(one.answers) == 2)
        assert one.answers[1] == (8, False)


async def test_a_listener_whose_sessions_do_not_end_is_asked_once():
    async with signed(GOOD) as (played, one):
        played.lifetime_ms = 3_600_000
        one.ask(7)
        await until(lambda: one.answers)
        played.handshake_error = 34
        one.link._session._start_renewal()
        await until(lambda: one.link._session._renewing is None)
        one.ask(8)
        await until(lambda: len(one.answers) == 2)
        assert one.answers[1] == (8, True)
        assert one.lost == []


async def test_a_missing_token_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(signed_session, "RETRY_S", 0.0)
    async with signed(GOOD) as (played, one):
        await renew(played, one)
        await until(lambda: one.link._session._renewing is None)
        one.signer.refusals = 2
        one.link._session._start_renewal()
        await until(lambda: len(one.signer.sessions) == 3)
        assert one.lost == []


async def test_the_end_of_a_short_session_is_awaited_by_a_timer(monkeypatch):
    monkeypatch.setattr(signed_session, "SHORTEST_S", 0.0)
    async with signed(GOOD) as (played, one):
        played.lifetime_ms = 1
        one.ask(7)
        await until(lambda: len(one.signer.sessions) > 2)
        assert one.lost == []


async def test_an_idle_connection_is_opened_again_and_signed_in():
    async with signed(GOOD) as (played, one):
        one.ask(7)
        await until(lambda: one.answers)
        played.writers[0].close()
        await until(lambda: not one.link.is_connected)
        played.seen.clear()
        one.ask(8)
        await until(lambda: len(one.answers) == 2)
        assert played.seen == [*SIGNS_IN, (METADATA, 8)]
        assert one.link.reopened == 1


@pytest.mark.parametrize("sent", [b"\0\0\0\4\0\0\0\0" * 2, b"\x7f\xff\xff\xff", b"\0\0\0\0"])
async def test_a_broker_that_speaks_garbage_is_left(sent):
    async def accept(reader, writer):
        await reader.read(1)
        writer.write(sent)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    one = Signed(server.sockets[0].getsockname()[1], PlayedSigner(GOOD))
    one.ask(7)
    await until(lambda: one.lost)
    assert one.answers == [(7, False)]
    one.link.close()
    server.close()
