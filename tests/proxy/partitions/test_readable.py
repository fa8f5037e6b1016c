"""State of a partition of a Fetch in memory: each result and each reason, over a small real cache.

The partition has log start 0 and stores 10 to 20; where a case says nothing else, 20 is the high watermark,
the last stable offset and the tail, epoch 5 is proven, and the lease stands.
"""

from itertools import product

import pytest

from protocol.fetch import FetchPartition
from proxy.partitions.readable import (
    PartitionStatus,
    ReadState,
    find_limits,
    plan_absent,
    plan_given_up,
    plan_partition,
)
from proxy.partitions.table import Partition
from tests.proxy.followed_partition import EPOCH, LEASE_UNTIL_S, TOPIC_ID, QuietBroker, learn, store

UNCOMMITTED, COMMITTED = 0, 1
STRIDE = 7
"""It divides no count of values below, so that each two values of any two arguments meet."""


def build_stored(
    high_watermark=20, last_stable_offset=None, log_start_offset=0
) -> tuple[QuietBroker, Partition]:
    broker = QuietBroker()
    partition = broker.follow()
    store(broker, partition, 10, 20)
    learn(partition, high_watermark, last_stable_offset, log_start_offset)
    return broker, partition


def look(
    broker,
    partition,
    offset,
    *,
    isolation=UNCOMMITTED,
    version=13,
    now=0.0,
    epoch=EPOCH,
    fetched=-1,
):
    asked = FetchPartition(TOPIC_ID, 0, epoch, offset, fetched, -1, 1 << 20)
    status = plan_partition(broker.cache, asked, partition, isolation, version, now)
    assert status.asked is asked
    assert status.partition is partition
    return status.state, status.reason, status.limit_offset


@pytest.mark.parametrize(
    ("high_watermark", "offset", "expected"),
    [
        (20, 10, (ReadState.READABLE, "", 20)),
        (20, 19, (ReadState.READABLE, "", 20)),
        (15, 14, (ReadState.READABLE, "", 15)),
        (20, 20, (ReadState.AT_END, "", 20)),
        (15, 15, (ReadState.AT_END, "", 15)),  # stored, not yet visible: the client waits at the HW
        (25, 19, (ReadState.READABLE, "", 25)),
        (25, 20, (ReadState.IN_TRANSIT, "hole", 25)),
        (25, 24, (ReadState.IN_TRANSIT, "hole", 25)),
        (25, 25, (ReadState.AT_END, "", 25)),
        (20, 21, (ReadState.UNCONFIRMED, "unproven", 20)),
        (15, 16, (ReadState.UNCONFIRMED, "unproven", 15)),
        (20, 9, (ReadState.MISS, "cold", 20)),
        (20, 0, (ReadState.MISS, "cold", 20)),
    ],
)
def test_by_offset_and_high_watermark(high_watermark, offset, expected):
    assert look(*build_stored(high_watermark), offset) == expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (10, (ReadState.MISS, "locked", -1)),
        (9, (ReadState.MISS, "locked", -1)),
        (20, (ReadState.AT_END, "", 20)),
    ],
)
def test_an_arena_that_another_process_has_locked_is_left_to_the_broker(offset, expected):
    broker, partition = build_stored()
    broker.cache.reads_only = True
    broker.cache._a.shared = broker.cache._a.torn = broker.cache._a.lock_stuck = 1
    assert look(broker, partition, offset) == expected


def test_stored_offset_below_log_start_is_a_miss():
    broker, partition = build_stored(log_start_offset=12)
    assert look(broker, partition, 11)[0] is ReadState.MISS
    assert look(broker, partition, 12)[0] is ReadState.READABLE


@pytest.mark.parametrize("offset", [-1, -7, -(1 << 63)])
@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
def test_a_negative_offset_is_the_brokers_to_refuse(offset, isolation):
    broker, partition = build_stored()
    assert look(broker, partition, offset, isolation=isolation) == (ReadState.MISS, "cold", -1)


def test_negative_byte_limit_is_left_to_the_broker():
    broker, partition = build_stored()
    asked = FetchPartition(TOPIC_ID, 0, EPOCH, 15, -1, -1, -1)
    status = plan_partition(broker.cache, asked, partition, UNCOMMITTED, 13, 0.0)
    assert status == (asked, partition, ReadState.PASS, "version", -1)


def test_unproven_epoch_asks_the_broker():
    broker = QuietBroker()
    partition = broker.follow()
    assert look(broker, partition, 0) == (ReadState.UNCONFIRMED, "unproven", -1)


@pytest.mark.parametrize("offset", [15, 20])
def test_missing_lease_asks_the_broker(offset):
    broker, partition = build_stored()
    assert look(broker, partition, offset, now=LEASE_UNTIL_S) == (
        ReadState.UNCONFIRMED,
        "epoch",
        -1,
    )
    assert look(broker, partition, offset, now=LEASE_UNTIL_S - 1e-6)[0] in (
        ReadState.READABLE,
        ReadState.AT_END,
    )


def test_unstored_offset_needs_no_confirmation():
    broker, partition = build_stored()
    assert look(broker, partition, 5, now=LEASE_UNTIL_S) == (ReadState.MISS, "cold", 20)


def test_unchecked_epoch_is_confirmed():
    broker, partition = build_stored()
    partition.leader_state.frozen = True
    assert look(broker, partition, 15) == (ReadState.UNCONFIRMED, "epoch", -1)


@pytest.mark.parametrize(
    ("epoch", "fetched"), [(EPOCH - 1, -1), (EPOCH + 1, -1), (EPOCH, 4), (-1, 0)]
)
def test_other_epochs_are_left_to_the_broker(epoch, fetched):
    assert look(*build_stored(), 15, epoch=epoch, fetched=fetched) == (ReadState.MISS, "epoch", -1)


def test_a_client_without_an_epoch_is_served():
    assert look(*build_stored(), 15, epoch=-1) == (ReadState.READABLE, "", 20)


@pytest.mark.parametrize("epoch", [-1, EPOCH])
def test_proven_last_fetched_epoch_is_accepted(epoch):
    assert look(*build_stored(), 15, epoch=epoch, fetched=EPOCH) == (ReadState.READABLE, "", 20)


def test_old_formats_pass():
    broker, partition = build_stored()
    partition.old_format = True
    assert look(broker, partition, 15) == (ReadState.PASS, "old-format", -1)


@pytest.mark.parametrize(("version", "expected"), [(9, ReadState.PASS), (10, ReadState.READABLE)])
def test_zstd_passes_below_version_10(version, expected):
    broker, partition = build_stored()
    partition.zstd = True
    partition.leader_state.suggest(EPOCH, True)
    found = look(broker, partition, 15, version=version)
    assert found[0] is expected
    assert found[1] == ("version" if expected is ReadState.PASS else "")
    partition.zstd = False
    assert look(broker, partition, 15, version=9)[0] is ReadState.READABLE


@pytest.mark.parametrize("offset", [15, 20])
def test_old_client_is_served_by_known_leaders_only(offset):
    """Below version 11 a follower answers with an error, from then on with records (KIP-392)."""
    broker, partition = build_stored()
    assert look(broker, partition, offset, version=10) == (ReadState.MISS, "epoch", -1)
    assert look(broker, partition, offset, version=11)[0] in (ReadState.READABLE, ReadState.AT_END)
    partition.leader_state.suggest(EPOCH, True)
    assert look(broker, partition, offset, version=10)[0] in (ReadState.READABLE, ReadState.AT_END)
    learn(partition, 20, epoch=EPOCH + 1)
    assert look(broker, partition, offset, version=10, epoch=-1) == (ReadState.MISS, "epoch", -1)


def test_gap_between_stored_runs_is_a_hole():
    broker, partition = build_stored(40)
    store(broker, partition, 30, 40)
    assert look(broker, partition, 25) == (ReadState.MISS, "hole", 40)
    assert look(broker, partition, 20) == (ReadState.MISS, "hole", 40)
    partition.topic.learn_policy(False)
    assert look(broker, partition, 15) == (ReadState.READABLE, "", 40)


def test_compacted_topic_is_not_served_below_holes():
    """The hole may have held the tombstone of what is stored below it."""
    broker, partition = build_stored(40)
    assert look(broker, partition, 15) == (
        ReadState.READABLE,
        "",
        40,
    )  # what is missing at the tail is on its way
    store(broker, partition, 30, 40)
    assert look(broker, partition, 15) == (ReadState.MISS, "hole", 40)
    assert look(broker, partition, 30) == (ReadState.READABLE, "", 40)
    store(broker, partition, 20, 30)
    assert look(broker, partition, 15) == (ReadState.READABLE, "", 40)


def test_miss_names_only_known_offsets():
    broker, partition = build_stored(log_start_offset=5)
    asked = FetchPartition(TOPIC_ID, 0, EPOCH, 7, -1, -1, 1 << 20)

    def status(**changes):
        return plan_partition(
            broker.cache, asked._replace(**changes), partition, UNCOMMITTED, 13, 0.0
        )

    assert status().offsets_known
    assert status().lagging
    assert not status(
        fetch_offset=4
    ).offsets_known  # below the log start: an error is the broker's to tell
    assert not status(fetch_offset=15, current_leader_epoch=EPOCH + 1).offsets_known


@pytest.mark.parametrize(
    ("look_before", "look_after", "limit"),
    [
        (ReadState.IN_TRANSIT, ReadState.MISS, 20),
        (ReadState.UNCONFIRMED, ReadState.MISS, -1),
        (ReadState.READABLE, ReadState.READABLE, 20),
        (ReadState.AT_END, ReadState.AT_END, 20),
    ],
)
def test_late_records_are_a_miss(look_before, look_after, limit):
    asked = FetchPartition(TOPIC_ID, 0, EPOCH, 7, -1, -1, 1 << 20)
    given_up = plan_given_up(PartitionStatus(asked, None, look_before, "hole", 20))
    assert (given_up.state, given_up.limit_offset) == (look_after, limit)


def test_records_of_an_evicted_block_are_evicted():
    broker = QuietBroker(64 * 1024)
    partition = broker.follow()
    for first in range(0, 1000, 10):
        store(broker, partition, first, first + 10)
    learn(partition, 1000)
    assert broker.cache.statistics().evicted_bytes > 0
    assert look(broker, partition, 0) == (ReadState.MISS, "evicted", 1000)
    assert look(broker, partition, 999) == (ReadState.READABLE, "", 1000)
    assert plan_absent(broker.cache, partition, 0) == "evicted"


def test_stored_records_are_readable_unless_forbidden():
    """Of all combinations every STRIDE-th is tried."""
    seen = set()
    flags = (False, True)
    number = 0
    for high_watermark, stable, log_start, hole, compacted, version, leads, knows in product(
        (12, 20, 40), (5, 12, 40), (0, 12), flags, flags, (9, 10, 13), flags, flags
    ):
        broker, partition = build_stored(high_watermark, stable, log_start)
        partition.topic.learn_policy(compacted)
        if hole:
            store(broker, partition, 30, 40)
        if leads:
            partition.leader_state.suggest(EPOCH, True)
        if knows:
            partition.transactions.shown(0, 0, 0, 0.0)
            partition.transactions.observed(b"", (), 0, 18)
        for offset, isolation, epoch, fetched, change in product(
            (9, 10, 11, 12, 15, 19, 20, 35, 40),
            (UNCOMMITTED, COMMITTED),
            (-1, EPOCH, EPOCH + 1),
            (-1, EPOCH, 4),
            (None, "frozen", "old_format", "zstd", "lapsed"),
        ):
            number += 1
            if number % STRIDE:
                continue
            partition.leader_state.frozen = change == "frozen"
            partition.old_format, partition.zstd = change == "old_format", change == "zstd"
            now = LEASE_UNTIL_S if change == "lapsed" else 0.0
            asked = FetchPartition(TOPIC_ID, 0, epoch, offset, fetched, -1, 1 << 20)
            limit = high_watermark
            if isolation == COMMITTED:
                limit = partition.last_stable_offset()
            stored_end = 20 if 10 <= offset < 20 else 40 if hole and 30 <= offset < 40 else offset
            listed_end = 18 if knows else 0
            is_served = (
                {epoch, fetched} <= {-1, EPOCH}
                and (leads or version >= 11)
                and (change is None or (change == "zstd" and version >= 10))
            )
            is_readable = (
                is_served
                and log_start <= offset < min(limit, stored_end)
                and (not compacted or stored_end >= min(limit, partition.tail))
                and (isolation == UNCOMMITTED or offset < listed_end)
            )
            is_at_end = is_served and max(log_start, limit) <= offset <= high_watermark
            expected = -2 - limit if is_at_end else -1
            if isolation == COMMITTED:
                limit = min(limit, listed_end)
            if is_readable:
                expected = limit
            args = broker.cache, asked, partition, isolation, version, now
            status = plan_partition(*args)
            among = find_limits(broker.cache, [asked] * 3, [None, partition, partition], *args[3:])
            assert among == [-1, expected, expected], (status, change)
            assert (status.state is ReadState.READABLE) is is_readable
            assert (status.state is ReadState.AT_END) is is_at_end
            assert not is_at_end or (status.reason, status.limit_offset) == ("", -2 - expected)
            assert not is_readable or (status.reason, status.limit_offset) == ("", limit)
            seen.add((status.state, is_readable, isolation))
    assert (ReadState.READABLE, True, False) in seen and (ReadState.READABLE, True, True) in seen
    assert {look for look, _, _ in seen} == set(ReadState)


def test_unproven_epoch_has_no_limit():
    broker = QuietBroker()
    partition = broker.follow()
    asked = FetchPartition(TOPIC_ID, 0, -1, 0, -1, -1, 1 << 20)
    assert find_limits(broker.cache, [asked], [partition], UNCOMMITTED, 13, 0.0) == [-1]


def test_newer_epoch_of_a_client_awaits_proof() -> None:
    broker, partition = build_stored()
    assert look(broker, partition, 15, epoch=EPOCH + 1) == (ReadState.MISS, "epoch", -1)
    partition.leader_state.suggest(EPOCH + 1, True)
    assert look(broker, partition, 15, epoch=EPOCH + 1) == (ReadState.UNCONFIRMED, "epoch", -1)
    assert look(broker, partition, 15, epoch=EPOCH + 2) == (ReadState.MISS, "epoch", -1)
    assert look(broker, partition, 15, epoch=EPOCH)[0] is ReadState.READABLE
