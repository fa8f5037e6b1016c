"""A wire that a test can cut: a TCP forwarder between Forebay and a broker's listener.

Owns its listening socket, a thread for each connection and direction, and what the test has told it to do. It
must not know Kafka. Invariants: bytes pass unchanged until it is told otherwise; it listens all its life, so
that a cut listener is one that closes whom it accepts.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from types import TracebackType

CHUNK_BYTES = 1 << 16


class Between:
    """Forwards what comes at `address` to `target`. `accepted` counts connections, refused ones included;
    `noticed` counts pieces from the broker that contain `look_for`.
    """

    def __init__(self, target: tuple[str, int], look_for: bytes = b"") -> None:
        self._target = target
        self._look_for = look_for
        self.noticed = 0
        self._server = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = []
        self._cut_after: int | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self.refusing = False
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """ "host:port" to connect to."""
        host, port = self._server.getsockname()[:2]
        return f"{host}:{port}"

    def cut_after(self, size_bytes: int) -> None:
        """Close every connection once so many more bytes have come from the broker; then refuse new ones."""
        self._cut_after = size_bytes

    def heal(self) -> None:
        """Forward again."""
        self.refusing = False
        self._cut_after = None

    def close_all(self) -> None:
        """Close what is open, in good order, as a broker does with idle connections."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def stall(self) -> None:
        """Hold back what comes from the broker until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        """Let it pass again."""
        self._flowing.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.accepted += 1
                if self.refusing:
                    client.close()
                    continue
                broker = socket.create_connection(self._target)
                self._sockets += [client, broker]
                for work in ((client, broker, False), (broker, client, True)):
                    threading.Thread(target=self._pump, args=work, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_broker: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if is_broker:
                    self.noticed += bool(self._look_for) and self._look_for in chunk
                    self._flowing.wait()
                    if self._cut_after is not None:
                        chunk, self._cut_after = (
                            chunk[: self._cut_after],
                            max(self._cut_after - len(chunk), 0),
                        )
                sink.sendall(chunk)
                if is_broker and self._cut_after == 0:
                    self.refusing, self._cut_after = True, None
                    self.close_all()
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flowing.set()
        self._server.close()
        self.close_all()
