"""A broker's listener on a slow disk, without a slow disk: what KAFKA-7504 does, played by a forwarder.

Owns a disk that serves one cold read at a time and writes its own /proc/diskstats, and listeners with one
network thread each, played by a lock: while a cold answer waits for the disk, nothing else leaves by that
listener. Must not know Forebay. Invariants: frames pass unchanged and in order; a Fetch answer of at least
COLD_BYTES is cold; a reader of the diskstats sees whole files only.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

FETCH = 1
COLD_BYTES = 256 << 10
TICK_S = 0.05
LINE = "7 0 {name} {reads} 0 {sectors} {busy} 0 0 0 0 {flying} {busy} {waited}\n"


class SlowDisk:
    """Serves `rate` bytes/s, one read at a time. `name`: in the diskstats at `path`."""

    def __init__(self, path: Path, name: str, rate: float) -> None:
        self.path = path
        self._name = name
        self._rate = rate
        self._arm = threading.Lock()
        self._reads = self._bytes = self._waiting = 0
        self.busy_s = 0.0
        self._waited_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._put()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def read(self, size_bytes: int) -> None:
        """Returns when the disk has read them."""
        began = time.monotonic()
        self._waiting += 1
        with self._arm:
            time.sleep(size_bytes / self._rate)
            self.busy_s += size_bytes / self._rate
            self._reads += 1
            self._bytes += size_bytes
        self._waiting -= 1
        self._waited_s += time.monotonic() - began

    def _write(self) -> None:
        while not self._ended.wait(TICK_S):
            self._put()

    def _put(self) -> None:
        busy, waited = round(self.busy_s * 1000), round(self._waited_s * 1000)
        sectors = self._bytes // 512
        line = LINE.format(
            name=self._name,
            reads=self._reads,
            sectors=sectors,
            busy=busy,
            flying=self._waiting,
            waited=waited,
        )
        new = self.path.with_suffix(".new")
        new.write_text(line)
        new.rename(self.path)


class SlowListener:
    """Forwards 127.0.0.1:`port` to `target`."""

    def __init__(self, port: int, target: tuple[str, int], disk: SlowDisk) -> None:
        self._target = target
        self._disk = disk
        self._network_thread = threading.Lock()
        self._server = socket.create_server((HOST, port))
        self.address = f"{HOST}:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more; open connections end with their peers."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(self._target)
                for one in (client, broker):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keys: dict[bytes, int] = {}
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, broker, keys), daemon=True).start()

    def _requests(
        self, client: socket.socket, broker: socket.socket, keys: dict[bytes, int]
    ) -> None:
        with _both_ends(client, broker), client.makefile("rb") as file:
            while frame := _take(file):
                keys[frame[8:12]] = int.from_bytes(frame[4:6], "big")
                broker.sendall(frame)

    def _answers(
        self, client: socket.socket, broker: socket.socket, keys: dict[bytes, int]
    ) -> None:
        with _both_ends(client, broker), broker.makefile("rb") as file:
            while frame := _take(file):
                is_fetch = keys.pop(frame[4:8], 0) == FETCH
                with self._network_thread:
                    if is_fetch and len(frame) >= COLD_BYTES:
                        self._disk.read(len(frame))
                    client.sendall(frame)


@contextlib.contextmanager
def _both_ends(client: socket.socket, broker: socket.socket) -> Iterator[None]:
    """Either end closed closes the other."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for one in (client, broker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _take(file: IO[bytes]) -> bytes:
    """One frame with its length; b"" at the end."""
    head = file.read(4)
    body = file.read(int.from_bytes(head, "big")) if len(head) == 4 else b""
    return head + body
