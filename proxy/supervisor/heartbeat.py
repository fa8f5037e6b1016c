"""Heartbeat: a worker's pipe to the supervisor.

Owns the pipe's writing end. Must not know what the worker does. Each beat is one byte, which says
whether clients are accepted; a keeper's may be followed by one that says that another configuration is in
force. Invariants: a beat comes from the event loop, so that it stops when the
loop hangs; a full pipe holds nobody.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("forebay")

STARTING, READY, RELOADED = b"s", b"r", b"c"
BEATS = 6
"""Beats within `supervisor.heartbeatTimeout`."""


class HeartbeatSender:
    """Beats from `start` to the end of the process. `orphaned` is called once the supervisor is
    gone.
    """

    def __init__(self, fd: int, every_s: float, orphaned: Callable[[], object]) -> None:
        self._fd = fd
        self._every_s = every_s
        self._orphaned = orphaned
        self._state = STARTING
        self._news = b""
        self.is_orphaned = False
        """Whether the supervisor is gone."""
        os.set_blocking(fd, False)

    def start(self) -> None:
        """Beat now and each `every_s` seconds."""
        if self._beat():
            asyncio.get_running_loop().call_later(self._every_s, self.start)

    def become_ready(self) -> None:
        """Say from now on that clients are accepted."""
        self._state = READY
        self._beat()

    def tell_reloaded(self) -> None:
        """Say once that another configuration is in force; with a later beat if the pipe is full."""
        self._news = RELOADED
        self._beat()

    def _beat(self) -> bool:
        """Returns False if the supervisor is gone."""
        try:
            os.write(
                self._fd, self._state + self._news
            )  # two bytes are written at once or not at all
            self._news = b""
        except BlockingIOError:
            pass  # the supervisor stands still, and finds the beats before this one
        except BrokenPipeError:
            log.error("the supervisor is gone: stopping")
            self.is_orphaned = True
            self._orphaned()
            return False
        return True
