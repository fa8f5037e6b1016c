"""How much of a run's tail reads came from memory, from Forebay's access log.

Owns the sum over the lines of a topic. Must not know the clients. Invariant: bytes are record bytes that left; a
topic that nobody read has a share of None, not of 0 or 1.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Share(NamedTuple):
    """Record bytes read from a topic at one isolation level, and how many of them from memory."""

    hit_bytes: int
    all_bytes: int

    @property
    def share(self) -> float | None:
        """0 to 1; None where nothing was read."""
        return self.hit_bytes / self.all_bytes if self.all_bytes else None


def sum_by_topic(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], Share]:
    """(topic, isolation level) -> its share, over the partitions of responses in an access log (`unfold`)."""
    hits: defaultdict[tuple[str, int], int] = defaultdict(int)
    read: defaultdict[tuple[str, int], int] = defaultdict(int)
    for line in lines:
        if line["type"] == "fetch" and line["topic"] is not None:
            key = line["topic"], line["isolation"]
            read[key] += line["bytes"]
            hits[key] += line["bytes"] if line["result"] == "hit" else 0
    return {key: Share(hits[key], read[key]) for key in read}
