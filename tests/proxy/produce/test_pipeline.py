"""A pipelined Produce looks the same as an ordinary one to client, broker, counters and arena."""

import asyncio
import fcntl
import random
import socket
import sys
from contextlib import contextmanager

import pytest

from proxy.broker import Broker
from proxy.produce.pipeline import RING
from tests.kit.played import ISOLATED, OFF, ON
from tests.proxy.pipeline_pair import twins

SETTINGS = {
    "passing": {**OFF, "limits": {"pipelinedRequests": 6}},
    "isolation": ISOLATED,
    "admission": ON,
    "few slots": {
        **ON,
        "isolation": {
            "dataSlots": {"floor": 1, "initial": 2, "ceiling": 3},
            "maxQueueWait": "300ms",
        },
    },
}
SEEDS, STEPS = 25, 80
SIOCOUTQNSD = 0x894B
"""Linux: the bytes that a socket's peer was not sent yet (linux/sockios.h)."""


@contextmanager
def listening_pair():
    """Two ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        theirs, _ = server.accept()
        with theirs:
            yield ours, theirs


def count_unsent(ours):
    return int.from_bytes(fcntl.ioctl(ours, SIOCOUTQNSD, bytes(4)), sys.byteorder)


@pytest.fixture(params=list(SETTINGS.values()), ids=list(SETTINGS))
async def pair(request, tmp_path):
    """Connected to the broker, with one Produce answered."""
    with twins(tmp_path, request.param) as pair:
        pair.do("feed", pair.request())
        for _ in range(5):
            await asyncio.sleep(0)
        for partition in (0, 0, 1):
            pair.do("feed", pair.request(partition=partition))
            answer_all(pair)
        yield pair


def answer_all(pair):
    while True:
        pair.do("read")
        if not pair.owed():
            return
        pair.do("answer", pair.build_answer(pair.waiting.pop(0)))
        pair.check()


def test_pipelined_produce_is_acknowledged(pair):
    for number in range(20):
        pair.do("feed", pair.request(partition=number % 2))
        assert pair.flying.in_flight == 1 and pair.other.in_flight == 0
        pair.check()
        answer_all(pair)
        assert pair.flying.in_flight == 0
    assert len(pair.flying.to_client) > 0 and pair.flying.link.replies.oldest is None


class Script:
    """Steps at random; each may be done at any time."""

    def __init__(self, pair, seed):
        self.pair = pair
        self.random = random.Random(seed)
        self.sequences = {}

    def request(self):
        topic, partition = (
            self.random.choice(["orders", "orders", "other"]),
            self.random.choice([0, 0, 1]),
        )
        producer = None
        if self.random.random() < 0.3:
            key = (topic, partition)
            sequence = self.sequences[key] = self.sequences.get(key, -1) + 1
            producer = (7, 0, max(sequence - self.random.choice([0, 0, 0, 0, 2]), 0))
        return self.pair.request(topic, partition, producer, self.random.choice([-1] * 8 + [1, 0]))

    def ask(self):
        self.pair.do("feed", self.request())

    def ask_at_once(self):
        self.pair.do("feed", b"".join(self.request() for _ in range(self.random.randint(2, 4))))

    def ask_in_parts(self):
        frame = self.request()
        cut = self.random.randrange(1, len(frame))
        self.pair.do("feed", frame[:cut])
        if self.random.random() < 0.5:
            self.answer()
        self.pair.do("feed", frame[cut:])

    def ask_several(self):
        self.pair.do("feed", self.pair.request_several())

    def ask_else(self):
        self.pair.do("feed", self.pair.control())

    def answer(self):
        self.pair.do("read")
        if self.pair.owed():
            error = self.random.choice([0] * 9 + [6])
            self.pair.do("answer", self.pair.build_answer(self.pair.waiting.pop(0), error))

    def answer_several(self):
        self.pair.do("read")
        count = min(len(self.pair.owed()), self.random.randint(1, 3))
        answers = [self.pair.build_answer(self.pair.waiting.pop(0)) for _ in range(count)]
        if answers:
            self.pair.do("answer", b"".join(answers))

    def park(self):
        self.pair.do("park")

    def wake(self):
        self.pair.do("wake")

    def read(self):
        self.pair.do("read")

    def fill(self):
        self.pair.do("fill", self.random.choice(["front", "back"]))

    def sip(self):
        self.pair.do("sip", self.random.choice(["front", "back"]))

    def wait(self):
        self.pair.clock[0] += self.random.choice([0.001, 0.02, 0.1, 0.6])
        self.pair.do("pass_time")

    def look(self):
        self.pair.do("status")

    def learn(self):
        number = self.random.randrange(4)
        name, index = ("orders", "other")[number // 2], number % 2
        high_watermark = self.pair.offsets[name, index]
        self.pair.do(
            "learn", number, self.random.choice([0, 0, 0, 1]), high_watermark, high_watermark, 0
        )

    def forget(self):
        for world in self.pair.worlds:
            world.broker.routes.clear()

    def run(self, steps):
        weighed = {
            self.ask: 30,
            self.ask_at_once: 6,
            self.ask_in_parts: 4,
            self.ask_else: 3,
            self.ask_several: 4,
            self.answer: 30,
            self.answer_several: 6,
            self.read: 6,
            self.fill: 3,
            self.wait: 8,
            self.look: 2,
            self.learn: 4,
            self.forget: 1,
            self.park: 1,
            self.wake: 4,
            self.sip: 5,
        }
        for _ in range(steps):
            (step,) = self.random.choices(list(weighed), list(weighed.values()))
            step()
            self.pair.check()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_happens_nobody_can_tell(pair, seed):
    Script(pair, seed).run(STEPS)
    while pair.flying.parked:
        pair.do("wake")
    answer_all(pair)
    seen = pair.check()
    assert pair.flying.flown > 0
    assert seen["line"] == seen["unanswered"] == 0 and seen["held"] == (0, 0, 0)
    queues, _, in_line = pair.do("status")
    assert not in_line and not any(queue["in_use"] for queue in queues.values())


@pytest.mark.parametrize("ends", ["client finishes", "client is lost", "broker is lost", "drained"])
@pytest.mark.parametrize("seed", range(SEEDS // 5))
async def test_however_it_ends_nothing_is_left(pair, ends, seed):
    script = Script(pair, seed)
    script.run(STEPS // 4)
    for _ in range(3):
        script.ask()
    pair.check()
    for world in pair.worlds:
        if ends == "client finishes":
            world.link.framed.eof_received()
        elif ends == "client is lost":
            world.link.framed.connection_lost(ConnectionResetError())
        elif ends == "drained":
            world.link.finish()
        else:
            world.link.upstream.framed.connection_lost(None)
    pair.check()
    answer_all(pair)
    seen = pair.check()
    assert seen["held"][:2] == (0, 0) and pair.flying.in_flight == 0
    assert not any(queue["in_use"] for queue in pair.do("status")[0].values())


async def test_request_beyond_the_pipeline_limit_is_queued(pair):
    for _ in range(RING + 2):
        pair.do("feed", pair.request())
        assert pair.flying.in_flight <= RING
        pair.check()
    answer_all(pair)


@pytest.mark.parametrize("is_last_pipelined", [True, False])
@pytest.mark.parametrize("pair", [SETTINGS["passing"], SETTINGS["admission"]], indirect=True)
async def test_requests_of_one_read_leave_at_its_end(pair, is_last_pipelined):
    with listening_pair() as (ours, theirs):
        framed = pair.flying.link.upstream.framed
        framed.plain_fd = framed.free_fd = ours.fileno()
        sent = pair.request() + pair.request()
        last = pair.request() if is_last_pipelined else pair.control()
        pair.flying.feed(sent + last)
        assert count_unsent(ours) == 0
        expected = sent + last if is_last_pipelined else sent
        assert theirs.recv(len(expected), socket.MSG_WAITALL) == expected


async def test_unexpected_response_is_not_taken(pair):
    ours = pair.flying.link.pipeline
    assert not ours.try_forward(pair.control(), False) and not ours.try_forward(b"", False)
    pair.do("feed", pair.request())
    if pair.flying.in_flight:
        other = pair.build_answer((pair.correlation_id + 1, "orders", 0))
        assert not any(ours.complete(one, False) for one in (other, b"1234567", memoryview(other)))
        assert len(ours) == 1
    pair.check()
    answer_all(pair)


async def test_produce_behind_a_delayed_fetch_is_not_late(pair):
    pair.do("park")
    pair.do("feed", pair.request())
    assert pair.flying.in_flight
    for _ in range(3):
        pair.clock[0] += 0.6
        pair.do("pass_time")
        _, health, _ = pair.do("status")
        assert not health["hanging"]
    pair.do("wake")
    answer_all(pair)


async def test_materialized_request_is_not_answered_by_the_pipeline(pair, monkeypatch):
    for _ in range(2):
        pair.do("feed", pair.request())
    admitted = Broker.admit_produced

    def admit(broker, *values):
        broker.scheduler._materialize()
        admitted(broker, *values)

    monkeypatch.setattr(Broker, "admit_produced", admit)
    pair.do("read")
    pair.owed()
    pair.do("answer", pair.build_answer(pair.waiting.pop(0)))
    pair.check()
    answer_all(pair)
