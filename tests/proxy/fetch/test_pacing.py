"""A connection's wide Fetches of which few partitions have records are paced; no other Fetch is."""

import asyncio

import pytest

from protocol.fetch import FetchPartition, scan_response
from protocol.fetch_build import build_request
from proxy.fetch.pacing import PAUSE_MOST_S, PAUSE_S, SPARSE, WIDE_PARTITIONS, Pacing
from tests.proxy.cached_partition import World
from tests.proxy.followed_partition import LEADERS, TOPIC_ID

END = 10
"""Where each partition ends."""
VERSION = 13


@pytest.mark.parametrize(
    ("partitions", "with_records", "pause_s"),
    [
        (WIDE_PARTITIONS, 1, WIDE_PARTITIONS * PAUSE_S),
        (WIDE_PARTITIONS, WIDE_PARTITIONS // SPARSE, WIDE_PARTITIONS * PAUSE_S),
        (WIDE_PARTITIONS, WIDE_PARTITIONS // SPARSE + 1, None),
        (100_000, 5, PAUSE_MOST_S),
    ],
)
def test_pause_follows_the_partitions_up_to_its_bound(partitions, with_records, pause_s):
    pacing = Pacing()
    pacing.answered(partitions, with_records, 7.0)
    assert pacing.until == (float("-inf") if pause_s is None else pytest.approx(7.0 + pause_s))


class Consumer:
    """Asks for `partitions` partitions without a session, each of which ends at END."""

    def __init__(self, partitions=WIDE_PARTITIONS):
        self.partitions = partitions
        self.world = World(verify_ratio=0.0, room_bytes=1 << 20, sizes=(1_000,))
        leaders = dict.fromkeys(range(partitions), LEADERS[0])
        self.world.broker.topics.learn("orders", TOPIC_ID, leaders)
        self.world.store_others(partitions)
        self._correlation_id = 0

    def fetch(self, with_records, *, max_wait_ms=60_000, max_bytes=1 << 20):
        """Ask so that `with_records` partitions have a record, and the others are at their end."""
        self._correlation_id += 1
        offsets = [END - (index < with_records) for index in range(self.partitions)]
        frame = build_request(
            VERSION,
            self._correlation_id,
            "c",
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            partitions=[
                FetchPartition(TOPIC_ID, index, -1, offset, -1, -1, 1 << 20)
                for index, offset in enumerate(offsets)
            ],
        )
        before = len(self.world.sent)
        self.world.receive(frame)
        return self.heard(before)

    def heard(self, before):
        """How many partitions of the response sent since `before` have records; None: there is none."""
        if len(self.world.sent) == before:
            return None
        response = scan_response(b"".join(self.world.sent[before:]), VERSION)
        assert len(response.partitions) == self.partitions
        return sum(one.end > one.start for one in response.partitions)


@pytest.fixture
async def consumer():
    consumer = Consumer()
    yield consumer
    if not consumer.world.link.upstream.closed:
        consumer.world.end()


async def test_next_fetch_gathers_what_arrives_in_the_pause(consumer):
    world = consumer.world
    assert consumer.fetch(1) == 1
    before = len(world.sent)
    assert consumer.fetch(1) is None, "it waits, although there is a record"
    world.arrive(1_000, index=5)
    assert len(world.sent) == before, "no record ends the pause"
    while consumer.heard(before) is None:
        await asyncio.sleep(0)
        world.clock_s += PAUSE_S
    assert consumer.heard(before) == 2
    assert world.broker.purgatory.parked == 0
    assert world.broker.counters.fetch.paced == 1


async def test_first_fetch_and_those_of_others_are_answered_at_once(consumer):
    assert consumer.fetch(1) == 1
    other = consumer.world.connect(type(consumer.world.transport)(1 << 20))
    assert other.handlers.pacing.until == float("-inf")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"with_records": WIDE_PARTITIONS // 2}, {"with_records": 1}),
        ({"with_records": 4, "max_bytes": 5_000}, {"with_records": 1}),
        ({"with_records": 1}, {"with_records": 1, "max_wait_ms": 0}),
    ],
    ids=["many had records", "its bytes were full", "the client waits for nothing"],
)
async def test_not_paced(consumer, first, second):
    assert consumer.fetch(**first)
    assert consumer.fetch(**second) == second["with_records"]


async def test_fetch_of_fewer_partitions_is_not_paced():
    consumer = Consumer(WIDE_PARTITIONS - 1)
    assert consumer.fetch(1) == 1
    assert consumer.fetch(1) == 1
    consumer.world.end()


async def test_pause_is_over_in_time(consumer):
    assert consumer.fetch(1) == 1
    consumer.world.clock_s = consumer.world.link.handlers.pacing.until
    assert consumer.fetch(1) == 1


async def test_paused_fetch_leaves_when_a_later_request_must_not_wait(consumer):
    assert consumer.fetch(1) == 1
    before = len(consumer.world.sent)
    assert consumer.fetch(1) is None
    assert consumer.world.leave()
    assert consumer.heard(before) == 1


async def test_lost_client_leaves_nothing_behind(consumer):
    assert consumer.fetch(1) == 1
    assert consumer.fetch(1) is None
    assert consumer.world.broker.purgatory.parked == 1
    consumer.world.end()
    assert consumer.world.broker.purgatory.parked == 0
    assert all(not one.parked for one in consumer.world.broker.partitions)


async def test_full_purgatory_pauses_nothing(consumer):
    assert consumer.fetch(1) == 1
    consumer.world.broker.purgatory.set_limit(0)
    assert consumer.fetch(1) == 1
    assert consumer.world.broker.counters.fetch.paced == 0
