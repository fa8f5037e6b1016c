"""Traces of the broker's log cleaner in what a Fetch brings. Pure.

Owns the rule by which missing records show that the cleaner has been there. It must not know which topics may be
compacted (replica_fetcher/compaction_policy.py). Invariant: offsets of a log have no gaps but those that compaction
leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.batch import Batch


def find_cleaned_end(fetch_offset: int, batches: Sequence[Batch]) -> int:
    """Up to where a Fetch answer shows that the cleaner has been: records are missing below this offset; -1 where
    none is. Offsets of a log have no gaps but those that compaction leaves.
    """
    cleaned_end, expected = -1, fetch_offset
    for one in batches:
        if one.base_offset > expected:
            cleaned_end = one.base_offset
        if one.record_count <= one.last_offset - one.base_offset:
            cleaned_end = one.last_offset + 1
        expected = one.last_offset + 1
    return cleaned_end
