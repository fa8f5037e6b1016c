"""Produced batches in flight: from the forwarding of a request until its acknowledged batches are
stored. The loops over partitions run in C (native/rows.c).

Owns the batches of one request that may be stored, with the states of their partitions when they were
forwarded. Must not know the cache, nor what is done with a batch that is not plain. Invariants:
* a function of C takes all partitions of a request; Python looks at those alone that it leaves.
* the rows of the partitions outlive the request: `ForwardedBatches.partitions` holds them.
* one response is processed at a time: whoever calls back into Forebay has read all of `work` before.
"""

from __future__ import annotations

from itertools import count
from operator import attrgetter
from os import urandom
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from protocol.produce_rows import PRODUCED, ROW, make_produced, make_row
from proxy.partitions._rows import ffi, lib
from proxy.partitions.producer_state import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from protocol.primitives import Frame
    from protocol.produce_rows import ProducedRow, Row
    from proxy.partitions.producer_state import DuplicateCheck
    from proxy.partitions.table import Partition

NOT_STORED, SAMPLED, STAMPED, AS_SENT = (
    lib.PT_NOT_STORED,
    lib.PT_SAMPLED,
    lib.PT_STAMPED,
    lib.PT_AS_SENT,
)
"""Verdicts of `judge`. SAMPLED: kept to be compared with the bytes that the broker returns.
STAMPED: stored, after a copy was changed or transactions were told. AS_SENT: stored, and the broker
changes only the fields that it assigns.
"""
LEFT_TAIL, LEFT_TRANSACTIONS, LEFT_RUN, LEFT_EPOCH = (
    lib.PT_LEFT_TAIL,
    lib.PT_LEFT_TRANSACTIONS,
    lib.PT_LEFT_RUN,
    lib.PT_LEFT_EPOCH,
)
"""What is left to be done for a stored batch."""
PLACE_FIELDS = ("slot", "start", "end", "base_offset", "leader_epoch", "run_end", "clock")
"""Words of a place."""
PLACED_WORDS = lib.PT_PLACED_WORDS
assert len(PLACE_FIELDS) == PLACED_WORDS
PARTITION = attrgetter("partition")
ROW_OF = attrgetter("row")
assert ROW.size == 8 * lib.PT_BATCH_WORDS
assert PRODUCED.size == 8 * lib.PT_PRODUCED_WORDS

KEY = Struct("=2Q")
ROOM = 64
"""Batches of a response for which there is memory from the start."""
_stamps = count(1)
_from_buffer, _new, _make = ffi.from_buffer, ffi.new, tuple.__new__
_forward, _admit, _judge = lib.pt_forward, lib.pt_admit, lib.pt_judge


class Forwarded(NamedTuple):
    """A produced batch in flight, with the state of its partition when it was forwarded.

    `row`: where the batch lies, and its header; its magic is not -1. `epoch` -1: no epoch was proven.
    `generation`: that of the topic's recompression check.
    """

    partition: Partition
    row: Row
    duplicate_check: DuplicateCheck
    epoch: int
    high_watermark: int
    generation: int


Storing = tuple[Any, bool, float]
"""Where batches are stored (`BlockCache.appender`), whether runs of them are logged, and the time since
which an epoch must have been proven, in seconds.
"""


class Named(Protocol):
    """A partition as a request names it. `partition` None: nothing of it is stored. `row`: its row
    (`pt_row *`), or NULL.
    """

    @property
    def partition(self) -> Partition | None:
        """The partition to be stored."""

    @property
    def row(self) -> Any:
        """Its row."""


class ForwardedBatches(NamedTuple):
    """The batches of one request that may be stored, `number` of them (`pt_forwarded`), and the partitions
    that the request names, None where nothing is stored.
    """

    native: Any
    number: int
    partitions: Sequence[Partition | None]


class StoredBatch(NamedTuple):
    """A stored batch of `size_bytes` with the offsets from `base_offset` to `following` (exclusive), and
    what is left to be done for it: LEFT_TAIL, LEFT_TRANSACTIONS, LEFT_RUN and LEFT_EPOCH, or 0. `clock`: bytes
    admitted before it.
    """

    partition: Partition
    base_offset: int
    following: int
    size_bytes: int
    left: int
    clock: int


STORE = tuple((name, field.offset) for name, field in ffi.typeof("pt_store").fields)
"""Fields of where batches are stored, and their places in bytes."""


class Work:
    """What C says of the response that is being processed: memory for one at a time.

    `native`: `pt_work *`. `places`: words of the places of batches (PLACED_WORDS each).
    """

    __slots__ = ("_order", "_others", "_places", "native", "places", "room")

    def __init__(self) -> None:
        self.native = ffi.new("pt_work *", {"key": KEY.unpack(urandom(KEY.size))})
        self.room = 0
        self.make_room(ROOM)

    def make_room(self, batches: int) -> None:
        """For so many batches."""
        self._order, self._others = ffi.new("int64_t[]", batches), ffi.new("int64_t[]", batches)
        self._places = ffi.new("int64_t[]", batches * PLACED_WORDS)
        self.places = memoryview(ffi.buffer(self._places)).cast("q")
        self.room = batches
        native = self.native
        native.order, native.others, native.places = self._order, self._others, self._places


work = Work()


def forward_batches(batches: Any, targets: Sequence[Named]) -> ForwardedBatches | None:
    """Note that batches are about to be forwarded, and how their partitions stand. Return those that
    may be stored; None if there are none: their partitions are not stored, or the records are not
    exactly one batch. `batches`: words of `protocol.produce_rows.Row` for each target, as C memory.
    """
    named = len(targets)
    forwarded, rows = _new("pt_forwarded[]", named), _new("pt_row *[]", list(map(ROW_OF, targets)))
    found = _forward(batches, rows, named, next(_stamps), forwarded)
    if not found:
        return None
    return _make(ForwardedBatches, (forwarded, found, list(map(PARTITION, targets))))


def admit(
    batches: ForwardedBatches,
    frame: Frame,
    answer: Frame,
    produced: tuple[Any, int],
    storing: Storing,
) -> Any:
    """Note of each batch of the request `frame` that the response `answer` acknowledges that the broker
    has its records, and return `pt_work *`. Unless some batches have a log append time, all are judged
    then, and those to be stored as sent are stored: `store_placed` must follow while `appended` is less
    than `placed`. `produced`: words of rows (`protocol.produce_rows.ProducedRow`) as C memory, and their number.
    """
    native, count, _ = batches
    if count > work.room:
        work.make_room(count)
    source = frame if type(frame) is bytes else _from_buffer(frame)
    said = answer if type(answer) is bytes else _from_buffer(answer)
    _admit(source, len(frame), native, count, said, *produced, *storing, work.native)
    return work.native


def place(batches: ForwardedBatches) -> None:
    """Judge the batches, and place those to be stored as sent. Call after those with a log append time
    are stored.
    """
    lib.pt_place(batches.native, work.native)


def store_placed(batches: ForwardedBatches, frame: Frame, storing: Storing) -> None:
    """Store the placed batches that the cache has neither taken nor refused, and note it of all once it has."""
    source = frame if type(frame) is bytes else _from_buffer(frame)
    lib.pt_store_placed(source, len(frame), batches.native, *storing, work.native)


def list_left(batches: ForwardedBatches) -> list[StoredBatch]:
    """Return each stored batch with what is left to be done for it."""
    found = []
    for partition, one in _iterate(batches, work.native.order, work.native.placed):
        if one.verdict == AS_SENT:
            row, said = _read(one)
            base_offset, size_bytes = said.base_offset, row.end - row.start
            following = base_offset + row.last_delta + 1
            found.append(
                StoredBatch(partition, base_offset, following, size_bytes, one.left, one.clock)
            )
    return found


def list_stamped(batches: ForwardedBatches) -> list[tuple[Forwarded, ProducedRow]]:
    """Return the acknowledged batches with a log append time. Call before `place`."""
    pairs = _list(batches, work.native.order, work.native.acknowledged)
    return [pair for pair in pairs if pair[1].log_append_time_ms >= 0]


def list_unplaced(batches: ForwardedBatches) -> list[tuple[Forwarded, ProducedRow]]:
    """Return the acknowledged batches that are not placed. Call before `place`."""
    native = work.native
    if native.stamped:
        return _list(batches, native.order, native.acknowledged)
    return _list(batches, native.others, native.acknowledged - native.placed)


def list_others(batches: ForwardedBatches) -> list[tuple[Forwarded, ProducedRow]]:
    """Return the acknowledged batches without a log append time that are not stored yet."""
    native = work.native
    pairs = _list(batches, native.others, native.acknowledged - native.placed)
    if native.stored < native.placed:
        placed = list(_iterate(batches, native.order, native.placed))
        pairs += [_pair(*one) for one in placed if one[1].verdict != AS_SENT]
    return [pair for pair in pairs if pair[1].log_append_time_ms < 0]


def _iterate(
    batches: ForwardedBatches, numbers: Any, count: int
) -> Iterator[tuple[Partition, Any]]:
    for number in numbers[0:count]:
        one = batches.native[number]
        partition = batches.partitions[one.number]
        assert partition is not None
        yield partition, one


def _list(
    batches: ForwardedBatches, numbers: Any, count: int
) -> list[tuple[Forwarded, ProducedRow]]:
    return [_pair(*one) for one in _iterate(batches, numbers, count)]


def _pair(partition: Partition, one: Any) -> tuple[Forwarded, ProducedRow]:
    row, said = _read(one)
    states = one.epoch, one.high_watermark, one.generation
    return Forwarded(partition, row, CHECKS[one.duplicate_check], *states), said


def _read(one: Any) -> tuple[Row, ProducedRow]:
    return make_row(one.batch[0 : lib.PT_BATCH_WORDS]), make_produced(
        one.produced[0 : lib.PT_PRODUCED_WORDS]
    )


def judge(one: Forwarded, base_offset: int) -> int:
    """Return NOT_STORED, SAMPLED, STAMPED or AS_SENT for a batch acknowledged at `base_offset`.

    `store.explain_not_stored` has the reason for NOT_STORED. A zstd batch is stored as sent only in a
    partition already known to have zstd, since old clients must get an error.
    """
    partition, row, duplicate_check, epoch, high_watermark, generation = one
    check = CHECKS.index(duplicate_check)
    states = check, epoch, high_watermark, generation, base_offset
    verdict: int = _judge(partition.row, row.magic, row.attributes, *states)
    return verdict
