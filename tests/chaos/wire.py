"""A wire that faults cut and stall: a TCP forwarder with a fixed address, for as long as a run lasts.

Owns its listening socket and two threads for each connection. Must not know Kafka. Invariants: bytes pass
unchanged and in order until a cut; a cut comes after a number of bytes, so in the middle of a frame as often
as not, and ends both sides; who has vanished says nothing more, not even that it has closed, until it is found
(`find_vanished`: both ends are reset); who cannot be connected to its target is closed; nothing a peer does ends
the accepting.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from types import TracebackType

CHUNK_BYTES = 1 << 16
LONGEST_STALL_S = 60.0
SHOWN_BYTES = 64
AT_ONCE = struct.pack("ii", 1, 0)


class LastWords:
    """The last chunk that was passed on from one end, and when; when that end said that it was the last."""

    def __init__(self) -> None:
        self.chunk = b""
        self.at = self.ended_at = float("-inf")

    def heard(self, chunk: bytes) -> None:
        self.chunk, self.at = chunk, time.monotonic()


class Line:
    """One connection there and one back."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.ends = (near, far)
        self.last_words = {near: LastWords(), far: LastWords()}
        self.left_bytes: int | None = None
        self.vanished = False
        self.found = threading.Event()

    def describe(self) -> str:
        """Who has closed, and what each end said last: a client's request begins with its size and API key."""
        now = time.monotonic()
        said = []
        for name, words in zip(("near", "far"), self.last_words.values(), strict=True):
            ended = f", closed {now - words.ended_at:.1f} s ago" if words.ended_at > 0 else ""
            head = words.chunk[:SHOWN_BYTES].hex(" ", 4)
            said.append(
                f"{name} end: {len(words.chunk)} bytes {now - words.at:.1f} s ago{ended}: {head}"
            )
        return "; ".join(said)

    def end(self, *, reset: bool = False) -> None:
        """Close both ways: in order, or with a reset."""
        for one in self.ends:
            with contextlib.suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                one.shutdown(socket.SHUT_RDWR)


class Wire:
    """Forwards what comes to `port` of the loopback to `target`; port 0: any."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.target = target
        self._server = socket.create_server((HOST, port))
        self._lines: set[Line] = set()
        self._half_open: set[Line] = set()
        self._gone: list[
            tuple[LastWords, ...]
        ] = []  # of those closed at both ends, with a question open
        self._flowing = threading.Event()
        self._flowing.set()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """ "host:port" to connect to."""
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}"

    @property
    def open_lines(self) -> int:
        """Connections neither of whose ends has closed."""
        return len(self._lines)

    def describe_half_open(self) -> list[str]:
        """Connections of which one end has closed and the other has not, and what was said on them last."""
        return [line.describe() for line in list(self._half_open)]

    def unanswered(self, *, near_closed: bool) -> list[bytes]:
        """What near ends said last, to which far ends have said nothing: those that have closed, be it that the far end
        has, too, or does not know of it (`vanish`), or those that have not.
        """
        lines = list(self._half_open | self._lines)
        found = [*self._gone, *(tuple(line.last_words.values()) for line in lines)]
        return [
            near.chunk
            for near, far in found
            if near.at > far.at and (near.ended_at > 0) is near_closed
        ]

    def cut(self, after_bytes: int) -> int:
        """End every connection once so many more bytes have passed on it; how many connections that is."""
        lines = list(self._lines)
        for line in lines:
            line.left_bytes = after_bytes
        return len(lines)

    def vanish(self) -> int:
        """Every connection is lost without a word: what is sent goes nowhere, and no end is seen; how many."""
        lines = list(self._lines)
        for line in lines:
            line.vanished = True
        return len(lines)

    def find_vanished(self) -> None:
        """Reset what has vanished, as a machine does that has come back and knows of no connection."""
        for line in [line for line in self._lines if line.vanished]:
            line.found.set()
            line.end(reset=True)

    def stall(self) -> None:
        """Pass nothing on until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target, 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            line = Line(near, far)
            self._lines.add(line)
            for source, sink in ((near, far), (far, near)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(line, source, sink), daemon=True).start()

    def _pump(self, line: Line, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                self._flowing.wait(LONGEST_STALL_S)
                if line.vanished:
                    continue
                line.last_words[source].heard(chunk)
                left = line.left_bytes
                if left is not None and left <= len(chunk):
                    sink.sendall(chunk[:left])
                    self.cuts += 1
                    line.end(reset=bool(left % 2))
                    break
                if left is not None:
                    line.left_bytes = left - len(chunk)
                sink.sendall(chunk)
        if line.vanished:
            line.found.wait(LONGEST_STALL_S)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        self._leave(line, source)

    def _leave(self, line: Line, source: socket.socket) -> None:
        """The second of the two to come here closes."""
        line.last_words[source].ended_at = time.monotonic()
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RD)
        self._half_open.add(line)
        try:
            self._lines.remove(line)  # at once a question and its effect: both may be here
        except KeyError:
            self._half_open.discard(line)
            near, far = line.last_words.values()
            if near.at > far.at:
                self._gone.append((near, far))
            for one in line.ends:
                one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for line in list(self._lines):
            line.found.set()
            line.end()
