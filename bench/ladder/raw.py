"""The raw client: prepared frames out, answers into one buffer, times around them.

Owns one blocking socket. Must not know who answers. Invariants: nothing is parsed while a clock runs; the
first and the last answer of a series are checked by their caller; TLS has no MSG_WAITALL and reads in pieces.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Self

PREFIX_BYTES = 4
TIMEOUT_S = 60.0
BUFFER_BYTES = 4 << 20


class Line:
    """One connection to `address`, "host:port"; `trust` is the PEM file of the authority, for TLS."""

    def __init__(self, address: str, trust: str | None = None) -> None:
        host, port = address.split(":")
        plain = socket.create_connection((host, int(port)), TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(
            None
        )  # a socket with a time-out is polled before each read: a system call more
        self.socket: socket.socket = plain
        self._flags = int(socket.MSG_WAITALL)
        if trust is not None:
            context = ssl.create_default_context(cafile=trust)
            context.check_hostname = False
            self.socket = context.wrap_socket(plain, server_hostname="localhost")
            self._flags = 0
        self.buffer = memoryview(bytearray(BUFFER_BYTES))

    def call(self, frame: bytes | bytearray) -> int:
        """One request, one answer; the answer's size with its prefix. ConnectionError."""
        self.socket.sendall(frame)
        return self.receive()

    def receive(self) -> int:
        """One answer into the buffer; its size with its prefix."""
        got = self._some(0, BUFFER_BYTES, 0)
        while got < PREFIX_BYTES:
            got += self._some(got, PREFIX_BYTES - got, 0)
        size = PREFIX_BYTES + int.from_bytes(self.buffer[:PREFIX_BYTES], "big")
        while got < size:
            got += self._some(got, size - got, self._flags)
        if got > size:
            raise ConnectionError(f"{got - size} bytes more than the answer has")
        return size

    def _some(self, at: int, size_bytes: int, flags: int) -> int:
        got = self.socket.recv_into(self.buffer[at:], size_bytes, flags)
        if not got:
            raise ConnectionError("closed before the answer")
        return got

    def time_calls(self, frame: bytes, times: int) -> list[int]:
        """ns of each of `times` calls, one in flight."""
        clock, taken = time.perf_counter_ns, []
        for _ in range(times):
            begun = clock()
            self.call(frame)
            taken.append(clock() - begun)
        return taken

    def pipeline(self, frame: bytes, times: int, depth: int) -> int:
        """ns for `times` requests with `depth` in flight; their answers are all of one size."""
        size = self.call(frame)
        begun, sent, got = time.perf_counter_ns(), depth, 0
        self.socket.sendall(frame * depth)
        while got < size * times:
            before = got // size
            got += self._some(0, BUFFER_BYTES, 0)
            more = min(got // size - before, times - sent)
            if more > 0:
                self.socket.sendall(frame * more)
                sent += more
        return time.perf_counter_ns() - begun

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
