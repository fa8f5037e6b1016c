"""A trace of objects from the access log: what was stored when, and what was read when.

Owns the objects: ranges of offsets of a partition with about OBJECT_BYTES each. Must not know policies. Invariants: an
object is stored once, when the log says that its first batch was; an object of a partition of which nothing was stored
is as long as its read; at most about `replay.EVENTS_MAX` events come to the driver, of every n-th object of each
partition, so that all events of an object are there or none, and `replay.TOUCHES_MAX` touches beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_audit.tables import clock_of, is_observed
from spark_audit.what_if.replay import HASH_RANGE, Trace, TraceEvent, plan_stride, plan_touch_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OBJECT_BYTES: Final = 16_384
BATCH_ROWS: Final = 65_536
_PARTITION: Final = ("of", "partition")


EVENT_COLUMNS: Final = ("hash", "number", "size", "read")
"""Of an event: its partition's name as a number, its object, and what TraceEvent has."""


class SampledEvents(NamedTuple):
    """Events of `rate` of all objects: an Arrow table of EVENT_COLUMNS, in the order of the clock."""

    events: Any
    rate: float


def build_sample(
    fetches: DataFrame, partitions: DataFrame, segments: DataFrame, boot: str
) -> SampledEvents:
    """The trace of one boot and its workers, in the order of the clock of stored bytes; what is stored comes before
    what is read at the same clock. `partitions`: of `profile.merge_partitions`. A few jobs.
    """
    of = F.coalesce("topicId", "topic").alias("of")
    stored = partitions.where(F.col("boot") == boot)
    read = fetches.where(
        (clock_of() == boot)
        & (F.col("result").isin("hit", "miss") | is_observed())
        & (F.col("bytes") > 0)
    ).select(of, "partition", "offset", "bytes", "admittedBytes")
    count = _count(stored) + _count(read)
    stride = plan_stride(count)
    widths = _build_widths(stored)
    pieces = segments.where(F.col("boot") == boot)
    every = _build_writes(pieces, widths).unionByName(_build_reads(read, widths))
    events = _sample(every, stride, plan_touch_rate(count)) if stride > 1 else every
    ordered = events.orderBy("clock", "read", "hash", "number")
    return SampledEvents(ordered.select(*EVENT_COLUMNS).toArrow(), 1 / stride)


def list_trace(sample: SampledEvents) -> Trace:
    """The events as the replay takes them."""
    return Trace(list_events(_read_events(sample.events)), sample.rate)


def _read_events(events: Any) -> Iterator[TraceEvent]:
    """One batch of rows at a time; all touches of a partition are one object, as they are most of the events."""
    touches: dict[int, TraceEvent] = {}
    for batch in events.to_batches(BATCH_ROWS):
        columns = [batch.column(name).to_pylist() for name in EVENT_COLUMNS]
        for of, number, size_bytes, read_bytes in zip(*columns, strict=True):
            if size_bytes:
                yield TraceEvent((of, number), size_bytes, read_bytes)
            else:
                yield touches.setdefault(of, TraceEvent((of, 0), 0, 0))


def list_events(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """The same, with each write before the first read of its object. An object may begin within a batch: the clock
    between two batches then says that it was stored later than a tail has read it.
    """
    ordered = list(events)
    sizes = {
        event.key: event.size_bytes
        for event in ordered
        if event.size_bytes and not event.read_bytes
    }
    found = []
    for event in ordered:
        if not event.size_bytes:
            found.append(event)
            continue
        size_bytes = sizes.pop(event.key, None)
        if size_bytes is not None and event.read_bytes:
            found.append(TraceEvent(event.key, size_bytes, 0))
        if size_bytes is not None or event.read_bytes:
            found.append(event)
    return found


def _count(lines: DataFrame) -> int:
    """About how many events the lines are."""
    (row,) = lines.agg(F.sum(F.ceil(F.col("bytes") / OBJECT_BYTES)).alias("events")).collect()
    return row["events"] or 0


def _build_widths(stored: DataFrame) -> DataFrame:
    """For each partition the offsets of an object, and its bytes."""
    an_offset = F.col("bytes") / F.greatest(F.col("offsets"), F.lit(1))
    width = F.greatest(F.lit(1), F.round(OBJECT_BYTES / an_offset)).cast("long")
    return stored.select(
        *_PARTITION,
        width.alias("width"),
        F.greatest(F.lit(1), F.round(width * an_offset)).cast("long").alias("size"),
        an_offset.alias("anOffset"),
    )


def _build_writes(pieces: DataFrame, widths: DataFrame) -> DataFrame:
    """An object is stored with its first batch in the log."""
    first = F.floor(F.col("from") / F.col("width"))
    last = F.floor((F.col("to") - 1) / F.col("width"))
    numbered = pieces.join(widths, list(_PARTITION)).withColumn(
        "number", F.explode(F.sequence(first, last))
    )
    begins = F.greatest(F.col("from"), F.col("number") * F.col("width"))
    share = (begins - F.col("from")) / (F.col("to") - F.col("from"))
    clock = F.col("low") + F.floor((F.col("lowTo") - F.col("low")) * share)
    return (
        numbered.select(_hash_of().alias("hash"), "number", "size", clock.alias("clock"))
        .groupBy("hash", "number", "size")
        .agg(F.min("clock").alias("clock"))
        .withColumns({"read": F.lit(0).cast("long"), "isNumbered": F.lit(True)})
    )


def _build_reads(read: DataFrame, widths: DataFrame) -> DataFrame:
    """A read is one of each object that it touches, of equal shares of its bytes."""
    known = read.join(widths, list(_PARTITION), "left")
    span = F.greatest(F.lit(1), F.ceil(F.col("bytes") / F.col("anOffset")))
    first = F.floor(F.col("offset") / F.col("width"))
    last = F.floor((F.col("offset") + span - 1) / F.col("width"))
    numbers = F.when(F.col("width").isNull(), F.array("offset")).otherwise(F.sequence(first, last))
    counted = known.withColumn("numbers", numbers)
    return counted.select(
        _hash_of().alias("hash"),
        F.explode("numbers").alias("number"),
        F.coalesce("size", "bytes").alias("size"),
        F.col("admittedBytes").alias("clock"),
        F.greatest(F.lit(1), F.floor(F.col("bytes") / F.size("numbers"))).alias("read"),
        F.col("width").isNotNull().alias("isNumbered"),
    )


def _hash_of() -> Column:
    """The partition's name as a number."""
    return F.xxhash64(*_PARTITION)


def _sample(events: DataFrame, stride: int, touch_rate: float) -> DataFrame:
    """All events of every `stride`-th object of a partition, from one on that its name says; where nothing was stored,
    objects are offsets, with any distance between them, and a hash draws them. Of the others `touch_rate`, as touches.
    """
    counted = F.col("number") + F.pmod("hash", F.lit(stride))
    drawn = F.when(F.col("isNumbered"), counted).otherwise(F.xxhash64("hash", "number"))
    is_touch = F.pmod(F.xxhash64("number", "clock", "hash", "read"), F.lit(HASH_RANGE)) < round(
        touch_rate * HASH_RANGE
    )
    marked = events.withColumn("isKept", F.pmod(drawn, F.lit(stride)) == 0)
    kept = {
        name: F.when(F.col("isKept"), F.col(name)).otherwise(F.lit(0).cast("long"))
        for name in ("number", "size", "read")
    }
    return marked.where(F.col("isKept") | is_touch).withColumns(kept)
