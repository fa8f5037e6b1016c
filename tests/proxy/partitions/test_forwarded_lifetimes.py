"""Rows of partitions that are forgotten, or whose topic is created again, while a batch of theirs is in flight."""

from __future__ import annotations

import gc
import weakref
from mmap import PAGESIZE
from pathlib import Path
from random import Random
from struct import pack
from typing import TYPE_CHECKING, Any

from proxy.partitions._rows import ffi, lib

from protocol.produce_rows import scan_produced
from proxy.partitions import store
from proxy.partitions.partition_row import open_row
from tests.protocol.batches import batch_v2
from tests.proxy.followed_partition import known
from tests.proxy.forwarded_life import NAMED, Life, Request

if TYPE_CHECKING:
    from proxy.partitions.table import Partition

ROWS, PRODUCERS_EACH = 10_000, 8


class Sent:
    """One batch in flight of a partition that nothing else holds once it is forgotten."""

    def __init__(self) -> None:
        self.life = Life(Random(1))
        self.life.broker.stored_runs = None
        self.frame, self.batches, self.row = self._forward()
        self.life.mirrors.clear()
        self.life.all.clear()

    def _forward(self) -> tuple[bytes, Any, weakref.ref[Any]]:
        request = Request(self.life)
        request.named = [("a", [(0, batch_v2(2))])]
        request.version = NAMED
        request.frame = request.build_frame()
        request.forward()
        return request.frame, request.batches, weakref.ref(self.life.mirrors["a", 0].partition.row)

    @property
    def partition(self) -> Partition:
        return known(self.batches.partitions[0])

    def answer(self, base_offset: int = 0) -> None:
        topic = b"\2a\2" + pack(">ihqqq", 0, 0, base_offset, -1, 0) + b"\1\0\0" + b"\0"
        body = pack(">i", 7) + b"\0\2" + topic + pack(">i", 0) + b"\0"
        answer = pack(">i", len(body)) + body
        broker: Any = self.life.broker
        produced = known(scan_produced(answer, NAMED))
        store.admit_response(broker, self.frame, self.batches, answer, produced, 0.0)


def test_batch_in_flight_keeps_the_row_of_a_forgotten_partition() -> None:
    sent = Sent()
    sent.life.broker.partitions.forget(sent.partition)
    gc.collect()
    partition = sent.partition
    slot_of_another = sent.life.broker.cache.open(b"another topic id", 0)
    sent.answer()
    assert partition.acknowledged_end == 2
    assert not sent.life.broker.cache.lookup(slot_of_another, 0, 10, 10)
    assert dict(sent.life.broker.counters.produce.batches) == {"no-epoch": 1}
    sent.life.broker.told.clear()
    del partition, sent.batches
    gc.collect()
    assert sent.row() is None


def test_batch_in_flight_keeps_the_beliefs_of_a_topic_that_is_created_again() -> None:
    sent = Sent()
    old = weakref.ref(sent.partition.topic.fidelity.native)
    sent.life.topic_is_created("a")
    gc.collect()
    assert sent.partition.topic is not sent.life.broker.topics.find("a")
    sent.answer()
    assert sent.life.mirrors["a", 0].partition.acknowledged_end == -1
    assert not sent.life.mirrors["a", 0].partition.has_stored(sent.life.broker.cache)
    assert old() is not None
    sent.life.broker.told.clear()
    del sent.batches
    gc.collect()
    assert old() is None


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE


def test_closed_rows_leave_no_memory_behind() -> None:
    def open_and_close() -> int:
        rows = [open_row() for _ in range(ROWS)]
        for row in rows:
            ledger = ffi.addressof(row, "ledger")
            for producer in range(PRODUCERS_EACH):
                lib.pt_note_producer(ledger, 1, producer, 0, 0, 1)
        return sum(row.ledger.count for row in rows)

    assert open_and_close() == ROWS * PRODUCERS_EACH
    gc.collect()
    before = read_resident_bytes()
    for _ in range(4):
        open_and_close()
    gc.collect()
    leaked = read_resident_bytes() - before
    of_one_round = ROWS * (ffi.sizeof("pt_row") + PRODUCERS_EACH * ffi.sizeof("pt_producer"))
    assert leaked < of_one_round
