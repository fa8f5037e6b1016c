"""Lines of Forebay's access log in a span of time, beside the partitions that were answered with records.

Owns reading a log that is still being written. Must not know loads. Invariants: a line belongs to the time that it
states; the last line of a file may be cut, and is left out.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from metrics.access_log_schema import PARTITION_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BYTES = [field.name for field in PARTITION_FIELDS].index("bytes")


class Lines(NamedTuple):
    """`answered`: partitions that a response carried records of."""

    lines: int
    answered: int

    def per_answer(self, connections: int, elapsed_s: float) -> float:
        """Lines for each answered partition, without one a second for each connection and its topic. Below 0 where
        less than that was written.
        """
        return (self.lines - connections * elapsed_s) / max(self.answered, 1)


def count_lines(directory: Path, begun_s: float, ended_s: float) -> Lines:
    """Count lines of the time from `begun_s` to `ended_s`, in seconds since the epoch."""
    lines = answered = 0
    for path in sorted(directory.iterdir()):
        if path.stat().st_mtime < begun_s:
            continue
        for line in _read_lines(path):
            if begun_s <= line["ts"] / 1e3 < ended_s:
                lines += 1
                if line["type"] == "response":
                    answered += sum(
                        row[BYTES] > 0 for one in line["answers"] for row in one["partitions"]
                    )
    return Lines(lines, answered)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)
