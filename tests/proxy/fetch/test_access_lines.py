"""Lines and sums of the access log for the partitions of a response, and their number of calls."""

from __future__ import annotations

import pytest

from metrics.access_log_schema import RESPONSE_PARTITIONS
from protocol.api import FETCH
from protocol.header import RequestHeader
from proxy.fetch.access_lines import LEAST_DELAY_S
from proxy.fetch.services import ClientFetch
from proxy.partitions.readable import PartitionOutcome, PartitionStatus, ReadState
from tests.proxy.cached_partition import END, World
from tests.proxy.followed_partition import TOPIC_ID
from tests.proxy.memory_log import Empty
from tests.proxy.session_messages import asked, fetch
from tests.proxy.tracing import count_calls

CALLS_A_LINE = 6
CALLS_A_SUM = 8
HEAD = RequestHeader(FETCH, 13, 1, None, 0)


@pytest.fixture
async def world():
    world = World()
    yield world
    world.end()


def log(world, *outcomes):
    """The response to one Fetch that names these has left."""
    request = fetch((0, -1), asked(TOPIC_ID, 0))
    asking = ClientFetch(world.link, HEAD, request, None, 100, 0.0)
    world.broker.accounts.enter(asking, outcomes, is_ours=True, delivered=True)


def outcome(world, index, size_bytes=0, offset=END, verdict=("hit", ""), followed=True, **more):
    """Of a partition whose high watermark is END, as is that of all that are followed."""
    state = ReadState.AT_END if verdict[0] == "hit" else ReadState.MISS
    partition = world.partition if followed else None
    status = PartitionStatus(asked(TOPIC_ID, index, offset), partition, state, verdict[1], END)
    return PartitionOutcome(status, size_bytes, *verdict, **more)


async def test_records_or_a_delay_make_a_line(world):
    log(
        world,
        outcome(world, 0, 5),
        outcome(world, 1),
        outcome(world, 2, verdict=("miss", "cold"), delay_s=LEAST_DELAY_S),
        outcome(world, 3, verdict=("miss", "cold"), delay_s=LEAST_DELAY_S / 2),
    )
    assert [(line.partition, line.bytes, line.delay_ms) for line in world.lines] == [
        (0, 5, None),
        (2, 0, LEAST_DELAY_S * 1000),
    ]
    client = world.link.client_id
    assert world.log.count_empty() == {
        Empty(client, "orders", 1, "hit", "", 0): 1,
        Empty(client, "orders", 3, "miss", "cold", 0): 1,
    }


@pytest.mark.parametrize(
    ("named", "lines"),
    [
        (0, []),
        (1, [1]),
        (RESPONSE_PARTITIONS, [RESPONSE_PARTITIONS]),
        (RESPONSE_PARTITIONS + 1, [RESPONSE_PARTITIONS, 1]),
        (3 * RESPONSE_PARTITIONS, [RESPONSE_PARTITIONS] * 3),
    ],
)
async def test_response_is_one_line_up_to_its_bound(world, named, lines):
    verdicts = [("hit", ""), ("miss", "cold")]
    log(world, *(outcome(world, index, 5, verdict=verdicts[index % 2]) for index in range(named)))
    assert [len(one) for one in world.log.responses] == lines
    assert [one.partition for one in world.lines] == list(range(named))


@pytest.mark.parametrize(
    ("behind", "lag"),
    [(-3, 0), (0, 0), (1, 1), (9, 1), (10, 10), (99, 10), (10**6, 10**6), (10**7 - 1, 10**6)],
)
async def test_lag_is_rounded_to_a_power_of_ten(world, behind, lag):
    world.partition.leader_state.high_watermark = 10**8
    log(world, outcome(world, 0, offset=10**8 - behind))
    assert [one.lag for one in world.log.count_empty()] == [lag]


async def test_the_lag_is_unknown_without_a_high_watermark(world):
    log(world, outcome(world, 7, followed=False))
    assert [one.lag for one in world.log.count_empty()] == [None]
    world.partition.leader_state.high_watermark = -1
    log(world, outcome(world, 1))
    assert {(one.partition, one.lag) for one in world.log.count_empty()} == {(7, None), (1, None)}


async def test_partition_missing_in_the_status_is_found(world):
    """A Fetch that passes knows no partitions, but Forebay may follow them for others."""
    log(world, outcome(world, 0, offset=END - 1, followed=False, verdict=("pass", "disabled")))
    (one,) = world.log.count_empty()
    assert (one.topic, one.lag) == ("orders", 1)


async def test_sum_has_the_client_id_of_its_request(world):
    for client_id in ("one", "other", "one"):
        world.link.client_id = client_id
        log(world, outcome(world, 0))
    assert [(one.client_id, n) for one, n in world.log.count_empty().items()] == [
        ("one", 2),
        ("other", 1),
    ]


async def test_calls_grow_with_partitions_that_have_records(world):
    """300 partitions, three with records: 34 calls, and 1,212 when each of them had a line."""

    def count(named, filled):
        outcomes = [outcome(world, index, 5 * (index < filled)) for index in range(named)]
        log(world, *outcomes)
        return count_calls(lambda: log(world, *outcomes))

    none, bare = count(0, 0), count(300, 0)
    assert count(30, 0) == bare <= none + CALLS_A_SUM
    assert count(300, 3) <= bare + 3 * CALLS_A_LINE
    assert count(3, 3) <= none + 3 * CALLS_A_LINE
