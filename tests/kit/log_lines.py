"""Partitions of responses in the access log, for tests to write, to read and to compare.

Owns a partition of a response with a name for each of its values, how it becomes a line of the product, the lines that
versions 1 to 3 had instead, and what all of them mean. It must not know who logs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from metrics.access_log import AnsweredPartition, ResponseLine
from metrics.access_log_schema import FETCH_FIELDS, PARTITION_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from metrics.access_log import ResponseValues

ROW = [field.name for field in PARTITION_FIELDS]


class LoggedResponse(NamedTuple):
    """What the partitions of a response have in common."""

    ts: int
    listener: str
    connection: int
    client_id: str | None
    group: str | None
    api_version: int
    wait_ms: float
    total_ms: float
    admitted_bytes: int


class LoggedFetch(NamedTuple):
    """One partition of one response to a Fetch."""

    response: LoggedResponse
    topic: str | None
    topic_id: bytes | None
    partition: int
    offset: int
    isolation: int
    result: str
    reason: str
    bytes: int
    high_watermark: int
    age_bytes: int | None
    delay_ms: float | None = None
    would_hit_bytes: int | None = None
    timestamp_ms: int | None = None

    @property
    def line(self) -> ResponseLine:
        """A line of it alone."""
        return build_line([self])


def build_line(fetches: list[LoggedFetch]) -> ResponseLine:
    """The line of partitions of one response."""
    *client, wait_ms, total_ms, admitted_bytes = fetches[0].response
    answers: list[Any] = [
        AnsweredPartition(
            one.topic,
            one.topic_id,
            one.result,
            one.reason,
            one.partition,
            one.offset,
            one.bytes,
            one.high_watermark,
            one.age_bytes,
            one.timestamp_ms,
            None if one.delay_ms is None else round(one.delay_ms * 1000),
            one.would_hit_bytes,
        )
        for one in fetches
    ]
    head = (*client, fetches[0].isolation, wait_ms, total_ms, admitted_bytes)
    return ResponseLine._make((*head, answers))


def name_partitions(line: ResponseValues) -> list[LoggedFetch]:
    """The partitions of the product's line, plain or not, with names for all values."""
    response = ResponseLine(*line)
    shared = {name: getattr(response, name) for name in LoggedResponse._fields}
    found = []
    for one in (AnsweredPartition(*answer) for answer in response.answers):
        delay_ms = None if one.delay_us is None else one.delay_us / 1000
        names = ("topic", "topic_id", "partition", "offset", "result", "reason", "bytes")
        more = ("high_watermark", "age_bytes", "would_hit_bytes", "timestamp_ms")
        found.append(
            LoggedFetch(
                response=LoggedResponse(**shared),
                isolation=response.isolation,
                delay_ms=delay_ms,
                **{name: getattr(one, name) for name in names + more},
            )
        )
    return found


def list_partitions(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a `response` line says of each of its partitions, in the fields that `fetch` lines had."""
    for answer in line["answers"]:
        for row in answer["partitions"]:
            found = line | answer | dict(zip(ROW, row, strict=True)) | {"type": "fetch"}
            mark, delay_us = found["highWatermark"], found.pop("delayUs")
            found["lag"] = None if mark is None else max(0, mark - found["offset"])
            found["delayMs"] = None if delay_us is None else delay_us / 1000
            yield {field.name: found.get(field.name) for field in FETCH_FIELDS}


def unfold(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Lines of any version, in their order: a `response` line as the `fetch` lines of its partitions."""
    for line in lines:
        if line["type"] == "response":
            yield from list_partitions(line)
        else:
            yield line


def build_older_lines(line: dict[str, Any], version: int) -> Iterator[str]:
    """A line of today as the lines of an earlier version that say the same, as its writer had them."""
    for one in unfold([line]):
        values = one | {"v": version}
        if one["type"] == "fetch":
            kept = [field.name for field in FETCH_FIELDS if field.since <= version]
            values = {name: values[name] for name in kept}
        said = [f'"{name}":{_format(value)}' for name, value in values.items()]
        yield f"{{{','.join(said)}}}"


def _format(value: Any) -> str:
    """As the writer has it: numbers with three decimals."""
    return f"{value:.3f}" if isinstance(value, float) else json.dumps(value, separators=(",", ":"))
