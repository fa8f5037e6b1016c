"""Storing of an acknowledged batch, and the tail after a response."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from proxy.partitions._rows import lib

from protocol.batch import CONTROL, TRANSACTIONAL
from protocol.produce_rows import Row, keep_rows
from proxy.partitions import forwarded as in_flight
from proxy.partitions import store
from proxy.partitions.forwarded import (
    AS_SENT,
    NOT_STORED,
    SAMPLED,
    STAMPED,
    Forwarded,
    forward_batches,
    judge,
)
from proxy.partitions.producer_state import CHECKS, DuplicateCheck
from proxy.partitions.store import explain_not_stored
from tests.kit.cache_batches import build_run, insert, read
from tests.proxy.followed_partition import EPOCH, QuietBroker, known, learn

NONE, GZIP, ZSTD = 0, 1, 4


def build_sent(*, magic=2, codec=NONE, sequence=-1, producer_id=-1, count=10):
    return Row(0, 7, 0, 7, 107, magic, codec, count - 1, producer_id, 0, sequence, count)


def plan(one, base_offset):
    """ "store", "sample", or the reason for neither."""
    judged = judge(one, base_offset)
    names = {SAMPLED: "sample", STAMPED: "store", AS_SENT: "store"}
    return names.get(judged) or explain_not_stored(one, base_offset)


def note(partition, row):
    target = SimpleNamespace(partition=partition, row=partition.row)
    batches = known(forward_batches(keep_rows((row,)).native, (target,)))
    ((_, one),) = in_flight._iterate(batches, [0], 1)
    states = one.epoch, one.high_watermark, one.generation
    return Forwarded(partition, row, CHECKS[one.duplicate_check], *states)


def build_partition(*, log_append_time=False, equal=(NONE,), high_watermark=100, frozen=False):
    partition = QuietBroker().follow()
    learn(partition, high_watermark)
    partition.leader_state.frozen = frozen
    if log_append_time is not None:
        partition.topic.fidelity.learn(log_append_time)
    for codec in equal:
        partition.topic.fidelity.trust(codec)
    return partition


FRESH: dict[str, Any] = {
    "duplicate_check": DuplicateCheck.NOT_DUPLICATE,
    "epoch": EPOCH,
    "high_watermark": 100,
    "generation": 0,
}


@pytest.mark.parametrize(
    ("topic", "sent", "forwarded", "base_offset", "expected"),
    [
        ({}, {}, {}, 100, "store"),
        ({}, {}, {}, 500, "store"),  # acknowledgements of several connections arrive in any order
        ({"log_append_time": True}, {}, {}, 100, "store"),
        ({}, {"codec": GZIP}, {}, 100, "sample"),
        ({"equal": ()}, {}, {}, 100, "sample"),
        ({"equal": (), "log_append_time": None}, {}, {}, 100, "unlike"),
        ({}, {"magic": 1}, {}, 100, "old-format"),
        ({}, {"magic": 1}, {"epoch": -1}, 100, "old-format"),
        ({}, {}, {"epoch": -1}, 100, "no-epoch"),
        ({}, {}, {"epoch": EPOCH - 1}, 100, "no-epoch"),
        ({}, {}, {"epoch": -1, "duplicate_check": DuplicateCheck.RESENT}, 100, "no-epoch"),
        ({}, {}, {"duplicate_check": DuplicateCheck.UNDECIDED}, 100, "warm-up"),
        ({}, {}, {"duplicate_check": DuplicateCheck.RESENT}, 100, "resent"),
        ({}, {}, {"duplicate_check": DuplicateCheck.RESENT}, 99, "resent"),
        ({}, {}, {}, 99, "below-hw"),
        ({"equal": ()}, {}, {}, 99, "below-hw"),
        ({}, {}, {"high_watermark": -1}, 0, "store"),
        ({}, {}, {"generation": -1}, 100, "unlike"),
        ({"frozen": True}, {}, {}, 100, "no-epoch"),
        ({}, {}, {"high_watermark": -1}, -1, "below-hw"),
    ],
)
def test_judgement_and_storing_of_a_batch(topic, sent, forwarded, base_offset, expected):
    batch = build_sent(**sent)
    planned = Forwarded(build_partition(**topic), batch, **(FRESH | forwarded))
    assert plan(planned, base_offset) == expected


def expect_judgement(partition, one, base_offset):
    """What is stored unchanged, changed, only sampled or not at all: in words of the broker's rules."""
    leader_state, fidelity = partition.leader_state, partition.topic.fidelity
    is_known = one.epoch == leader_state.epoch >= 0 and one.generation == fidelity.generation
    is_new = base_offset >= max(one.high_watermark, leader_state.log_start_offset, 0)
    is_fresh = one.duplicate_check is DuplicateCheck.NOT_DUPLICATE
    if not (is_known and is_new and is_fresh) or fidelity.log_append_time is None:
        return NOT_STORED
    codec = one.row.attributes & 7
    if codec not in (NONE, ZSTD):
        return SAMPLED
    is_changed = fidelity.log_append_time or one.row.attributes & (TRANSACTIONAL | CONTROL)
    return STAMPED if is_changed or (codec == ZSTD and not partition.zstd) else AS_SENT


def test_batch_is_judged_by_all_known_state():
    seen = set()
    for (
        append_time,
        attributes,
        zstd,
        duplicate_check,
        epoch,
        high_watermark,
        base_offset,
    ) in product(
        (None, False, True),
        (NONE, GZIP, ZSTD, TRANSACTIONAL, CONTROL, ZSTD | TRANSACTIONAL),
        (False, True),
        DuplicateCheck,
        (-1, EPOCH - 1, EPOCH),
        (-1, 100, 150),
        (-1, 89, 90, 100, 149, 150, 500),
    ):
        partition = build_partition(log_append_time=append_time, equal=(NONE, ZSTD))
        learn(partition, 150, log_start_offset=90)
        partition.zstd = zstd
        row = build_sent(codec=attributes)
        one = Forwarded(partition, row, duplicate_check, epoch, high_watermark, 0)
        judged = judge(one, base_offset)
        assert judged == expect_judgement(partition, one, base_offset), one
        assert judge(one._replace(generation=1), base_offset) == NOT_STORED
        partition.leader_state.frozen = True
        assert judge(one, base_offset) == NOT_STORED
        partition.leader_state.frozen, partition.is_followed = False, False
        assert judge(one, base_offset) == NOT_STORED
        seen.add(judged)
    assert seen == {NOT_STORED, SAMPLED, STAMPED, AS_SENT}


def test_unproven_epoch_prevents_storing():
    partition = QuietBroker().follow()
    partition.topic.fidelity.learn(False)
    partition.topic.fidelity.trust(NONE)
    assert partition.leader_state.epoch == -1
    one = note(partition, build_sent())
    assert judge(one, 0) == NOT_STORED
    assert explain_not_stored(one, 0) == "no-epoch"


def test_a_batch_below_the_log_start_is_history():
    partition = build_partition()
    learn(partition, 300, log_start_offset=200)
    forwarded = Forwarded(partition, build_sent(), **FRESH)
    assert plan(forwarded, 199) == "below-hw"
    assert plan(forwarded, 200) == "store"


def test_epoch_change_voids_forwarded_batches():
    partition = build_partition()
    forwarded = note(partition, build_sent())
    assert plan(forwarded, 100) == "store"
    learn(partition, 100, epoch=EPOCH + 1)
    assert plan(forwarded, 100) == "no-epoch"


def test_state_at_forwarding_goes_with_the_batch():
    partition = build_partition(high_watermark=100)
    forwarded = note(partition, build_sent())
    learn(partition, 150)
    assert (forwarded.epoch, forwarded.high_watermark, forwarded.duplicate_check) == (
        EPOCH,
        100,
        DuplicateCheck.NOT_DUPLICATE,
    )
    assert plan(forwarded, 120) == "store"


def test_first_five_batches_of_a_producer_are_unstored():
    partition = build_partition()
    plans = []
    for i in range(lib.PT_RETAINED + 1):
        forwarded = note(partition, build_sent(sequence=10 * i, producer_id=7))
        plans.append(plan(forwarded, 100 + 10 * i))
    assert plans == ["warm-up"] * lib.PT_RETAINED + ["store"]
    again = note(partition, build_sent(sequence=10, producer_id=7))
    assert plan(again, 110) == "resent"


@pytest.mark.parametrize(
    ("tail", "lapsed", "log_start", "expected"),
    [
        (-1, False, 0, 100),
        (-1, True, 0, 100),
        (80, False, 0, 80),
        (80, True, 0, 100),
        (120, True, 0, 120),  # stored beyond the HW
        (80, False, 90, 90),
    ],
)
def test_tail_after_a_response(tail, lapsed, log_start, expected):
    partition = QuietBroker().follow()
    learn(partition, 100, log_start_offset=log_start)
    partition.tail = tail
    partition.settle(lapsed, 0.0)
    assert partition.tail == expected


def test_runs_around_a_conflict_are_both_logged():
    told = []

    class Truncating(QuietBroker):
        def invalidate(self, partition, from_offset, reason):
            self.cache.truncate(partition.slot, from_offset)

    broker = Truncating()
    broker.stored_runs = SimpleNamespace(add=lambda _, *run: told.append(run))
    partition = broker.follow()
    insert(broker.cache, partition.slot, build_run(20, 1, count=10, epoch=EPOCH - 1))
    admitted_bytes = broker.cache.peek_admitted_bytes()
    run = build_run(10, 2, count=10, epoch=EPOCH)
    store._insert(broker, partition, run, 0, len(run), 10, "watch")
    assert read(broker.cache, partition.slot, 10) == run
    assert (
        sum(size_bytes for _, _, size_bytes, *_ in told)
        == broker.cache.peek_admitted_bytes() - admitted_bytes
    )
    assert [following for _, following, *_ in told] == [20, 30]
    assert [run[3:] for run in told] == [
        (1, "watch", admitted_bytes),
        (1, "watch", told[0][-1] + told[0][2]),
    ]
