"""A client that asks the same again and again, and keeps what it felt.

Owns its thread, its socket and its rows. It must not know what is asked, beyond how a Produce says that it failed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from tests.e2e.raw_frames import PRODUCE_VERSION, TIMEOUT_S, Raw
from tests.kit import produce_messages

if TYPE_CHECKING:
    from collections.abc import Callable


NOT_ANSWERED = -2


class Asking:
    """A thread that asks again and again over one connection. `rows`: (when asked, latency in s, error code)."""

    def __init__(self, address: str, build: Callable[[], bytes], pause_s: float) -> None:
        self.rows: list[tuple[float, float, int]] = []
        self._raw = Raw(address)
        self._build, self._pause_s = build, pause_s
        self._waits_since: float | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            frame, asked_at = self._build(), time.monotonic()
            self._waits_since = asked_at
            try:
                answer = self._raw.call(frame)
            except OSError:  # it was ended while it waited, which counts for as long
                self._waits_since = None
                self.rows.append((asked_at, time.monotonic() - asked_at, NOT_ANSWERED))
                return
            self.rows.append((asked_at, time.monotonic() - asked_at, error_of(frame, answer)))
            self._waits_since = None
            self._ends.wait(self._pause_s)

    def between(self, start: float, end: float) -> list[float]:
        """Latencies in s of what was asked then; of what is not answered yet, how long it has waited."""
        waits_since = self._waits_since
        waiting = [] if waits_since is None else [(waits_since, time.monotonic() - waits_since, 0)]
        rows = [*self.rows, *waiting]
        return [latency_s for asked_at, latency_s, _ in rows if start <= asked_at < end]

    def finish(self) -> None:
        """After the answer that it waits for."""
        self._ends.set()
        self._thread.join(TIMEOUT_S)
        self._raw.socket.close()

    def end(self) -> None:
        """Also one that waits for an answer."""
        self._ends.set()
        with contextlib.suppress(OSError):
            self._raw.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._raw.socket.close()


def error_of(frame: bytes, answer: bytes) -> int:
    if frame[4:6] != b"\0\0":
        return 0
    return produce_messages.scan_response(answer, PRODUCE_VERSION).partitions[0].error_code
