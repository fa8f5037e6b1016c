"""Partitions answered without records, for the access log: counted in sums, one line per sum.

Owns the open sums. Must not know how a line is written, or what a Fetch is. A sum counts the
partitions of one connection, client id, topic, result and reason. Invariants:
* every partition that is added is in one sum, and every sum becomes one line.
* no sum covers time on both sides of a multiple of EMPTY_INTERVAL_MS. With the next interval the
  sums are due, and their lines follow within TICKS ticks; the connection need not live that long.
* responses of one connection that name the same partitions are a run, which becomes sums when its
  interval ends: it costs nothing for a partition without news.
* the sums hold a bounded number of partitions: a share of the log's queue.
"""

from __future__ import annotations

from collections import Counter, deque
from time import time_ns
from typing import TYPE_CHECKING, Final, TypeAlias

from metrics.access_log_schema import EMPTY_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from metrics.access_log import AccessLog, EmptyValues

TICKS: Final = 10
"""Number of janitor ticks within which all sums of the last interval end; fewer if there are fewer
sums.
"""
QUEUE_SHARE: Final = 2
"""Divisor of the log's queue: all sums together may name half as many partitions as it has lines.
Each sum names at least one, so all of their lines fit into half of the queue when it is closed.
"""

AskerKey: TypeAlias = "tuple[str, int, str | None, str | None]"
"""Listener, connection, client id and group, with which a SumKey begins."""
AskedTopic: TypeAlias = "str | bytes"
"""A topic as a client names it."""
Describe: TypeAlias = "Callable[[AskedTopic], tuple[str | None, bytes | None]]"
"""Returns name and id of a topic as they appear in the log."""
CLEAN = ("hit", "")
"""Result and reason of a partition at the end of its log."""
SumKey: TypeAlias = "tuple[str, int, str | None, str | None, str | None, bytes | None, str, str]"
"""Listener, connection, client id, group, topic name, topic id, result and reason, as in `EmptyLine`."""


class Sum:
    """Partitions of one key. `named`: number of partitions, each as often as it has a lag of its
    own.
    """

    __slots__ = (
        "_admitted_bytes",
        "_counts",
        "_first_ms",
        "_key",
        "_last_ms",
        "_responses",
        "named",
    )

    def __init__(self, key: SumKey, now_ms: int, admitted_bytes: int) -> None:
        self._key = key
        self._first_ms = self._last_ms = now_ms
        self._admitted_bytes = admitted_bytes
        self._responses = 0
        self._counts: dict[int | None, Counter[int]] = {}
        self.named = 0

    def add(self, now_ms: int, by_lag: Mapping[int | None, Sequence[int]]) -> None:
        """Count the partitions of one response."""
        self._last_ms = max(now_ms, self._last_ms)
        self._responses += 1
        for lag, partitions in by_lag.items():
            counted = self._counts.get(lag)
            if counted is None:
                counted = self._counts[lag] = Counter()
            self.named -= len(counted)
            counted.update(partitions)
            self.named += len(counted)

    def merge(self, run: ResponseRun, responses: int, counts: Mapping[int, int]) -> None:
        """Count partitions of a run's responses, without lag: how often each was named."""
        self._first_ms = min(run.first_ms, self._first_ms)
        self._last_ms = max(run.last_ms, self._last_ms)
        self._responses += responses
        counted = self._counts.setdefault(0, Counter())
        self.named -= len(counted)
        counted.update(counts)
        self.named += len(counted)

    @property
    def verdict(self) -> tuple[str, str]:
        """Result and reason of all of its partitions."""
        return self._key[-2:]

    @property
    def partitions(self) -> int:
        """Partitions, each as often as a response named it."""
        return sum(sum(counted.values()) for counted in self._counts.values())

    def line(self) -> EmptyValues:
        """Return the fields of `EmptyLine`, in its order. Do not add to the sum afterwards."""
        return (
            self._last_ms,
            self._first_ms,
            *self._key,
            self._responses,
            self._admitted_bytes,
            self._counts,
        )


class ResponseRun:
    """Responses of one asker that named the same partitions, nearly all at the end of their logs.

    Counts the responses, and those partitions that were not at the end. `named`: partitions by topic.
    """

    __slots__ = (
        "_others",
        "_without",
        "admitted_bytes",
        "asker",
        "describe",
        "first_ms",
        "last_ms",
        "named",
        "responses",
        "size",
    )

    def __init__(
        self,
        asker: AskerKey,
        named: Mapping[AskedTopic, Sequence[int]],
        describe: Describe,
        now_ms: int,
        admitted_bytes: int,
    ) -> None:
        self.asker = asker
        self.named = named
        self.describe = describe
        self.first_ms = self.last_ms = now_ms
        self.admitted_bytes = admitted_bytes
        self.responses = 0
        self.size = sum(map(len, named.values()))
        self._others: Counter[tuple[AskedTopic, int]] = Counter()
        self._without: Counter[AskedTopic] = Counter()

    def add(self, now_ms: int, others: Sequence[tuple[AskedTopic, int]]) -> None:
        """Count one response. `others`: partitions that are counted elsewhere."""
        self.last_ms = max(now_ms, self.last_ms)
        self.responses += 1
        self._others.update(others)
        for topic, count in Counter(topic for topic, _ in others).items():
            self._without[topic] += count == len(self.named[topic])

    @property
    def partitions(self) -> int:
        """Partitions, each as often as a response named it without records."""
        return self.responses * self.size - self._others.total()

    def topics(self) -> Iterator[tuple[AskedTopic, int, dict[int, int]]]:
        """Each topic with the number of responses that named some partition of it without records,
        and how often they named each. Topics and partitions of which there are none are left out.
        """
        for topic, partitions in self.named.items():
            counts = {one: self.responses - self._others[topic, one] for one in partitions}
            counts = {one: times for one, times in counts.items() if times}
            if counts:
                yield topic, self.responses - self._without[topic], counts


def read_wall_ms() -> int:
    """The wall clock, in milliseconds since 1970."""
    return time_ns() // 1_000_000


class EmptyAnswers:
    """The open sums of one process. `len`: partitions that they name, at most `limit`; at the limit
    the oldest sums end.
    """

    __slots__ = (
        "_access_log",
        "_due",
        "_interval",
        "_named",
        "_now_ms",
        "_runs",
        "_share",
        "_sums",
        "limit",
    )

    def __init__(
        self,
        access_log: AccessLog,
        queue_lines: int,
        now_ms: Callable[[], int] = read_wall_ms,
    ) -> None:
        """`queue_lines`: capacity of the log's queue, in lines."""
        self._access_log = access_log
        self._now_ms = now_ms
        self.limit = queue_lines // QUEUE_SHARE
        self._sums: dict[SumKey, Sum] = {}  # of the current interval
        self._runs: dict[
            tuple[AskerKey, int], ResponseRun
        ] = {}  # of the current interval; by `id` of `named`
        self._due: deque[Sum] = deque()  # of intervals before it, the oldest first
        self._interval = 0
        self._share = 0
        self._named = 0

    def __len__(self) -> int:
        return self._named

    def add(
        self, key: SumKey, by_lag: Mapping[int | None, Sequence[int]], admitted_bytes: int
    ) -> None:
        """Count the partitions that one response named without records: lag, as in the log's
        `counts`, to partition indices. `admitted_bytes`: bytes stored so far.
        """
        now_ms = self._now_ms()
        self._turn(now_ms)
        one = self._sums.get(key)
        if one is None:
            one = self._sums[key] = Sum(key, now_ms, admitted_bytes)
        self._named -= one.named
        one.add(now_ms, by_lag)
        self._named += one.named
        if self._named > self.limit:
            self._hold_limit()

    def add_run(
        self,
        asker: AskerKey,
        named: Mapping[AskedTopic, Sequence[int]],
        others: Sequence[tuple[AskedTopic, int]],
        describe: Describe,
        admitted_bytes: int,
    ) -> None:
        """Count a response that named the partitions `named`, by topic, all without records and at
        the end of their logs, but for `others`, which are added on their own.

        Costs nothing for a partition if the same object `named` comes again.
        """
        now_ms = self._now_ms()
        self._turn(now_ms)
        key = asker, id(named)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = ResponseRun(asker, named, describe, now_ms, admitted_bytes)
            self._named += run.size
        run.add(now_ms, others)
        if self._named > self.limit:
            self._hold_limit()

    def count_open(self) -> Counter[tuple[str, str]]:
        """Partitions of sums that are no lines yet, by result and reason."""
        counted: Counter[tuple[str, str]] = Counter()
        for one in (*self._sums.values(), *self._due):
            counted[one.verdict] += one.partitions
        for run in self._runs.values():
            counted[CLEAN] += run.partitions
        return counted

    def tick(self, _now: float) -> None:
        """End a share of the sums that are due. Called periodically."""
        self._turn(self._now_ms())
        for _ in range(min(self._share, len(self._due))):
            self._end(self._due.popleft())

    def close(self) -> None:
        """End all sums. Call before the log is closed."""
        self._end_runs()
        self._due.extend(self._sums.values())
        self._sums.clear()
        while self._due:
            self._end(self._due.popleft())

    def _turn(self, now_ms: int) -> None:
        """Let all sums be due if the wall clock has reached another interval, or gone back to one."""
        interval = now_ms // EMPTY_INTERVAL_MS
        if interval != self._interval:
            self._interval = interval
            self._end_runs()
            self._due.extend(self._sums.values())
            self._sums.clear()
            self._share = -(-len(self._due) // TICKS)

    def _end_runs(self) -> None:
        """Make sums of all runs."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self._named -= run.size
            for topic, responses, counts in run.topics():
                key = *run.asker, *run.describe(topic), *CLEAN
                one = self._sums.get(key)
                if one is None:
                    one = self._sums[key] = Sum(key, run.first_ms, run.admitted_bytes)
                self._named -= one.named
                one.merge(run, responses, counts)
                self._named += one.named

    def _hold_limit(self) -> None:
        """End the oldest sums while all name too many partitions."""
        while self._named > self.limit:
            if not self._due and not self._sums:
                self._end_runs()
                continue
            self._end(self._due.popleft() if self._due else self._sums.pop(next(iter(self._sums))))

    def _end(self, one: Sum) -> None:
        self._named -= one.named
        self._access_log.put_empty(one.line())
