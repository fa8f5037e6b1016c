"""What the cache says of a partition's index, and of an insertion.

Owns plain values in the order of their words in C (native/pyfastcache.h). Must not know who asks. Invariant: an
offset that there is none of is -1.
"""

from __future__ import annotations

from typing import NamedTuple


class Edges(NamedTuple):
    """What is stored of a partition around an offset (`BlockCache.edges`). Offsets; -1 where there is none.

    The tail is the newest contiguous run: [tail_start, tail_end), equal when nothing is stored. The hole is
    the gap below the next stored run: [hole_start, hole_end), both edges stored. Below `evicted_end` the FIFO
    has let go.
    """

    tail_start: int
    tail_end: int
    hole_start: int
    hole_end: int
    evicted_end: int
    last_epoch: int


class Inserted(NamedTuple):
    """What became of a run (`BlockCache.insert`): all of it, or what lies before a conflict (`conflict_offset`,
    else -1).

    `next_offset` is the end of the last batch taken. `stored_bytes`, of `stored_batches`, are new; `skipped_bytes`
    did not enter (too large, below the log start, or all room is pinned); the others were there already.
    """

    stored_bytes: int
    first_offset: int
    next_offset: int
    conflict_offset: int
    skipped_bytes: int
    stored_batches: int


class Span(NamedTuple):
    """What a hit would be: offsets up to `next_offset`, `size_bytes` of batches. `is_cut`: a stored batch follows below
    the limit offset.
    """

    next_offset: int
    size_bytes: int
    is_cut: bool
