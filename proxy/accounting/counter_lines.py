"""Counters in the access log: one line at its start and end, each minute, and at a scrape.

Owns the numbers of these lines and when they are due. Must not know how a line is written, or what is counted.
Invariants:
* the counters of a line are exactly those of the lines put before it and of the sums that are still open: both change
  within one callback of the event loop, and a line is made in a callback of its own.
* scrapes make at most one line in SCRAPE_S.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Final

from metrics.access_log import CountersLine
from metrics.access_log_schema import RESULT_REASONS
from protocol.api import PRODUCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from proxy.accounting.counters import Counters
    from proxy.accounting.empty_answers import EmptyAnswers

MINUTE_S: Final = 60.0
SCRAPE_S: Final = 1.0
"""Shortest time between the lines of two scrapes, in seconds."""


class CounterLines:
    """Puts the lines. `number`: of the last one, 0 before the first."""

    __slots__ = (
        "_access_log",
        "_cache",
        "_counters",
        "_empty",
        "_last",
        "_now",
        "_put_at",
        "_scraped_at",
        "_settle",
    )

    def __init__(
        self,
        access_log: AccessLog,
        counters: Counters,
        cache: BlockCache,
        empty: EmptyAnswers,
        now: Callable[[], float],
        settle: Callable[[], object],
    ) -> None:
        """`empty` has the partitions that are counted and have no line yet. `now` is in seconds. `settle` adds what is
        counted elsewhere to `counters`.
        """
        self._access_log, self._counters, self._cache = access_log, counters, cache
        self._empty, self._now, self._settle = empty, now, settle
        self._last: CountersLine | None = None
        self._put_at = self._scraped_at = float("-inf")

    @property
    def number(self) -> int:
        """The number of the last line, 0 before the first."""
        return 0 if self._last is None else self._last.number

    def put(self, event: str) -> int:
        """Put a line, for one of COUNTERS_EVENTS; returns its number."""
        line = self._build(event)
        self._put_at, self._last = self._now(), line
        self._access_log.put_counters(line)
        return line.number

    def tick(self, now: float) -> None:
        """Put a line if the last one is a minute old. Called periodically; `now` is in seconds."""
        if now - self._put_at >= MINUTE_S:
            self.put("minute")

    def note_scrape(self) -> int:
        """The number of a line with the counters of this moment, which is put if the last one has others; 0 if the
        last scrape has put one less than SCRAPE_S ago.
        """
        if self._last is not None and not self._has_changed(self._last):
            return self._last.number
        now = self._now()
        if now - self._scraped_at < SCRAPE_S:
            return 0
        self._scraped_at = now
        return self.put("scrape")

    def _has_changed(self, last: CountersLine) -> bool:
        """Whether a Fetch was counted since, or other bytes came from the broker."""
        line = self._build(last.event)
        return (line.results, line.upstream) != (last.results, last.upstream)

    def _build(self, event: str) -> CountersLine:
        self._settle()
        fetch, open_sums = self._counters.fetch, self._empty.count_open()
        results = [
            (*verdict, partitions, fetch.record_bytes.get(verdict, 0), open_sums[verdict])
            for verdict in RESULT_REASONS
            if (partitions := fetch.partitions.get(verdict, 0))
        ]
        return CountersLine(
            time_ns() // 1_000_000,
            event,
            self.number + 1,
            results,
            sorted(self._counters.upstream.fetch_bytes.items()),
            fetch.would_hit_bytes,
            self._counters.watch.lease_lapses,
            self._counters.traffic.requests_in[PRODUCE].size_bytes,
            self._access_log.dropped_lines,
            self._cache.peek_admitted_bytes(),
        )
