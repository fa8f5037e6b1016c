"""Memory for read_committed: up to the LSO, as far as aborted transactions are known.

The partition stores 10 to 20, which is also its tail; epoch 5 is proven, the lease stands. Its log is told by steps,
one an offset from 10 on, of which transactions have seen as many as a case says.
"""

import pytest

from protocol.fetch import FetchPartition
from proxy.partitions.readable import ReadState, plan_given_up, plan_partition
from proxy.partitions.table import Partition
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker, learn, store
from tests.proxy.transactional_log import Log

UNCOMMITTED, COMMITTED = 0, 1
A, B = 1, 2
PLAIN = ("append",)
FIRST, AT_END = 10, 20


def build(
    steps, *, high_watermark=AT_END, stable=None, seen=None, known_from: int | None = FIRST
) -> tuple[QuietBroker, Partition]:
    """Steps are filled up with plain batches to the tail; `stable` is what the broker showed last."""
    broker = QuietBroker()
    partition = broker.follow()
    store(broker, partition, FIRST, AT_END)
    log = Log()
    log.append(count=FIRST)
    for name, *arguments in (*steps, *[PLAIN] * (AT_END - FIRST - len(steps))):
        getattr(log, name)(*arguments)
    if known_from is not None:
        partition.transactions.shown(known_from, known_from, 0, 0.0)
        partition.transactions.observed(
            *log.read(0, (AT_END if seen is None else seen) - FIRST + 1)
        )
    learn(partition, high_watermark, min(high_watermark, log.end) if stable is None else stable)
    return broker, partition


def look(broker, partition, offset, isolation=COMMITTED):
    asked = FetchPartition(TOPIC_ID, 0, EPOCH, offset, -1, -1, 1 << 20)
    status = plan_partition(broker.cache, asked, partition, isolation, 13, 0.0)
    return status.state, status.reason, status.limit_offset


OPEN_AT_14 = [PLAIN, PLAIN, PLAIN, PLAIN, ("data", A)]
ABORTED_TO_15 = [PLAIN, PLAIN, ("data", A), PLAIN, PLAIN, ("abort", A)]
COMMITTED_AT_18 = [PLAIN, PLAIN, ("data", A), *[PLAIN] * 5, ("commit", A)]


@pytest.mark.parametrize(
    ("steps", "options", "offset", "expected"),
    [
        ([], {}, 15, (ReadState.READABLE, "", 20)),
        ([], {}, 20, (ReadState.AT_END, "", 20)),
        ([], {}, 21, (ReadState.UNCONFIRMED, "unproven", 20)),
        (OPEN_AT_14, {"stable": 14}, 10, (ReadState.READABLE, "", 14)),
        (OPEN_AT_14, {"stable": 14}, 14, (ReadState.AT_END, "", 14)),
        (
            OPEN_AT_14,
            {"stable": 14},
            17,
            (ReadState.AT_END, "", 14),
        ),  # beyond the LSO it waits as at it
        (OPEN_AT_14, {"stable": 14}, 20, (ReadState.AT_END, "", 14)),
        (OPEN_AT_14, {"stable": 14}, 21, (ReadState.UNCONFIRMED, "unproven", 14)),
        (ABORTED_TO_15, {}, 10, (ReadState.READABLE, "", 20)),
        (ABORTED_TO_15, {}, 13, (ReadState.READABLE, "", 20)),
        (COMMITTED_AT_18, {"high_watermark": 18, "stable": 12}, 12, (ReadState.AT_END, "", 12)),
        (COMMITTED_AT_18, {"high_watermark": 19, "stable": 12}, 12, (ReadState.READABLE, "", 19)),
        ([], {"known_from": 12}, 11, (ReadState.MISS, "transaction", 20)),
        ([], {"known_from": 12}, 12, (ReadState.READABLE, "", 20)),
        ([], {"known_from": None}, 15, (ReadState.MISS, "transaction", 20)),
        ([], {"known_from": None}, 20, (ReadState.AT_END, "", 20)),
        ([], {"seen": 15}, 14, (ReadState.READABLE, "", 15)),
        (
            [],
            {"seen": 15},
            15,
            (ReadState.MISS, "transaction", 20),
        ),  # what lies below the tail is asked of nobody
    ],
)
def test_by_what_is_known_of_transactions(steps, options, offset, expected):
    assert look(*build(steps, **options), offset) == expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (10, (ReadState.READABLE, "", 12)),
        (12, (ReadState.IN_TRANSIT, "transaction", 21)),
        (20, (ReadState.IN_TRANSIT, "hole", 21)),
        (21, (ReadState.AT_END, "", 21)),
    ],
)
def test_expected_marker_is_waited_for(offset, expected):
    broker, partition = build([PLAIN, PLAIN, ("data", A)], high_watermark=21, stable=21)
    assert look(broker, partition, offset) == expected


def test_late_marker_is_a_miss():
    broker, partition = build([("data", A)], high_watermark=21, stable=21)
    asked = FetchPartition(TOPIC_ID, 0, EPOCH, 10, -1, -1, 1 << 20)
    status = plan_given_up(plan_partition(broker.cache, asked, partition, COMMITTED, 13, 0.0))
    assert (status.state, status.reason) == (ReadState.MISS, "transaction")
    assert status.offsets_known


def test_reader_at_the_lso_needs_no_records():
    """Forebay came in the middle of a long transaction: its consumers wait here all the same."""
    broker, partition = build([], stable=5, known_from=None)
    assert look(broker, partition, 5) == (ReadState.AT_END, "", 5)
    assert look(broker, partition, 4) == (ReadState.MISS, "cold", 5)
    assert look(broker, partition, 5, UNCOMMITTED) == (ReadState.MISS, "cold", 20)


def test_read_uncommitted_does_not_look_at_transactions():
    broker, partition = build(OPEN_AT_14, stable=14)
    assert look(broker, partition, 15, UNCOMMITTED) == (ReadState.READABLE, "", 20)
    assert look(broker, partition, 20, UNCOMMITTED) == (ReadState.AT_END, "", 20)


def test_an_lso_that_was_never_shown_holds_nobody():
    broker, partition = build([], known_from=None)
    partition.leader_state.last_stable_offset = -1
    assert look(broker, partition, 15) == (ReadState.UNCONFIRMED, "unproven", -1)


@pytest.mark.parametrize(("seen", "stable"), [(20, 20), (18, 14), (14, 14)])
def test_lso_is_the_greater_of_batches_and_response(seen, stable):
    steps = [*OPEN_AT_14, PLAIN, PLAIN, PLAIN, ("commit", A)]
    partition = build(steps, seen=seen, stable=12)[1]
    assert partition.last_stable_offset() == stable
    assert partition.readable_end(read_committed=True) == stable
    assert partition.readable_end(read_committed=False) == 20
    learn(partition, 20, 19)
    assert partition.last_stable_offset() == max(stable, 19)
