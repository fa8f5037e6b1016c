"""The check at the start: tried until it works, with the reason meanwhile.

Owns a loopback broker that takes tokens, and signers that have one or not. Invariant: nothing sleeps.
"""

import base64
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from proxy.accounting.counters import Counters
from proxy.config.model import Config
from proxy.identity import sign_in_check
from proxy.identity.sign_in_check import UNCHECKED, SignInCheck, SignInPlace
from proxy.net.broker_connection import Dial
from proxy.net.byte_budget import ByteBudget
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.followed_partition import stand_in
from tests.proxy.net.test_signed_session import GOOD, SECRET, PlayedSigner
from tests.proxy.token_broker import serve_tokens

LISTENERS = [{"listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}]
NO_APIS = b"\0\0" + b"\1" + bytes(4) + b"\0"
"""The body of an ApiVersions answer without an error, version 3."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(sign_in_check, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(sign_in_check, "LONGEST_PAUSE_S", 0.0)


@asynccontextmanager
async def checked(places=1):
    """A check of so many listeners, all at one port; the broker, and the signers that were opened."""
    async with serve_tokens({GOOD: base64.b64encode(SECRET)}) as (played, port):
        played.other_body = NO_APIS
        opened = []

        def sign(principal):
            assert principal == "somebody"
            opened.append(PlayedSigner(GOOD))
            opened[-1].refusals = max(0, 3 - len(opened))
            return opened[-1]

        config = {"listeners": LISTENERS, "delegationTokens": {"checkPrincipal": "somebody"}}
        services = SimpleNamespace(
            sign_ins=SimpleNamespace(open=sign),
            config=Config.model_validate(config),
            responses=ByteBudget(1 << 20),
            counters=Counters(),
            version="0",
        )
        dial = Dial("127.0.0.1", port, None, None, PATIENCE_S, 1000)
        check = SignInCheck(stand_in(services), [SignInPlace("default", dial)] * places)
        yield check, played, opened
        check.stop()


async def test_it_is_tried_until_it_works_and_says_why_not(caplog):
    async with checked() as (check, played, opened):
        assert check.problem == UNCHECKED
        check.start()
        await until(lambda: check.problem == "there is no token")
        await until(lambda: check.problem == "")
        assert len(opened) == 3
        assert all(signer.is_closed for signer in opened)
        assert caplog.text.count("cannot sign in for clients: there is no token") == 1
        assert len(played.writers) == 1


async def test_all_listeners_are_tried():
    async with checked(places=3) as (check, played, _):
        check.start()
        await until(lambda: check.problem == "")
        assert len(played.writers) == 3


async def test_a_listener_without_sasl_is_the_reason():
    async with checked() as (check, played, _):
        played.handshake_error = 34
        check.start()
        await until(lambda: "no SASL" in check.problem)
        played.handshake_error = 0
        await until(lambda: check.problem == "")


async def test_nothing_is_tried_where_nobody_needs_it():
    check = SignInCheck(stand_in(SimpleNamespace()), [])
    check.start()
    assert check.problem == ""
    check.stop()
