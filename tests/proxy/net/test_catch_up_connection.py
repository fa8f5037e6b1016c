"""The catch-up connection against a played broker: its authentication, its loss, its retries."""

import asyncio
import base64
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from protocol import api, control
from proxy.accounting.counters import Counters
from proxy.net.broker_connection import Dial
from proxy.net.byte_budget import ByteBudget
from proxy.net.catch_up_connection import LONGEST_PAUSE_S, PAUSE_S, SILENCE_S, CatchUpConnection
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_signed_session import GOOD, SECRET, SIGNS_IN, PlayedSigner
from tests.proxy.token_broker import serve_tokens

VERSION = 2


def frame(correlation_id, body=b""):
    return (4 + len(body)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


def authenticated(correlation_id, error_code=0):
    body = b"\0" + error_code.to_bytes(2, "big") + b"\0\1" + bytes(8) + b"\0"
    return frame(correlation_id, body)


class PlayedBroker:
    """Accepts, keeps (API key, correlation id) of what comes, answers as the test says."""

    def __init__(self):
        self.writers, self.seen = [], []

    async def accept(self, reader, writer):
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                head = await reader.readexactly(size)
                self.seen.append(
                    (int.from_bytes(head[:2], "big"), int.from_bytes(head[4:8], "big"))
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, *frames):
        self.writers[-1].write(b"".join(frames))


class Client:
    """A catch-up connection, a clock, and the responses on it."""

    def __init__(self, port, uses_tokens=False):
        self.clock = 1000.0
        self.answers, self.done = [], []
        self.counters = Counters()
        self.broker = SimpleNamespace(
            now=lambda: self.clock, counters=self.counters, responses=ByteBudget(1 << 20)
        )
        self.principals = []
        self.broker.sign_ins = SimpleNamespace(open=self.sign)
        dial = Dial("127.0.0.1", port, None, None, PATIENCE_S, 1000) if port else None
        self.catch_up = CatchUpConnection(self.broker, dial, uses_tokens)

    def sign(self, principal):
        self.principals.append(principal)
        return PlayedSigner(GOOD)

    def scram(self, first=b"n,,n=alice,r=abc", mechanism="SCRAM-SHA-256", rounds=2):
        """The broker accepts so many messages of a SCRAM exchange."""
        handshake = control.build_sasl_handshake_request(1, 60, "c", mechanism=mechanism)
        self.catch_up.saw_handshake(handshake, mechanism)
        for number, said in enumerate((first, b"c=biws,r=abcdef,p=proof")[:rounds]):
            shown = control.build_sasl_authenticate_request(
                VERSION, 61 + number, "c", auth_bytes=said
            )
            self.catch_up.saw_accepted(shown, VERSION, lambda: self.done.append(60))

    def fetch(self):
        request = bytearray(frame(0, bytes(8)))
        request[4:6] = api.FETCH.to_bytes(2, "big")
        request[8:12] = bytes(4)
        self.catch_up.send(bytes(request), 0, self.answers.append)

    def sign_in(self, mechanism="PLAIN", correlation_id=50):
        handshake = control.build_sasl_handshake_request(
            1, correlation_id, "c", mechanism=mechanism
        )
        token = control.build_sasl_authenticate_request(
            VERSION, correlation_id + 1, "c", auth_bytes=b"\0u\0p"
        )
        self.catch_up.saw_handshake(handshake, mechanism)
        self.catch_up.saw_accepted(token, VERSION, lambda: self.done.append(correlation_id))


SHOWN = [(api.SASL_HANDSHAKE, 50), (api.SASL_AUTHENTICATE, 51)]
ASKED = (api.FETCH, 0)


@asynccontextmanager
async def played():
    broker = PlayedBroker()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    client = Client(server.sockets[0].getsockname()[1])
    try:
        yield broker, client
    finally:
        client.catch_up.close()
        for writer in broker.writers:
            writer.close()
        server.close()


async def fetch_and_see(broker, client):
    before = len(broker.seen)
    client.fetch()
    await until(lambda: len(broker.seen) > before)


def test_the_played_answer_is_one():
    assert control.is_authenticated(authenticated(51), VERSION)
    assert not control.is_authenticated(authenticated(51, 58), VERSION)


def test_no_address_means_no_catch_up_connection():
    client = Client(None)
    client.sign_in()
    assert (client.catch_up.usable, client.done) == (False, [50])
    client.catch_up.tick(0.0)
    client.catch_up.close()


async def test_first_request_opens_it_without_credentials():
    async with played() as (broker, client):
        assert client.catch_up.usable and not client.catch_up.is_connected
        client.fetch()
        await until(lambda: broker.seen == [ASKED])
        broker.answer(frame(0, b"records"))
        await until(lambda: client.answers == [frame(0, b"records")])
        assert client.counters.upstream.catch_up_requests == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_credentials_are_sent_before_requests(mechanism):
    async with played() as (broker, client):
        client.sign_in(mechanism)
        assert client.done == [50], "there is no link yet to show it on"
        client.fetch()
        await until(lambda: broker.seen == [*SHOWN, ASKED])
        broker.answer(frame(50, b"\0\0\0\0\0\0"), authenticated(51), frame(0))
        await until(lambda: client.answers == [frame(0)])


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", ""])
async def test_unrepeatable_exchange_keeps_the_first_connection(mechanism):
    async with played() as (_, client):
        client.sign_in(mechanism)
        assert (client.catch_up.usable, client.done) == (False, [50])


async def test_renewal_is_answered_once_both_connections_have_it():
    async with played() as (broker, client):
        client.sign_in()
        client.fetch()
        await until(lambda: broker.seen)
        broker.answer(frame(50, b"\0\0\0\0\0\0"), authenticated(51), frame(0))
        await until(lambda: client.answers)
        client.sign_in(correlation_id=60)
        await until(lambda: len(broker.seen) == 5)
        assert client.done == [50]
        broker.answer(frame(60, b"\0\0\0\0\0\0"), authenticated(61))
        await until(lambda: client.done == [50, 60])
        assert len(broker.writers) == 1


async def test_refused_renewal_ends_only_the_second_connection():
    async with played() as (broker, client):
        client.sign_in()
        client.fetch()
        await until(lambda: broker.seen)
        broker.answer(frame(50, b"\0\0\0\0\0\0"), authenticated(51), frame(0))
        await until(lambda: client.answers)
        client.sign_in(correlation_id=60)
        client.fetch()
        await until(lambda: len(broker.seen) == 6)
        broker.answer(frame(60, b"\0\0\0\0\0\0"), authenticated(61, 58))
        await until(lambda: client.done == [50, 60])
        assert client.answers == [frame(0), None]
        assert (client.catch_up.usable, client.counters.upstream.catch_up_losses) == (False, 1)


async def test_refusals_are_retried_after_doubling_pauses(caplog):
    async with played() as (broker, client):
        client.sign_in()
        pauses = []
        for number in range(6):
            client.fetch()
            await until(lambda asked=3 * (number + 1): len(broker.seen) == asked)
            broker.answer(frame(50, b"\0\0\0\0\0\0"), authenticated(51, 58))
            await until(lambda: not client.catch_up.is_connected)
            assert client.answers == [None] * (number + 1)
            began = client.clock
            while not client.catch_up.usable:
                client.clock += PAUSE_S / 2
            pauses.append(client.clock - began)
        assert pauses == [
            PAUSE_S,
            2 * PAUSE_S,
            4 * PAUSE_S,
            8 * PAUSE_S,
            LONGEST_PAUSE_S,
            LONGEST_PAUSE_S,
        ]
        assert client.counters.upstream.catch_up_losses == 6
        assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_response_resets_the_pause():
    async with played() as (broker, client):
        for answers in (False, False, True):
            await fetch_and_see(broker, client)
            if answers:
                broker.answer(frame(0))
                await until(lambda: client.answers[-1] == frame(0))
                await fetch_and_see(broker, client)
            broker.writers[-1].close()
            await until(lambda: not client.catch_up.is_connected)
            client.clock += 4 * PAUSE_S
        client.clock -= 3 * PAUSE_S
        assert client.catch_up.usable


async def test_close_within_a_frame_answers_none_once():
    async with played() as (broker, client):
        client.fetch()
        client.fetch()
        await until(lambda: len(broker.seen) == 2)
        broker.answer(frame(0, b"whole"), frame(0, b"half of it")[:9])
        await until(lambda: len(client.answers) == 1)
        broker.writers[-1].close()
        await until(lambda: len(client.answers) == 2)
        assert client.answers == [frame(0, b"whole"), None]
        assert (client.counters.upstream.catch_up_losses, client.catch_up.usable) == (1, False)
        client.clock += PAUSE_S
        assert client.catch_up.usable


@pytest.mark.parametrize("signed_in", [False, True])
async def test_idle_close_reopens_without_a_log_line(signed_in, caplog):
    async with played() as (broker, client):
        if signed_in:
            client.sign_in()
        for opened in (1, 2):
            client.fetch()
            await until(
                lambda opened=opened: len(broker.writers) == opened and broker.seen[-1:] == [ASKED]
            )
            if signed_in:
                broker.answer(frame(50, b"\0\0\0\0\0\0"), authenticated(51))
            broker.answer(frame(0))
            await until(lambda opened=opened: len(client.answers) == opened)
            broker.seen.clear()
            broker.writers[-1].close()
            await until(lambda: not client.catch_up.is_connected)
            assert client.catch_up.usable
        assert (client.counters.upstream.catch_up_losses, caplog.records) == (0, [])


async def test_silent_broker_loses_the_connection():
    async with played() as (broker, client):
        client.fetch()
        await until(lambda: broker.seen)
        client.catch_up.tick(client.clock + SILENCE_S - 0.01)
        assert client.answers == []
        client.catch_up.tick(client.clock + SILENCE_S)
        assert (
            client.answers,
            client.counters.upstream.catch_up_losses,
            client.catch_up.usable,
        ) == (
            [None],
            1,
            False,
        )


async def test_unanswered_renewal_does_not_hold_the_client():
    async with played() as (broker, client):
        client.sign_in()
        client.fetch()
        await until(lambda: broker.seen)
        broker.answer(frame(50, b"\0\0\0\0\0\0"), authenticated(51), frame(0))
        await until(lambda: client.answers)
        client.clock += 100
        client.sign_in(correlation_id=60)
        client.catch_up.tick(client.clock + SILENCE_S - 0.01)
        assert client.done == [50]
        client.catch_up.tick(client.clock + SILENCE_S)
        assert client.done == [50, 60]


async def test_bytes_that_come_slowly_are_no_silence():
    async with played() as (broker, client):
        client.fetch()
        await until(lambda: broker.seen)
        answer = frame(0, bytes(100))
        for at in range(0, 80, 20):
            broker.answer(answer[at : at + 20])
            await until(lambda at=at: client.catch_up.framed.pending_frame_bytes == at + 20)
            client.clock += SILENCE_S - 1
            client.catch_up.tick(client.clock)
        broker.answer(answer[80:])
        await until(lambda: client.answers == [answer])


async def test_slow_client_does_not_count_as_silence():
    async with played() as (broker, client):
        client.fetch()
        await until(lambda: broker.seen)
        client.catch_up.hold_reading(client)
        client.clock += 2 * SILENCE_S
        client.catch_up.tick(client.clock)
        client.catch_up.release_reading(client)
        client.catch_up.tick(client.clock + SILENCE_S - 0.01)
        assert client.answers == []


async def test_lost_client_ends_it_without_blame(caplog):
    async with played() as (broker, client):
        client.fetch()
        await until(lambda: broker.seen)
        client.catch_up.close()
        assert client.answers == [None]
        assert (client.catch_up.usable, client.catch_up.is_connected) == (False, False)
        assert (client.counters.upstream.catch_up_losses, caplog.records) == (0, [])


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_scram_user_is_signed_in_by_a_token(mechanism):
    async with serve_tokens({GOOD: base64.b64encode(SECRET)}) as (played, port):
        client = Client(port, uses_tokens=True)
        client.scram(mechanism=mechanism)
        assert (client.catch_up.usable, client.done) == (True, [60, 60])
        client.fetch()
        await until(lambda: client.answers)
        assert client.principals == ["alice"]
        assert played.seen == [*SIGNS_IN, ASKED]
        client.scram()  # the client authenticates anew
        assert client.catch_up.usable
        client.fetch()
        await until(lambda: len(client.answers) == 2)
        assert played.seen == [*SIGNS_IN, ASKED, ASKED]
        client.catch_up.close()


@pytest.mark.parametrize(
    ("uses_tokens", "exchange"),
    [
        (False, {}),
        (True, {"rounds": 1}),
        (True, {"rounds": 0}),
        (True, {"first": b"n,,n=id,r=abc,tokenauth=true"}),
        (True, {"first": b"n,,n=alice,r=abc,n=admin"}),
        (True, {"mechanism": "GSSAPI"}),
    ],
)
def test_whom_the_broker_has_not_accepted_by_scram_stays_on_the_first(uses_tokens, exchange):
    client = Client(1, uses_tokens)
    client.scram(**exchange)
    assert not client.catch_up.usable
    assert client.principals == []


async def test_a_certificates_principal_is_signed_in_by_a_token():
    async with serve_tokens({GOOD: base64.b64encode(SECRET)}) as (played, port):
        client = Client(port)
        client.catch_up.sign_in_as("CN=app")
        client.fetch()
        await until(lambda: client.answers)
        assert client.principals == ["CN=app"]
        assert played.seen == [*SIGNS_IN, ASKED]
        client.catch_up.close()
