"""The way of a log line to standard error: limited by cause, queued, written by a thread of its own.

Owns the bounded queue, the thread, and how often a cause may speak. Knows no event and no format: the formatter is
handed in. A cause is a logger and a message without its values, apart by listener and disk, which the configuration
names. Invariants: `emit` never waits for the stream. Each cause writes at once, then at most one line in SPEAK_EVERY_S:
its newest, with the count of the others as the field `suppressed`. At `limit_lines` queued lines further ones are
dropped and counted; the stream is told how many once it takes lines again.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

SPEAK_EVERY_S = 1.0
MOST_CAUSES = 256
"""Causes that have spoken within SPEAK_EVERY_S; beyond it all others are one."""
LONGEST_CAUSE = 200
APART = ("listener", "disk")
CLOSE_TIMEOUT_S = 1.0
"""How long a stream that nobody reads may hold the end of the process."""
Cause = tuple[object, ...]
OTHERS: Cause = ()


class Stream(Protocol):
    """Standard error, unbuffered: `write` takes some of the bytes, or none (None) where it would block."""

    def write(self, data: memoryview, /) -> int | None:
        """The bytes that were taken. OSError where nobody can take any."""
        ...

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        ...


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts since the start; `queued_lines` are those of now, `limit_lines` their bound."""

    queued_lines: int
    limit_lines: int
    dropped_lines: int
    suppressed_lines: int


@dataclass(slots=True)
class _Spoken:
    """A cause that has spoken: when it may again, and its lines since."""

    next_at: float
    newest: logging.LogRecord | None = None
    waiting_lines: int = 0


class LogQueue(logging.Handler):
    """Writes records to `stream`. The thread starts here; `close` ends it."""

    def __init__(
        self,
        stream: Stream,
        limit_lines: int,
        now: Callable[[], float] = time.monotonic,
        each: frozenset[str] = frozenset(),
    ) -> None:
        """`each`: loggers whose lines are rare by themselves and must not be lost; no cause limits them."""
        super().__init__()
        self._each = each
        self._stream = stream
        self._limit_lines = limit_lines
        self._now = now
        self._queue: deque[str] = deque()
        self._spoken: dict[Cause, _Spoken] = {}
        self._dropped_lines = self._told_lines = self._suppressed_lines = 0
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it. `handle` calls this under the handler's lock."""
        try:
            self._take(record)
        except Exception:
            self.handleError(record)

    def _take(self, record: logging.LogRecord) -> None:
        if record.name in self._each:
            self._put(record, 0)
            return
        now = self._now()
        cause = _find_cause(record)
        if cause not in self._spoken and len(self._spoken) >= MOST_CAUSES:
            cause = OTHERS
        spoken = self._spoken.get(cause)
        if spoken is not None and now < spoken.next_at:
            record.msg, record.args, record.exc_info = (
                record.getMessage(),
                None,
                None,
            )  # let go of what it names
            spoken.newest = record
            spoken.waiting_lines += 1
            return
        waiting_lines = spoken.waiting_lines if spoken is not None else 0
        self._spoken[cause] = _Spoken(now + SPEAK_EVERY_S)
        self._put(record, waiting_lines)

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that cannot be formatted: counted, since logging's own way writes to standard error at once."""
        self._dropped_lines += 1

    def statistics(self) -> QueueStatistics:
        """Counts. `suppressed_lines`: those that a line of the same cause counts, or will."""
        self.acquire()
        try:
            waiting_lines = sum(one.waiting_lines - 1 for one in self._spoken.values() if one.newest)
        finally:
            self.release()
        return QueueStatistics(
            queued_lines=len(self._queue),
            limit_lines=self._limit_lines,
            dropped_lines=self._dropped_lines,
            suppressed_lines=self._suppressed_lines + waiting_lines,
        )

    def close(self) -> None:
        """Write what is queued and what waits, for CLOSE_TIMEOUT_S at most. Idempotent."""
        if not self._closing:
            self._closing = True
            self._wake.set()
            self._thread.join(CLOSE_TIMEOUT_S)
        super().close()

    def _put(self, record: logging.LogRecord, suppressed_lines: int) -> None:
        """Under the lock: format and queue, or drop."""
        if suppressed_lines:
            vars(record)["suppressed"] = suppressed_lines
            self._suppressed_lines += suppressed_lines
        if len(self._queue) >= self._limit_lines:
            self._dropped_lines += 1
            return
        self._queue.append(self.format(record))
        self._wake.set()
        if (
            self._closing and not self._thread.is_alive()
        ):  # the last words of a process, when all else was taken
            self._write_queued()

    def _run(self) -> None:
        while True:
            closing = self._closing
            if not closing:
                self._wake.wait(SPEAK_EVERY_S if self._spoken else None)
            self._wake.clear()
            self.acquire()
            try:
                self._speak_again(float("inf") if closing else self._now())
            finally:
                self.release()
            self._write_queued()
            if closing:
                return

    def _speak_again(self, now: float) -> None:
        """Under the lock: the newest line of each cause whose time has come; forget those with none."""
        for cause, spoken in list(self._spoken.items()):
            if now < spoken.next_at:
                continue
            newest = spoken.newest
            if newest is None:
                del self._spoken[cause]
                continue
            self._spoken[cause] = _Spoken(now + SPEAK_EVERY_S)
            try:
                self._put(newest, spoken.waiting_lines - 1)
            except Exception:
                self.handleError(newest)

    def _write_queued(self) -> None:
        while self._queue:
            self._write(self._queue.popleft())
        dropped_lines = self._dropped_lines - self._told_lines
        if dropped_lines:
            self._told_lines += dropped_lines
            fields = {"name": __name__, "levelname": "WARNING", "dropped": dropped_lines}
            self._write(
                self.format(logging.makeLogRecord(fields | {"msg": "lines of this log were dropped"}))
            )

    def _write(self, line: str) -> None:
        rest = memoryview(line.encode("utf-8", "backslashreplace") + b"\n")
        try:
            while rest:
                taken = self._stream.write(rest)
                if taken is None:
                    select.select([], [self._stream], [])
                    continue
                rest = rest[taken:]
        except OSError:
            self._dropped_lines += 1
            self._told_lines += 1  # nobody is there to be told


def _find_cause(record: logging.LogRecord) -> Cause:
    fields = vars(record)
    return (record.name, str(record.msg)[:LONGEST_CAUSE], *(fields.get(name) for name in APART))
