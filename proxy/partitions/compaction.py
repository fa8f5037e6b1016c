"""Traces of the broker's log cleaner in the batches of a Fetch response. Pure.

Owns the rule by which missing records show that the cleaner was there. Must not know which topics
may be compacted (replica_fetcher/compaction_policy.py). Invariant: a log has no gaps in its offsets
except those that compaction leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.batch import Batch


def find_cleaned_end(fetch_offset: int, batches: Sequence[Batch]) -> int:
    """Return the end offset of the range that the log cleaner has visibly cleaned: records are
    missing below it.

    Return -1 if no record is missing. `batches` are in offset order and answer a Fetch at
    `fetch_offset`. The rule holds because a log has no gaps in its offsets except those that
    compaction leaves.
    """
    cleaned_end, expected = -1, fetch_offset
    for one in batches:
        if one.base_offset > expected:
            cleaned_end = one.base_offset
        if one.record_count <= one.last_offset - one.base_offset:
            cleaned_end = one.last_offset + 1
        expected = one.last_offset + 1
    return cleaned_end
