"""From one stored file's bytes to batches of rows and a report of what the file holds.

Owns decompression, the cutting into chunks of whole lines, segments (the lines of one file of one boot, from an
`open` line to the next) and the reports on them. Must not know Spark or where files are: Spark's workers run it.
Invariants: memory is bounded by the stored file and a few chunks, whatever it decompresses to; each line is counted
in exactly one segment; damage ends the file, is stated, and costs no line before it; a report is a row of the same
table, so that rows and reports are committed together.
"""

import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metrics.access_log_schema import ROW_TYPES
from spark_audit.lines import BadLine, GoodRows, ScannedChunk, arrow_type, row_fields, scan_chunk
from spark_audit.problems import CORRUPT

CHUNK_BYTES: Final = 4 << 20
MAX_LINE_BYTES: Final = 16 << 20
"""A longer line is unreadable; the writer's longest has a few hundred KiB."""
SAMPLES: Final = 3
"""Unreadable lines of each problem that a report quotes."""
CLOCK_TOLERANCE_MS: Final = 86_400_000
SEGMENT_BITS: Final = 20
"""A row's `segment` is the number of its file, shifted by so many bits, plus the number of the segment within it."""
UNKNOWN_BROKER: Final = "unknown"
REPORT: Final = "report"
"""The `type` of rows that hold a report."""
EXTRA_COLUMNS: Final = ("segment", "report", "date", "broker", "ingest")
_DAY_MS: Final = 86_400_000
_NAME: Final = re.compile(
    r"access-[0-9TZ]+-(?P<boot>[0-9A-Za-z_-]{1,64})-(?P<sequence>[0-9]{6,})\.jsonl"
)


@cache
def table_schema() -> Any:
    """The Arrow schema of all rows: the lines' fields, then EXTRA_COLUMNS."""
    fields = [(name, arrow_type(one)) for name, one in row_fields().items()]
    extra = [(name, pa.int64() if name == "segment" else pa.string()) for name in EXTRA_COLUMNS]
    return pa.schema([*fields, *extra])


@dataclass(slots=True)
class _Segment:
    """What is known of the lines of one file of one boot. Line numbers count from 1 within the stored file."""

    number: int
    first_line: int
    boot: str | None = None
    sequence: int | None = None
    broker: str = UNKNOWN_BROKER
    lines: int = 0
    log_lines: int = 0
    good: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)
    opened_at: int | None = None
    closed_at: int | None = None
    dropped_first: int = 0
    dropped_last: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


def read_file(
    number: int, path: str, data: Any, ingest: str, latest_ms: int | None = None
) -> Iterator[Any]:
    """The batches of one file: its rows, each batch of one type and date with the columns that it has, then one of
    reports. `data`: the stored bytes, a buffer.
    """
    if latest_ms is None:
        latest_ms = round(time.time() * 1000) + CLOCK_TOLERANCE_MS
    reading = _Reading(number, path, ingest, latest_ms)
    state = _Damage()
    for chunk in _cut(decompress(path, data, state), state):
        yield from reading.read_chunk(chunk)
    yield reading.build_reports(state, len(data))


@dataclass(slots=True)
class _Damage:
    """What was wrong with the bytes: `damage` is empty or says how they end; `torn`: no newline at the end."""

    damage: str = ""
    torn: bool = False
    long_lines: int = 0


class _Reading:
    """One file's segments while its chunks go by."""

    def __init__(self, number: int, path: str, ingest: str, latest_ms: int) -> None:
        self._number = number
        self._path = path
        self._ingest = ingest
        self._latest_ms = latest_ms
        self._lines = 0
        named = _NAME.match(path.rsplit("/", 1)[-1])
        first = _Segment(0, 1)
        if named is not None:
            first.boot, first.sequence = named["boot"], int(named["sequence"])
        self._segments = [first]

    def read_chunk(self, chunk: bytes) -> Iterator[Any]:
        """Batches with the chunk's good lines."""
        scanned = scan_chunk(chunk, self._latest_ms)
        bounds = self._open_segments(scanned)
        for place, (begin, segment) in enumerate(bounds):
            end = bounds[place + 1][0] if place + 1 < len(bounds) else scanned.lines
            segment.lines += end - begin
            for bad in scanned.bad:
                if begin <= bad.number < end:
                    self._count_bad(segment, bad)
            for rows in scanned.good:
                part = _cut_rows(rows, begin, end)
                if len(part.numbers):
                    yield from self._emit(segment, part)
        self._lines += scanned.lines

    def _open_segments(self, scanned: ScannedChunk) -> list[tuple[int, _Segment]]:
        """The index at which each segment of the chunk begins, and the segment."""
        bounds = [(0, self._segments[-1])]
        logs = [rows for rows in scanned.good if rows.line_type == "log"]
        events = sorted(
            (int(index), line)
            for rows in logs
            for index, line in zip(
                rows.numbers,
                pa.table(rows.columns)
                .select(
                    [
                        "boot",
                        "event",
                        "sequence",
                        "writtenLines",
                        "droppedLines",
                        "nodeId",
                    ]
                )
                .to_pylist(),
                strict=True,
            )
        )
        for index, line in events:
            if line["event"] == "open":
                segment = self._begin_segment(index, line)
                if index == 0 and bounds[0][0] == 0 and self._lines + index == 0:
                    bounds = [(0, segment)]
                elif segment is not bounds[-1][1]:
                    bounds.append((index, segment))
            _note_event(bounds[-1][1], line)
        return bounds

    def _begin_segment(self, index: int, line: dict[str, Any]) -> _Segment:
        first_line = self._lines + index + 1
        if first_line == 1:
            self._segments.clear()
        segment = _Segment(len(self._segments), first_line, line["boot"], line["sequence"])
        self._segments.append(segment)
        return segment

    def _count_bad(self, segment: _Segment, bad: BadLine) -> None:
        segment.bad[bad.problem] += 1
        if segment.bad[bad.problem] <= SAMPLES:
            line = self._lines + bad.number + 1
            segment.samples.append({"problem": bad.problem, "line": line, "text": bad.text})

    def _emit(self, segment: _Segment, rows: GoodRows) -> Iterator[Any]:
        ts = rows.columns["ts"].to_numpy(zero_copy_only=False)
        count = len(ts)
        segment.good[rows.line_type] += 1 + int(np.count_nonzero(np.diff(rows.numbers)))
        segment.log_lines += count if rows.line_type == "log" else 0
        first_ms, last_ms = int(ts.min()), int(ts.max())
        segment.first_ms = min(first_ms, segment.first_ms or first_ms)
        segment.last_ms = max(last_ms, segment.last_ms or last_ms)
        if segment.boot is None:
            segment.boot = rows.columns["boot"][0].as_py()
        days = ts // _DAY_MS
        for day in np.unique(days):
            mask = days == day
            columns = rows.columns
            if not mask.all():
                columns = {name: one.filter(pa.array(mask)) for name, one in columns.items()}
            yield self._build_batch(segment, rows.line_type, columns, int(mask.sum()), int(day))

    def _build_batch(
        self, segment: _Segment, row_type: str, columns: dict[str, Any], count: int, day: int
    ) -> Any:
        """All batches of a type have the same columns, whatever version their lines are of."""
        constants = {
            "segment": pa.scalar(self._number << SEGMENT_BITS | segment.number, pa.int64()),
            "date": pa.scalar(str(np.datetime64(day, "D"))),
            "broker": pa.scalar(segment.broker),
            "ingest": pa.scalar(self._ingest),
        }
        own = {field.name for field in ROW_TYPES[row_type]}
        arrays, fields = [], []
        for one in table_schema():
            column = columns.get(one.name)
            if column is None and one.name in constants:
                column = pa.repeat(constants[one.name], count)
            elif column is None and one.name in own:
                column = pa.nulls(count, one.type)
            elif isinstance(column, pa.ChunkedArray):
                column = column.combine_chunks()
            if column is not None:
                arrays.append(column)
                fields.append(one)
        return pa.record_batch(arrays, schema=pa.schema(fields))

    def build_reports(self, state: _Damage, stored_bytes: int) -> Any:
        """A batch with one row for each segment."""
        reports = []
        for segment in self._segments:
            is_last = segment is self._segments[-1]
            if is_last and state.long_lines:
                segment.bad[CORRUPT] += state.long_lines
            reports.append(
                json.dumps(
                    {
                        "path": self._path,
                        "storedBytes": stored_bytes,
                        "segment": self._number << SEGMENT_BITS | segment.number,
                        "firstLine": segment.first_line,
                        "boot": segment.boot,
                        "sequence": segment.sequence,
                        "broker": segment.broker,
                        "lines": segment.lines,
                        "logLines": segment.log_lines,
                        "good": dict(segment.good),
                        "bad": dict(segment.bad),
                        "samples": segment.samples,
                        "openedAt": segment.opened_at,
                        "closedAt": segment.closed_at,
                        "droppedFirst": segment.dropped_first,
                        "droppedLast": segment.dropped_last,
                        "firstMs": segment.first_ms,
                        "lastMs": segment.last_ms,
                        "damage": state.damage if is_last else "",
                        "torn": state.torn and is_last,
                    }
                )
            )
        count = len(reports)
        day = str(np.datetime64(0, "D"))
        text = {
            "type": REPORT,
            "date": day,
            "broker": UNKNOWN_BROKER,
            "ingest": self._ingest,
        }
        fields = [one for one in table_schema() if one.name in (*text, "report")]
        arrays = [
            pa.array(reports)
            if one.name == "report"
            else pa.array([text[one.name]] * count, one.type)
            for one in fields
        ]
        return pa.record_batch(arrays, schema=pa.schema(fields))


def _note_event(segment: _Segment, line: dict[str, Any]) -> None:
    if line["nodeId"] is not None and line["nodeId"] >= 0 and segment.broker == UNKNOWN_BROKER:
        segment.broker = str(line["nodeId"])
    if line["event"] == "open":
        segment.opened_at, segment.dropped_first = line["writtenLines"], line["droppedLines"]
    elif line["event"] == "close":
        segment.closed_at = line["writtenLines"]
    segment.dropped_last = max(segment.dropped_last, line["droppedLines"])


def _cut_rows(rows: GoodRows, begin: int, end: int) -> GoodRows:
    mask = (rows.numbers >= begin) & (rows.numbers < end)
    if mask.all():
        return rows
    kept = pa.array(mask)
    columns = {name: column.filter(kept) for name, column in rows.columns.items()}
    return GoodRows(rows.line_type, columns, rows.numbers[mask])


def decompress(path: str, data: Any, state: _Damage) -> Iterator[bytes]:
    """The file's text in pieces, by the ending of its name, as far as it is whole; `state` says where it is not."""
    if path.endswith(".gz"):
        yield from _inflate(memoryview(data), state)
        return
    codec = next((name for ending, name in _CODECS.items() if path.endswith(ending)), None)
    stream = pa.BufferReader(data)
    if codec is not None:
        stream = pa.CompressedInputStream(stream, codec)
    while True:
        try:
            piece = stream.read(CHUNK_BYTES)
        except (OSError, EOFError) as error:
            state.damage = f"damaged: {error}"
            return
        if not piece:
            return
        yield piece


_CODECS: Final = {".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


def _inflate(data: memoryview, state: _Damage) -> Iterator[bytes]:
    """RFC 1952: members one behind another, each with its own checksum."""
    rest: Any = data
    while len(rest):
        member = zlib.decompressobj(31)
        pending = rest
        while not member.eof:
            try:
                piece = member.decompress(pending, CHUNK_BYTES)
            except zlib.error as error:
                state.damage = f"damaged: {error}"
                return
            pending = member.unconsumed_tail
            if piece:
                yield piece
            elif not pending and not member.eof:
                state.damage = "cut short: its compressed end is missing"
                return
        rest = member.unused_data


def _cut(pieces: Iterable[bytes], state: _Damage) -> Iterator[bytes]:
    """Chunks of whole lines; the last line gets the newline that it may lack."""
    held: list[bytes] = []
    size, skipping = 0, False
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if skipping:
            begin = piece.find(b"\n") + 1
            if not begin:
                continue
            piece, end, skipping = piece[begin:], end - begin, False
        if not end:
            held.append(piece)
            size += len(piece)
            if size > MAX_LINE_BYTES:
                held, size, skipping = [], 0, True
                state.long_lines += 1
            continue
        yield b"".join((*held, piece[:end]))
        held, size = [piece[end:]], len(piece) - end
    rest = b"".join(held)
    if rest:
        state.torn = True
        yield rest + b"\n"
