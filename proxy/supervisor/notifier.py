"""What the supervisor tells a service manager: ready, what it does, stopping, alive (sd_notify(3)).

Owns the socket of NOTIFY_SOCKET and the timer of WATCHDOG_USEC. Must not know why the state changes. Invariants:
* without NOTIFY_SOCKET nothing is sent, and nothing is an error.
* both variables are taken out of the environment, so that no worker speaks for the supervisor.
* a manager that does not read holds nobody up: a message that does not fit is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
BEATS: Final = 3
"""Signs of life within the watchdog's time."""


class Notifier:
    """Tells the manager of `environment`; a silent one if that names none."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """`environment`: where the variables are taken from; None: that of the process."""
        environment = os.environ if environment is None else environment
        path, usec, pid = (environment.pop(name, "") for name in VARIABLES)
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = False
        is_ours = pid in ("", str(os.getpid()))
        self.watchdog_s = int(usec) / 1e6 if usec.isdecimal() and is_ours else 0.0
        """Seconds of silence after which the manager ends the process; 0: it never does."""
        if path[:1] in ("/", "@"):
            self._connect("\0" + path[1:] if path[0] == "@" else path)

    def _connect(self, address: str) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            connection.setblocking(False)
            connection.connect(address)
        except OSError:
            connection.close()
            return
        self._socket = connection

    def start(self) -> None:
        """Begin to give signs of life from the running event loop, if the manager wants any."""
        if self._socket is not None and self.watchdog_s:
            self._send("WATCHDOG=1")
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.watchdog_s / BEATS, self.start)

    def tell_ready(self, doing: str) -> None:
        """Say that clients are accepted: with cache, or piped. `doing`: shown as the status."""
        said = "" if self._is_ready else "READY=1\n"
        self._is_ready = True
        self._send(f"{said}STATUS={doing}")

    def tell(self, doing: str) -> None:
        """Say what is done now."""
        self._send(f"STATUS={doing}")

    def tell_stopping(self) -> None:
        """Say that the process ends."""
        self._send("STOPPING=1\nSTATUS=answering what is in flight")

    def close(self) -> None:
        """End the timer and close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(message.encode())
