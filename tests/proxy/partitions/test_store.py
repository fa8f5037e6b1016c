"""What becomes of an acknowledged batch, and of the tail after an answer."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.batch import CONTROL, TRANSACTIONAL, Batch
from proxy.partitions import store
from proxy.partitions.producer_state import NUM_BATCHES_TO_RETAIN, DuplicateCheck
from proxy.partitions.store import (
    Forwarded,
    is_stored_as_sent,
    note_forwarded,
    plan_forwarded,
    plan_produced,
    settle,
)
from tests.kit.cache_batches import build_run, insert, read
from tests.proxy.followed import EPOCH, QuietBroker, learn

NONE, GZIP, ZSTD = 0, 1, 4


def build_sent(*, magic=2, codec=NONE, sequence=-1, producer_id=-1, count=10):
    return Batch(0, 100, 0, count - 1, -1, magic, 0, codec, 0, producer_id, 0, sequence, count)


def build_partition(*, log_append_time=False, equal=(NONE,), high_watermark=100, frozen=False):
    partition = QuietBroker().follow()
    learn(partition, high_watermark)
    partition.leader_state.frozen = frozen
    partition.topic.fidelity.log_append_time = log_append_time
    partition.topic.fidelity.equal_codecs.update(equal)
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
def test_plan_forwarded(topic, sent, forwarded, base_offset, expected):
    batch = build_sent(**sent)
    planned = Forwarded(build_partition(**topic), batch, **(FRESH | forwarded))
    assert plan_forwarded(planned, base_offset) == expected


def test_what_is_stored_as_sent_is_what_would_be_stored_and_is_not_changed():
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
        known = (partition, duplicate_check, epoch, high_watermark, 0, attributes, base_offset)
        is_plain = not append_time and not attributes & (TRANSACTIONAL | CONTROL)
        expected = plan_produced(*known) == "store" and is_plain and (zstd or not attributes & ZSTD)
        assert is_stored_as_sent(*known) is expected, known
        assert not is_stored_as_sent(*known[:4], 1, *known[5:])
        partition.leader_state.frozen = True
        assert not is_stored_as_sent(*known)
        seen.add(expected)
    assert seen == {False, True}


def test_without_a_proven_epoch_nothing_is_stored_as_sent():
    partition = QuietBroker().follow()
    partition.topic.fidelity.log_append_time = False
    partition.topic.fidelity.equal_codecs.add(NONE)
    assert partition.leader_state.epoch == -1
    assert not is_stored_as_sent(partition, DuplicateCheck.NOT_DUPLICATE, -1, -1, 0, NONE, 0)


def test_a_batch_below_the_log_start_is_history():
    partition = build_partition()
    learn(partition, 300, log_start_offset=200)
    forwarded = Forwarded(partition, build_sent(), **FRESH)
    assert plan_forwarded(forwarded, 199) == "below-hw"
    assert plan_forwarded(forwarded, 200) == "store"


def test_an_epoch_that_changed_on_the_way_voids_what_was_forwarded():
    partition = build_partition()
    forwarded = note_forwarded(partition, build_sent())
    assert plan_forwarded(forwarded, 100) == "store"
    learn(partition, 100, epoch=EPOCH + 1)
    assert plan_forwarded(forwarded, 100) == "no-epoch"


def test_what_is_known_when_it_is_forwarded_goes_with_it():
    partition = build_partition(high_watermark=100)
    forwarded = note_forwarded(partition, build_sent())
    learn(partition, 150)
    assert (forwarded.epoch, forwarded.high_watermark, forwarded.duplicate_check) == (
        EPOCH,
        100,
        DuplicateCheck.NOT_DUPLICATE,
    )
    assert plan_forwarded(forwarded, 120) == "store"


def test_a_producers_first_five_are_left_to_the_watch():
    partition = build_partition()
    plans = []
    for i in range(NUM_BATCHES_TO_RETAIN + 1):
        forwarded = note_forwarded(partition, build_sent(sequence=10 * i, producer_id=7))
        plans.append(plan_forwarded(forwarded, 100 + 10 * i))
    assert plans == ["warm-up"] * NUM_BATCHES_TO_RETAIN + ["store"]
    again = note_forwarded(partition, build_sent(sequence=10, producer_id=7))
    assert plan_forwarded(again, 110) == "resent"


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
def test_where_the_tail_settles(tail, lapsed, log_start, expected):
    partition = QuietBroker().follow()
    learn(partition, 100, log_start_offset=log_start)
    partition.tail = tail
    settle(partition, lapsed)
    assert partition.tail == expected


def test_what_was_stored_before_a_conflict_is_told_as_what_comes_after_it():
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
        sum(size_bytes for _, _, size_bytes, _ in told)
        == broker.cache.peek_admitted_bytes() - admitted_bytes
    )
    assert [following for _, following, _, _ in told] == [20, 30]
