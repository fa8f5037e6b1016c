"""One line of the access log's type fetch as a flat tuple, for tests to write and to compare.

Owns the two ways between a flat line and the product's, whose response's fields stand apart. It must not know who logs.
"""

from __future__ import annotations

from typing import NamedTuple

from metrics.access_log import FetchLine, FetchResponseLine, FetchValues


class LoggedFetch(NamedTuple):
    """One partition of one Fetch: the fields of `FetchResponseLine` and of `FetchLine`."""

    ts: int
    listener: str
    connection: int
    client_id: str | None
    api_version: int
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
    wait_ms: float
    total_ms: float
    admitted_bytes: int
    delay_ms: float | None = None
    would_hit_bytes: int | None = None

    def build_line(self) -> FetchLine:
        """The product's line, as the only one of its response."""
        fields = self._asdict()
        response = {name: fields.pop(name) for name in FetchResponseLine._fields}
        return FetchLine(FetchResponseLine(**response), **fields)


def flatten(line: FetchValues) -> LoggedFetch:
    """The flat form of the product's line."""
    fields = {**FetchLine(*line)._asdict(), **FetchResponseLine(*line[0])._asdict()}
    return LoggedFetch(*[fields[name] for name in LoggedFetch._fields])
