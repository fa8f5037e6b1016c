"""The trace of objects, from a log of the real cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_audit.ages import build_segments
from spark_audit.profile import sum_partitions
from spark_audit.reading import find_inputs, good_lines, read_lines
from spark_audit.what_if import trace as tracing
from spark_audit.what_if.replay import TraceEvent, hit_ratio
from tests.spark_audit.replay import Fetch, Produce, Shape, build_load, fifo_ratio, write_load

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MIB = 1 << 20
SHAPE = Shape([3, 2, 1, 1], 2_000, 8_000, 10 * MIB, {0.5: 2e4, 0.5001: 3e6}, fetched_bytes=30_000)


@pytest.mark.parametrize("events_max", [200_000, 1_000])
def test_a_fifo_of_objects_hits_what_one_of_batches_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events_max: int
) -> None:
    """Objects are larger than batches, so that they come a little early and go a little late."""
    monkeypatch.setattr("spark_audit.what_if.replay.EVENTS_MAX", events_max)
    steps = build_load(SHAPE, seed=2)
    write_load(steps, 2 * MIB, tmp_path / "logs")
    inputs = find_inputs([str(tmp_path / "logs")])
    lines = read_lines(spark, inputs, tmp_path / "table").lines.persist()
    fetches, blocks = good_lines(lines, "fetch"), good_lines(lines, "block")
    partitions = sum_partitions(blocks)
    sample = tracing.build_sample(fetches, partitions, build_segments(blocks), "b1")
    found = tracing.list_trace(sample)
    lines.unpersist()
    writes = [event for event in found.events if event.size_bytes and not event.read_bytes]
    stored = sum(step.size_bytes for step in steps if isinstance(step, Produce))
    if events_max == 200_000:
        assert found.rate == 1 and len({event.key for event in writes}) == len(writes)
        assert sum(event.size_bytes for event in writes) == pytest.approx(stored, rel=0.02)
        reads = sum(1 for event in found.events if event.read_bytes)
        assert reads >= sum(isinstance(step, Fetch) for step in steps)
        for size_bytes in (3 * MIB, 6 * MIB):
            truth = fifo_ratio(steps, size_bytes)
            assert hit_ratio(found, "FIFO", size_bytes, False) == pytest.approx(truth, abs=0.02)
    else:
        assert 0 < found.rate < 1 and len(found.without_touches.events) < 2 * events_max
        assert len(found.events) > len(found.without_touches.events), "all others are touches"
        offsets = {event.key[1] % round(1 / found.rate) for event in writes}
        assert len(offsets) <= len(SHAPE.weights), "every n-th of each partition"
        assert len(writes) == pytest.approx(found.rate * stored / tracing.OBJECT_BYTES, rel=0.1)


def test_what_was_read_before_it_was_stored_was_stored_by_then() -> None:
    """A tail reads the batch in which an object begins; the object is stored once."""
    events = [
        TraceEvent((0, 0), 9, 0),
        TraceEvent((0, 1), 9, 5),
        TraceEvent((0, 1), 9, 0),
        TraceEvent((1, 7), 3, 3),
    ]
    assert tracing.list_events(events) == [
        TraceEvent((0, 0), 9, 0),
        TraceEvent((0, 1), 9, 0),
        TraceEvent((0, 1), 9, 5),
        TraceEvent((1, 7), 3, 3),
    ]


def test_a_sample_is_listed_in_its_order_and_a_partition_s_touches_are_one_object() -> None:
    rows = [(7, 0, 0, 0), (7, 3, 9, 0), (8, 0, 0, 0), (7, 0, 0, 0), (7, 3, 9, 4), (8, 5, 2, 2)] * 2
    rows = [*rows[:6], *((of, number + 10, size, read) for of, number, size, read in rows[6:])]
    touch = (7, 0, 0, 0)
    rows += [touch] * tracing.BATCH_ROWS
    columns = dict(zip(tracing.EVENT_COLUMNS, zip(*rows, strict=True), strict=True))
    found = tracing.list_trace(tracing.SampledEvents(pa.table(columns), 0.25))
    expected = [
        TraceEvent((of, number), size, read) if size else TraceEvent((of, 0), 0, 0)
        for of, number, size, read in rows
    ]
    assert found.rate == 0.25 and list(found.events) == expected
    touches = {id(event) for event in found.events if not event.size_bytes}
    assert len(touches) == 2, "one of each partition, over all batches"
