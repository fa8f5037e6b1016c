"""The admission rule, as one pure function: may a run of batches enter the cache, and why (not)?

Owns: the rule of design "Admission": time order, never pollution. Must not know: bytes, the arena, where a
run came from beyond what `Run` says. Invariants: exactly one reason for each run; a lagging reader's answer
never enters. Each row of `RULES` is one case, the first that applies decides.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


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

    `next_offset` is the end of the last batch taken. `stored_bytes` are new; `skipped_bytes` did not enter
    (too large, below the log start, or all room is pinned); the others were there already.
    """

    stored_bytes: int
    first_offset: int
    next_offset: int
    conflict_offset: int
    skipped_bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches that ask to enter: [first_offset, next_offset), known-empty offsets included."""

    first_offset: int
    next_offset: int
    size_bytes: int
    acknowledged: bool = False  # by Produce, just now
    high_watermark: int = -1  # of the Fetch answer that brought it; -1: none
    last_stable_offset: int = -1


class Admission(enum.Enum):
    """The reason for a decision; `enters` is the decision."""

    ACKNOWLEDGED = "acknowledged"
    STARTS_AT_TAIL = "starts-at-tail"
    REACHES_HIGH_WATERMARK = "reaches-high-watermark"
    REACHES_LAST_STABLE_OFFSET = "reaches-last-stable-offset"
    FILLS_HOLE = "fills-hole"
    EMPTY = "empty"
    STORED = "stored"
    EVICTED = "evicted"
    HOLE_TOO_LARGE = "hole-too-large"
    LAGGING = "lagging"

    @property
    def enters(self) -> bool:
        """Whether the run may be inserted."""
        return self in ENTERING


ENTERING = frozenset(
    {
        Admission.ACKNOWLEDGED,
        Admission.STARTS_AT_TAIL,
        Admission.REACHES_HIGH_WATERMARK,
        Admission.REACHES_LAST_STABLE_OFFSET,
        Admission.FILLS_HOLE,
    }
)


def is_stored(run: Run, edges: Edges) -> bool:
    """Nothing of it is new: it lies within the tail."""
    return edges.tail_start <= run.first_offset and run.next_offset <= edges.tail_end


def starts_at_tail(run: Run, edges: Edges) -> bool:
    """It continues the tail (the tail's last batch may be in it again)."""
    return 0 <= edges.tail_start <= run.first_offset <= edges.tail_end < run.next_offset


def is_in_hole(run: Run, edges: Edges) -> bool:
    """It covers a whole gap of which both edges are stored."""
    return edges.hole_start >= 0 and run.first_offset <= edges.hole_start < edges.hole_end <= run.next_offset


RULES: tuple[tuple[Admission, Callable[[Run, Edges, int], bool]], ...] = (
    (Admission.EMPTY, lambda run, edges, block: run.size_bytes <= 0),
    # Older than the arena's oldest block: the FIFO has let go of what is above it.
    (Admission.EVICTED, lambda run, edges, block: run.next_offset <= edges.evicted_end),
    (Admission.STORED, lambda run, edges, block: is_stored(run, edges)),
    (Admission.ACKNOWLEDGED, lambda run, edges, block: run.acknowledged),
    (Admission.STARTS_AT_TAIL, lambda run, edges, block: starts_at_tail(run, edges)),
    (Admission.REACHES_HIGH_WATERMARK, lambda run, edges, block: 0 <= run.high_watermark <= run.next_offset),
    (
        Admission.REACHES_LAST_STABLE_OFFSET,
        lambda run, edges, block: 0 <= run.last_stable_offset <= run.next_offset,
    ),
    (Admission.HOLE_TOO_LARGE, lambda run, edges, block: is_in_hole(run, edges) and run.size_bytes >= block),
    (Admission.FILLS_HOLE, lambda run, edges, block: is_in_hole(run, edges)),
    (Admission.LAGGING, lambda run, edges, block: True),
)


def plan_admission(run: Run, edges: Edges, block_bytes: int) -> Admission:
    """Decides about `run`, given what is stored around its start and the size of holes not filled."""
    return next(reason for reason, applies in RULES if applies(run, edges, block_bytes))
