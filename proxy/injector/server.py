"""HTTPS for the API server. [socket]

Owns connections, their bounds, the certificate and the counts. Must not know what a pod is. Invariants:
* each connection carries one request; its head, its body, its time and the number of connections are limited.
* the files of certificate and sidecar are read again when they have changed; files that cannot be read leave the
  former in use, and say so in the log once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING

from proxy.injector.patch import BadReview, build_answer, plan_injection, scan_review, scan_sidecar

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

    from proxy.injector.patch import Sidecar

log = logging.getLogger("forebay.injector")

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 4 << 20
"""An API server refuses objects of more than 3 MiB."""
REQUEST_S = 5.0
LOOK_EVERY_S = 3.0
RESULTS = ("injected", "present", "refused", "failed", "dropped")
_REQUEST_LINE = re.compile(rb"(GET|HEAD|POST) (/[\x21-\x7e]*) HTTP/1\.[01]")
_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]{1,9})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Files:
    """The files of the webhook, and what was read of them last."""

    def __init__(self, sidecar: Path, certificate: Path, key: Path) -> None:
        self._paths = sidecar, certificate, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._seen: object = None
        self.sidecar: Sidecar
        self._read()

    def _read(self) -> None:
        """Raises OSError (of which SSLError is one) and ValueError."""
        sidecar, certificate, key = self._paths
        self._seen = self._look()
        read = scan_sidecar(sidecar.read_text())
        self.context.load_cert_chain(certificate, key)
        self.sidecar = read

    def _look(self) -> object:
        states = [path.stat() for path in self._paths]
        return [(state.st_mtime_ns, state.st_ino, state.st_size) for state in states]

    def refresh(self) -> None:
        """Read the files again where they have changed."""
        try:
            if self._look() == self._seen:
                return
            self._read()
        except (OSError, ValueError) as error:
            log.warning("the injector keeps its former files: %s", error)
            return
        log.info("the injector has read its files again")


class Injector:
    """The webhook's server. Call start(), then close()."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._looking: asyncio.Task[None] | None = None
        self.counts = dict.fromkeys(RESULTS, 0)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from sockets that are bound."""
        for one in sockets:
            server = await asyncio.start_server(
                self._serve,
                sock=one,
                ssl=self._files.context,
                ssl_handshake_timeout=REQUEST_S,
                limit=MAX_HEAD_BYTES,
            )
            self._servers.append(server)
        self._looking = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._files.refresh()

    async def close(self) -> None:
        """Stop accepting, and let requests that are here be answered."""
        if self._looking is not None:
            self._looking.cancel()
        for server in self._servers:
            server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=REQUEST_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            self.counts["dropped"] += 1
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(REQUEST_S):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        line = _REQUEST_LINE.match(head)
        if line is None:
            return _build_response(HTTPStatus.BAD_REQUEST, b"no request line\n")
        method, path = line[1], line[2].partition(b"?")[0]
        if method != b"POST":
            return self._build_page(path)
        length = _LENGTH.search(head)
        if path != b"/inject" or length is None:
            return _build_response(HTTPStatus.NOT_FOUND, b"POST a review to /inject\n")
        if int(length[1]) > MAX_BODY_BYTES:
            return _build_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"too large\n")
        return self._review(await reader.readexactly(int(length[1])))

    def _build_page(self, path: bytes) -> bytes:
        if path in (b"/livez", b"/readyz"):
            return _build_response(HTTPStatus.OK, b"ready\n")
        if path == b"/metrics":
            name = "forebay_injector_reviews_total"
            lines = [f'{name}{{result="{key}"}} {value}\n' for key, value in self.counts.items()]
            text = f"# TYPE {name} counter\n" + "".join(lines)
            return _build_response(HTTPStatus.OK, text.encode(), "text/plain; version=0.0.4")
        return _build_response(HTTPStatus.NOT_FOUND, b"not here\n")

    def _review(self, body: bytes) -> bytes:
        try:
            uid, pod = scan_review(body)
        except BadReview as refusal:
            self.counts["failed"] += 1
            return _build_response(HTTPStatus.BAD_REQUEST, f"{refusal}\n".encode())
        plan = plan_injection(pod, self._files.sidecar)
        self.counts[plan.result] += 1
        metadata = pod.get("metadata") or {}
        name = metadata.get("name") or metadata.get("generateName")
        log.info("pod %s: %s", name, plan.warning or plan.result)
        return _build_response(HTTPStatus.OK, build_answer(uid, plan), "application/json")


def _build_response(status: HTTPStatus, body: bytes, content_type: str = "text/plain") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def run(files: Files, sockets: Sequence[socket.socket], stop: asyncio.Event) -> None:
    """Serve until `stop` is set."""
    injector = Injector(files)
    await injector.start(sockets)
    with contextlib.suppress(asyncio.CancelledError):
        await stop.wait()
    await injector.close()
