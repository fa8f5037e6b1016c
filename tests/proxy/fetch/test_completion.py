"""A Fetch with one partition in memory waits for the miss fetches of the others, for a limited time."""

import pytest

from protocol import fetch, header
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.fetch.completion import READ_WAIT_S
from tests.kit import fetch_messages
from tests.protocol.batches import batch_v2
from tests.proxy.answering_broker import Scene, said_of
from tests.proxy.event_loop import until
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, known
from throttle.tickets import DelayTicket, TicketKey

HEARTBEAT = b"\0\0\0\x0a" + b"\0\x0c\0\0" + b"\0\0\0\x2a" + b"\xff\xff"
RECORDS = batch_v2(3)


class Mixed(Scene):
    """Memory has partition 0; of partition 1 only the broker has what lies below its tail."""

    def __init__(self):
        super().__init__()
        other = known(self.broker.partitions.follow(known(self.topic), 1))
        other.leader_state.learn(EPOCH, 5, 5, 0, self.clock_s + 3600)
        other.leader_state.frozen = False
        other.tail = 5
        for partition in (self.partition, other):
            partition.open_polls = 1

    async def fetch(self, link=None, **limits):
        """One Fetch of both from their start."""
        asked = [FetchPartition(TOPIC_ID, index, -1, 0, -1, -1, 1 << 20) for index in range(2)]
        limits = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            **limits,
        }
        frame = build_request(
            13, 7, "c", session_id=0, session_epoch=-1, partitions=asked, **limits
        )
        (link or self.link).framed.data_received(frame)
        await self.turn()

    def read(self):
        """The broker answers the read beside."""
        self.answer_fetch(said_of(TOPIC_ID, 1, RECORDS, high_watermark=5))

    def sizes(self):
        """Record bytes of each partition of the last answer."""
        said, _ = self.hear()
        return {one.partition: max(one.end - one.start, 0) for one in said.partitions}

    @property
    def told(self):
        """Partition, result and reason of each line, then of each partition named without records."""
        return [(line.partition, line.result, line.reason) for line in self.lines] + [
            (one.partition, one.result, one.reason) for one in self.log.count_empty()
        ]


@pytest.mark.parametrize("max_wait_ms", [0, 500])
async def test_response_has_the_records_read_for_it(max_wait_ms):
    scene = Mixed()
    await scene.fetch(max_wait_ms=max_wait_ms)
    (asked,) = scene.asked
    request = fetch_messages.scan_request(asked, 13, header.peek_request(asked).body_start)
    assert [one.partition for one in request.partitions] == [1]
    assert scene.sent == []
    scene.read()
    assert scene.sizes()[0] > 0
    assert scene.sizes()[1] == len(RECORDS)
    assert scene.told == [(0, "hit", ""), (1, "miss", "cold")]


@pytest.mark.parametrize(
    ("max_wait_ms", "most_s"), [(500, READ_WAIT_S), (20, 0.02), (0, READ_WAIT_S)]
)
async def test_fetch_waits_at_most_the_read_wait(max_wait_ms, most_s):
    scene = Mixed()
    await scene.fetch(max_wait_ms=max_wait_ms)
    scene.clock_s += most_s * 0.9
    for waiting in list(scene.partition.parked):
        waiting.wake(scene.partition)
    assert scene.sent == []
    scene.clock_s += most_s * 0.2
    await until(lambda: scene.sent)
    assert scene.sizes()[0] > 0 == scene.sizes()[1]
    assert scene.told == [(0, "hit", ""), (1, "miss", "pending")]
    scene.read()
    await scene.fetch()
    assert scene.sizes()[1] == len(RECORDS), "what came late is the next one's"


async def test_slow_read_delays_only_one_fetch():
    scene = Mixed()
    await scene.fetch()
    scene.clock_s += READ_WAIT_S
    await until(lambda: scene.sent)
    await scene.fetch()
    assert len(scene.sent) == 2


async def test_later_request_calls_the_fetch_away():
    scene = Mixed()
    await scene.fetch()
    scene.receive(HEARTBEAT)
    assert scene.sizes()[0] > 0 == scene.sizes()[1]


async def test_a_client_that_has_finished_calls_it_away():
    scene = Mixed()
    await scene.fetch()
    scene.link.framed.eof_received()
    assert scene.sizes()[0] > 0 == scene.sizes()[1]


async def test_throttled_read_is_not_waited_for(monkeypatch):
    scene, held = Mixed(), []

    def submit(_link, client_id, status, size_bytes, go):
        asked = status.asked
        key = TicketKey(None, asked.partition, asked.fetch_offset)
        ticket = DelayTicket(key, client_id, "sdx", size_bytes, scene.clock_s)
        held.append((ticket, go))
        return ticket

    monkeypatch.setattr(scene.broker.disk_throttle, "submit", submit)
    await scene.fetch()
    assert scene.sizes()[0] > 0 == scene.sizes()[1]
    ((ticket, go),) = held
    ticket.granted_s = scene.clock_s = scene.clock_s + 1
    go()
    await scene.fetch()
    assert len(scene.sent) == 2, "nor while it is under way"
    scene.read()
    await scene.fetch()
    assert scene.sizes()[1] == len(RECORDS)


async def test_slow_shared_read_is_not_waited_for():
    scene = Mixed()
    await scene.fetch()
    scene.clock_s += READ_WAIT_S
    transport = scene.other.framed._transport
    await scene.fetch(scene.other)
    said = fetch.scan_response(transport.pieces[-1], 13)
    assert {one.partition: one.end > one.start for one in said.partitions} == {0: True, 1: False}
    assert len(scene.asked) == 1, "it has joined"


async def test_full_purgatory_answers_at_once(monkeypatch):
    """At the bound of fetches that wait, hits do not become misses."""
    scene = Mixed()
    monkeypatch.setattr(scene.broker.purgatory, "park", lambda _link, _fetch: False)
    await scene.fetch()
    assert scene.sizes()[0] > 0 == scene.sizes()[1]
