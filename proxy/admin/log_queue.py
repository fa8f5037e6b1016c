"""Log queue: log lines on their way to standard error, limited by cause, queued, written by a
thread.

Owns the bounded queue, the thread, and the rate limit of each cause. Must not know events or
formats: the formatter is handed in. A cause is a logger and a message without its values; listeners
and disks, which the configuration names, count apart. Invariants:
* `emit` never waits for the stream.
* each cause writes at once, then at most a line in SPEAK_EVERY_S: its newest, with the count of the
  others as the field `suppressed`.
* at `limit_lines` queued lines further lines are dropped and counted. A line says how many once the
  stream takes lines again.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

SPEAK_EVERY_S = 1.0
"""Time between two lines of the same cause."""
MOST_CAUSES = 256
"""Most causes with a line in the last SPEAK_EVERY_S. Beyond it all further causes count as OTHERS.
"""
LONGEST_CAUSE = 200
"""Characters of the message that tell causes apart."""
APART = ("listener", "disk")
"""Fields whose values tell causes apart."""
CLOSE_TIMEOUT_S = 1.0
"""How long a stream that nobody reads may delay the end of the process."""
KEPT_WARNINGS = 20
LONGEST_WARNING = 300
"""Characters of a warning that are kept."""
Cause = tuple[object, ...]
OTHERS: Cause = ()


class Stream(Protocol):
    """An unbuffered stream, such as standard error."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some of the bytes. Returns their number, or None if the stream would block. Raises
        OSError if it has no reader.
        """
        ...

    def fileno(self) -> int:
        """The descriptor, for select()."""
        ...


class RecentLine(NamedTuple):
    """A warning or worse. `at`: seconds since 1970."""

    at: float
    level: str
    logger: str
    text: str


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts of lines since the start, except `queued_lines`, which are queued now, and
    `limit_lines`, their limit.
    """

    queued_lines: int
    limit_lines: int
    dropped_lines: int
    suppressed_lines: int


@dataclass(slots=True)
class _CauseState:
    """State of a cause that has written: when it may write again, its newest record since (None:
    none) and their number.
    """

    next_at: float
    newest: logging.LogRecord | None = None
    waiting_lines: int = 0

    def hold(self, record: logging.LogRecord) -> None:
        """Keep `record` as the newest one, which writes the cause's next line."""
        # a record that waits must not keep its arguments alive
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        self.newest = record
        self.waiting_lines += 1


class _LineRates:
    """Limits each cause to one line in SPEAK_EVERY_S seconds, but for the loggers of `each`. `now`
    gives seconds.
    """

    __slots__ = ("_causes", "_each", "_now")

    def __init__(self, now: Callable[[], float], each: frozenset[str]) -> None:
        self._now = now
        self._each = each
        self._causes: dict[Cause, _CauseState] = {}

    @property
    def limits_any(self) -> bool:
        """True if a line was written, or waits, whose cause may not write yet."""
        return bool(self._causes)

    @property
    def waiting_lines(self) -> int:
        """Number of lines that a later line of the same cause will count."""
        return sum(one.waiting_lines - 1 for one in self._causes.values() if one.newest)

    def take(self, record: logging.LogRecord) -> int:
        """Return how many lines of its cause were suppressed before `record`, which may be written
        now; -1 if it waits.
        """
        if record.name in self._each:
            return 0
        now = self._now()
        cause = _find_cause(record)
        if cause not in self._causes and len(self._causes) >= MOST_CAUSES:
            cause = OTHERS
        state = self._causes.get(cause)
        if state is not None and now < state.next_at:
            state.hold(record)
            return -1
        self._causes[cause] = _CauseState(now + SPEAK_EVERY_S)
        return state.waiting_lines if state is not None else 0

    def take_due(self, is_all: bool) -> list[tuple[logging.LogRecord, int]]:
        """Return the newest record of each cause whose time has come, or of every cause, with the
        number of lines suppressed before it. Forget causes without one.
        """
        now = float("inf") if is_all else self._now()
        due = []
        for cause, state in list(self._causes.items()):
            if now < state.next_at:
                continue
            if state.newest is None:
                del self._causes[cause]
                continue
            self._causes[cause] = _CauseState(now + SPEAK_EVERY_S)
            due.append((state.newest, state.waiting_lines - 1))
        return due


class LogQueue(logging.Handler):
    """Handler that writes records to `stream` by a thread, which the constructor starts and `close`
    ends.
    """

    def __init__(
        self,
        stream: Stream,
        limit_lines: int,
        now: Callable[[], float] = time.monotonic,
        each: frozenset[str] = frozenset(),
    ) -> None:
        """`now`: seconds. `each`: loggers without a rate limit, whose lines are rare and must not
        be lost.
        """
        super().__init__()
        self._stream = stream
        self._limit_lines = limit_lines
        self._rates = _LineRates(now, each)
        self._queue: deque[str] = deque()
        self._recent: deque[RecentLine] = deque(maxlen=KEPT_WARNINGS)
        self._dropped_lines = self._reported_lines = self._suppressed_lines = 0
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as suppressed or dropped. logging's `handle` calls this under
        the handler's lock.
        """
        try:
            suppressed_lines = self._rates.take(record)
            if suppressed_lines >= 0:
                self._put(record, suppressed_lines)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a record that cannot be formatted as dropped. logging's own method would write to
        standard error at once.
        """
        self._dropped_lines += 1

    def statistics(self) -> QueueStatistics:
        """The counts. `suppressed_lines` includes lines that a later line of the same cause will
        count.
        """
        self.acquire()
        try:
            waiting_lines = self._rates.waiting_lines
        finally:
            self.release()
        return QueueStatistics(
            queued_lines=len(self._queue),
            limit_lines=self._limit_lines,
            dropped_lines=self._dropped_lines,
            suppressed_lines=self._suppressed_lines + waiting_lines,
        )

    def list_recent(self) -> list[RecentLine]:
        """The last KEPT_WARNINGS warnings and errors that were written, the newest first."""
        self.acquire()
        try:
            return list(reversed(self._recent))
        finally:
            self.release()

    def close(self) -> None:
        """Write all queued and waiting lines, for at most CLOSE_TIMEOUT_S, and end the thread.
        Idempotent.
        """
        if not self._closing:
            self._closing = True
            self._wake.set()
            self._thread.join(CLOSE_TIMEOUT_S)
        super().close()

    def _put(self, record: logging.LogRecord, suppressed_lines: int) -> None:
        """Format and queue a record, or drop it at `limit_lines`. Call under the lock."""
        if suppressed_lines:
            vars(record)["suppressed"] = suppressed_lines
            self._suppressed_lines += suppressed_lines
        if (record.levelno or 0) >= logging.WARNING:
            text = record.getMessage()[:LONGEST_WARNING]
            self._recent.append(RecentLine(record.created, record.levelname, record.name, text))
        if len(self._queue) >= self._limit_lines:
            self._dropped_lines += 1
            return
        self._queue.append(self.format(record))
        self._wake.set()
        if (
            self._closing and not self._thread.is_alive()
        ):  # a record after `close`: the thread is gone, so write the line here
            self._write_queued()

    def _run(self) -> None:
        while True:
            closing = self._closing
            if not closing:
                self._wake.wait(SPEAK_EVERY_S if self._rates.limits_any else None)
            self._wake.clear()
            self.acquire()
            try:
                self._queue_newest(closing)
            finally:
                self.release()
            self._write_queued()
            if closing:
                return

    def _queue_newest(self, is_all: bool) -> None:
        """Queue the newest record of each cause whose time has come, or of every cause. Call under
        the lock.
        """
        for newest, suppressed_lines in self._rates.take_due(is_all):
            try:
                self._put(newest, suppressed_lines)
            except Exception:
                self.handleError(newest)

    def _write_queued(self) -> None:
        while self._queue:
            self._write(self._queue.popleft())
        dropped_lines = self._dropped_lines - self._reported_lines
        if dropped_lines:
            self._reported_lines += dropped_lines
            fields = {"name": __name__, "levelname": "WARNING", "dropped": dropped_lines}
            self._write(
                self.format(
                    logging.makeLogRecord(fields | {"msg": "lines of this log were dropped"})
                )
            )

    def _write(self, line: str) -> None:
        rest = memoryview(line.encode("utf-8", "backslashreplace") + b"\n")
        try:
            while rest:
                taken = self._stream.write(rest)
                if taken is None:
                    self._wait_for_stream()
                    continue
                rest = rest[taken:]
        except OSError:
            self._dropped_lines += 1
            self._reported_lines += 1  # no reader is left for the line about it

    def _wait_for_stream(self) -> None:
        """Sleep until the stream takes bytes again. `poll`, since `select` refuses descriptors above 1023."""
        poller = select.poll()
        poller.register(self._stream, select.POLLOUT)
        poller.poll()


def _find_cause(record: logging.LogRecord) -> Cause:
    fields = vars(record)
    return (record.name, str(record.msg)[:LONGEST_CAUSE], *(fields.get(name) for name in APART))
