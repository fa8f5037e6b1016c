"""What other sizes and other policies would have been worth, from the sums of a table and the joins of its rows.

Owns which boot calibrates sizes and is replayed, and when rows are joined: where nothing that is kept says it. Must not
know the report. Invariants: rows are joined once for a table whose ingests do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_audit import tables
from spark_audit.ages import (
    build_segments,
    find_ages,
    find_log_starts,
    sum_ages,
)
from spark_audit.calibration import Calibration, calibrate
from spark_audit.kept_sums import Whole, keep_whole, read_whole
from spark_audit.profile import build_load, merge_partitions
from spark_audit.reading import good_lines
from spark_audit.sizing import Curves, build_curves
from spark_audit.what_if.replay import SIZE_STEPS, PolicyResult, WhatIf, replay_all
from spark_audit.what_if.trace import SampledEvents, build_sample, list_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from spark_audit.line_table import LineTable

WHAT_IF_TARGET: Final = 0.95
"""Other policies are replayed at the size for it where the cache's own is not known."""


def read_curves(
    spark: SparkSession,
    table: LineTable,
    frames: dict[str, DataFrame],
    boots: list[dict[str, Any]],
    cache_size_bytes: int | None,
    topics: list[dict[str, Any]],
    say: Callable[[str], None],
) -> tuple[Curves, WhatIf | None]:
    """The sizing curves, and other policies on the same log (None: nothing was stored or read)."""
    partitions = merge_partitions(frames["load_partitions"]).persist()
    load = build_load(frames["load_boots"], partitions)
    sizes = {boot["boot"]: boot["cacheSizeBytes"] for boot in boots}
    calibration = calibrate(load.classes, sizes.get(load.boot), load.held_bytes)
    kept = read_whole(spark, table)
    segments = None
    whole = kept
    if whole is None:
        segments = build_segments(good_lines(table.lines, "block")).persist()
        whole = _join_whole(table, segments, boots, partitions, load.boot)
    ages = frames["ages"].unionByName(whole.ages)
    names = [row["topic"] for row in topics]
    curves = build_curves(ages, calibration, cache_size_bytes, names, load.boot)
    size_bytes = cache_size_bytes or curves.whole.needed_bytes.get(WHAT_IF_TARGET)
    what_if = None
    if load.boot is not None and size_bytes:
        what_if = _replay(whole, curves, calibration, load.boot, size_bytes)
    if kept is None:
        keep_whole(spark, table, _with_results(whole, what_if), say)
    for cached in (partitions, segments, whole.ages):
        if cached is not None:
            cached.unpersist()
    return curves, what_if


def _join_whole(
    table: LineTable,
    segments: DataFrame,
    boots: list[dict[str, Any]],
    partitions: DataFrame,
    boot: str | None,
) -> Whole:
    """What only all rows together say: ages of fetches that are joined to what was stored, and the events of the
    replay.
    """
    fetches = good_lines(table.lines, "fetch")
    found = find_ages(tables.name_topics(fetches), segments, find_log_starts(boots))
    replayed = boot or ""
    near = table.find_near(replayed)
    # of several brokers' cached pieces most tasks would have nothing of the one that is replayed
    pieces = segments if near is table.lines else build_segments(good_lines(near, "block"))
    sample = build_sample(good_lines(near, "fetch"), partitions, pieces, replayed)
    return Whole(sum_ages(found).persist(), lambda: sample.events, {"rate": sample.rate})


def _replay(
    whole: Whole, curves: Curves, calibration: Calibration, boot: str, size_bytes: int
) -> WhatIf | None:
    """Other policies on one boot's log, at `size_bytes` and around it. Where the trace is a sample, the exact FIFO of
    this boot corrects it.
    """
    sizes = [round(step * size_bytes) for step in SIZE_STEPS]
    held = [(size, calibration.held_bytes(size)) for size in sizes]
    known = _known_results(whole, held)
    if known:
        return WhatIf(boot, whole.extra["events"], whole.extra["rate"], known)

    def fifo(held_bytes: int) -> float | None:
        return curves.boot.hit_ratio(curves.boot.ages.within(held_bytes)[0])

    trace = list_trace(SampledEvents(whole.read_events(), whole.extra["rate"]))
    results = replay_all(trace, held, fifo)
    events = len(trace.without_touches.events)
    return WhatIf(boot, events, trace.rate, results) if results else None


def _known_results(whole: Whole, held: list[tuple[int, int]]) -> tuple[PolicyResult, ...]:
    """What was replayed when the table was joined; empty: not at these sizes."""
    results = [PolicyResult(*one) for one in whole.extra.get("results", ())]
    sizes = {(one.size_bytes, one.held_bytes) for one in results}
    return tuple(results) if sizes == set(held) else ()


def _with_results(whole: Whole, what_if: WhatIf | None) -> Whole:
    if what_if is None:
        return whole
    said = {"events": what_if.events, "results": [list(one) for one in what_if.results]}
    return whole._replace(extra=whole.extra | said)
