"""Who reads what, and who is behind: bounded tables for the live view (`/top`).

Owns sums by client, group and topic of the last two windows, and where readers behind stand. Must not know how an
answer was found, nor sockets. Invariants:
* a window has at most `limit` rows; all further readers share one, so that no bytes are lost.
* at most `limit` partitions are known in which somebody is behind; one that nobody asked for in FORGET_S is
  forgotten, and so is one whose reader has come back to the end.
* nothing is estimated: sums are of responses that have left, offsets are those that were asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from proxy.partitions.readable import LAGGING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from proxy.partitions.readable import PartitionOutcome

WINDOW_S: Final = 10.0
"""A window's length; the view covers the present one and the one before it. Windows begin at multiples of it, in all
processes of a machine, so that their sums can be added; the first one is shorter.
"""
RECENT_S: Final = 5
"""A reader is behind if its records entered memory longer ago than this, in seconds, or have an older timestamp."""
RECENT_MS: Final = 1000 * RECENT_S
NS_IN_MS: Final = 1_000_000
FORGET_S: Final = 60.0
MARK_EVERY_S: Final = 15.0
"""Time between two marks of a reader's way, from which its pace follows."""
LONGEST_TEXT: Final = 256
"""Characters of a client id that are kept, as in the access log."""
PENDING: Final = "pending"
"""Reason of a partition whose records have not come yet, such as those that wait for a disk."""

ReaderKey: TypeAlias = "tuple[str | None, str | None, str | bytes]"
"""Client id, group and topic, the topic by name or id, as it was asked for."""


@dataclass(slots=True)
class ReadSums:
    """What one reader got. `answers`: partitions in responses; `misses`: those of them that memory did not answer;
    `delay_s`: how long their reads waited for a disk, together.
    """

    answers: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    pass_bytes: int = 0
    delay_s: float = 0.0

    def add(self, other: ReadSums) -> None:
        """Add what another has counted."""
        self.answers += other.answers
        self.misses += other.misses
        self.hit_bytes += other.hit_bytes
        self.miss_bytes += other.miss_bytes
        self.pass_bytes += other.pass_bytes
        self.delay_s += other.delay_s


class ReaderPosition(NamedTuple):
    """Where a reader stood: `seen_at` in seconds, as `Broker.now`. `admitted_at`: the clock of admitted bytes at its
    records; None: memory did not have them. `timestamp_ms`: of its first batch; None: it was not read.
    """

    seen_at: float
    offset: int
    admitted_at: int | None
    timestamp_ms: int | None


@dataclass(slots=True)
class Standing:
    """A reader that is behind in one partition. `before` and `mark` are older places, at least MARK_EVERY_S apart."""

    now: ReaderPosition
    mark: ReaderPosition
    before: ReaderPosition

    def move(self, to: ReaderPosition) -> None:
        """Note a newer place."""
        if to.seen_at - self.mark.seen_at >= MARK_EVERY_S:
            self.before, self.mark = self.mark, to
        self.now = to


@dataclass(slots=True)
class Window:
    """Sums since `begun_at`, in seconds. `others`: of readers beyond the limit. `totals`: the process's own counts when
    it began.
    """

    begun_at: float
    totals: ProcessTotals
    rows: dict[ReaderKey, ReadSums] = field(default_factory=dict)
    others: ReadSums = field(default_factory=ReadSums)


class ProcessTotals(NamedTuple):
    """Counts of the process since its start: record bytes by result and reason, bytes admitted to memory, and leases
    that lapsed.
    """

    record_bytes: dict[tuple[str, str], int]
    admitted_bytes: int
    lease_lapses: int


class Readers:
    """The tables. `limit` 0: nothing is noted. `tick` is called about once a second."""

    __slots__ = (
        "_clock",
        "_now_ms",
        "_old_ms",
        "_read_totals",
        "_recent_from",
        "_window",
        "before",
        "behind",
        "limit",
        "standings",
    )

    def __init__(
        self,
        limit: int,
        now: float,
        read_totals: Callable[[], ProcessTotals],
        now_ms: Callable[[], int] = lambda: time_ns() // NS_IN_MS,
    ) -> None:
        """`now`: as `Broker.now`, in seconds. `now_ms`: milliseconds since 1970, as records' timestamps."""
        self.limit = limit
        self._now_ms = now_ms
        self._old_ms = now_ms() - RECENT_MS
        self._read_totals = read_totals
        self._window = self.before = Window(now, read_totals())
        self._clock: deque[int] = deque(maxlen=RECENT_S)
        self._recent_from = -1
        self.behind: dict[ReaderKey, dict[int, Standing]] = {}
        self.standings = 0
        """Number of partitions in `behind`."""

    @property
    def rows(self) -> int:
        """Rows of the present window."""
        return len(self._window.rows)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The present window and the one before it; they are one at the start."""
        return (self._window,) if self.before is self._window else (self.before, self._window)

    def set_limit(self, limit: int) -> None:
        """Take another limit. What is above it goes with its window."""
        self.limit = limit
        if not limit:
            self._window.rows.clear()
            self.behind.clear()
            self.standings = 0

    def note(
        self,
        client_id: str | None,
        group: str | None,
        outcomes: Sequence[PartitionOutcome],
        now: float,
    ) -> None:
        """Count a response that has left. The loop calls no function for a reader at the end of a log."""
        rows, behind = self._window.rows, self.behind
        recent_from, old_ms = self._recent_from, self._old_ms
        if client_id is not None and len(client_id) > LONGEST_TEXT:
            client_id = client_id[:LONGEST_TEXT]
        for status, size_bytes, result, reason, delay_s, _, admitted_at, timestamp_ms in outcomes:
            if not size_bytes and reason != PENDING:
                continue
            asked, _, _, why, _ = status
            key = client_id, group, asked[0]
            sums = rows.get(key)
            if sums is None:
                sums = self._begin(key)
            sums.answers += 1
            if result == "hit":
                sums.hit_bytes += size_bytes
                is_behind = admitted_at is not None and admitted_at < recent_from
            else:
                is_behind = why in LAGGING or (
                    timestamp_ms is not None and 0 <= timestamp_ms < old_ms
                )
                if result == "miss":
                    sums.miss_bytes += size_bytes
                    sums.misses += 1
                    sums.delay_s += delay_s
                else:
                    sums.pass_bytes += size_bytes
            if is_behind:
                mark = ReaderPosition(now, asked[3], admitted_at, timestamp_ms)
                self._stand(key, asked[1], mark)
            elif behind and (there := behind.get(key)) is not None and asked[1] in there:
                del there[asked[1]]
                self.standings -= 1

    def _begin(self, key: ReaderKey) -> ReadSums:
        rows = self._window.rows
        if len(rows) >= self.limit:
            return self._window.others
        return rows.setdefault(key, ReadSums())

    def _stand(self, key: ReaderKey, index: int, to: ReaderPosition) -> None:
        there = self.behind.get(key)
        standing = None if there is None else there.get(index)
        if standing is not None:
            if to.timestamp_ms is None and to.offset == standing.now.offset:
                to = to._replace(timestamp_ms=standing.now.timestamp_ms)
            standing.move(to)
        elif self.standings < self.limit:
            self.behind.setdefault(key, {})[index] = Standing(to, to, to)
            self.standings += 1

    def tick(self, now: float) -> None:
        """Timed: begin a new window where it is due, and forget."""
        totals = self._read_totals()
        self._old_ms = self._now_ms() - RECENT_MS
        self._clock.append(totals.admitted_bytes)
        self._recent_from = self._clock[0] if len(self._clock) == RECENT_S else -1
        if now // WINDOW_S > self._window.begun_at // WINDOW_S:
            self.before, self._window = self._window, Window(now, totals)
            self._forget(now)

    def _forget(self, now: float) -> None:
        self.behind = {
            key: kept
            for key, there in self.behind.items()
            if (
                kept := {
                    index: one for index, one in there.items() if now - one.now.seen_at < FORGET_S
                }
            )
        }
        self.standings = sum(map(len, self.behind.values()))

    def sum_rows(self) -> tuple[dict[ReaderKey, ReadSums], ReadSums]:
        """The rows of both windows, and what all further readers got."""
        rows: dict[ReaderKey, ReadSums] = {}
        others = ReadSums()
        for window in self.windows:
            others.add(window.others)
            for key, sums in window.rows.items():
                rows.setdefault(key, ReadSums()).add(sums)
        return rows, others

    def list_standings(self) -> Iterator[tuple[ReaderKey, int, Standing]]:
        """Each reader behind and partition index."""
        for key, there in self.behind.items():
            for index, standing in there.items():
                yield key, index, standing
