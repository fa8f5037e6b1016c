"""HTTP for operators: metrics, health, state. [socket]

Owns a small HTTP/1.1 server that answers GET and HEAD from a table of routes, and POST from a table
of actions. Must not know Kafka,
the cache or the content of responses. The server is no data path, so asyncio's streams suffice.
Invariants:
* a request's head, the time for it to arrive, the time for its response to be read and the number
  of connections are limited.
* probes get a connection even at that limit.
* a request with a body is refused and its connection closed, so that no byte of the body is taken
  for another request.
* a handler that fails costs a response 500, never the server.
"""

import asyncio
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

from proxy.admin.access import METRICS, OPEN, PROBES, Access
from proxy.config.units import Address
from proxy.sockets import PAUSE_S, find_address

MAX_HEAD_BYTES = 8192
RESERVED = 8
"""Connections beyond the limit, each for a single request to PROBES. At RESERVED of them the oldest
is closed for the next.
"""
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_END_OF_HEAD = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*)")
_log = logging.getLogger(__name__)


class HttpResponse(NamedTuple):
    """The response of a handler; status 200 by default."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK


class HttpRequest(NamedTuple):
    """A request's head. `path` has no query. `keeps_alive`: the connection stays open after the
    response. `authorization`: that header's value, b"" without it. `query`: what follows the path,
    without its mark. `has_origin`: a page in a browser asks.
    """

    method: str
    path: str
    keeps_alive: bool
    authorization: bytes = b""
    query: str = ""
    has_origin: bool = False


class BadRequest(Exception):
    """A request that is refused with `status`, after which the connection is closed."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


ISOLATION = "/isolation"
Handler = Callable[[], HttpResponse | Awaitable[HttpResponse]]
Action = Callable[[str], Awaitable[HttpResponse]]
"""What a POST does; it is given the query."""
READS, ACTS = "GET, HEAD", "POST"
"""The methods of a route, and of an action."""


def json_answer(value: object) -> HttpResponse:
    """A response with a JSON document, indented for people. Values that JSON does not know are
    written as text.
    """
    return HttpResponse(
        json.dumps(value, indent=2, default=str).encode() + b"\n", "application/json"
    )


def build_probes(readiness: Callable[[], tuple[bool, Sequence[str]]]) -> dict[str, Handler]:
    """The routes of PROBES: path to handler. `readiness` returns whether clients should connect,
    and the reasons if not.
    """

    def answer_alive() -> HttpResponse:
        return HttpResponse(b"alive\n")

    def answer_ready() -> HttpResponse:
        is_ready, reasons = readiness()
        if is_ready:
            return HttpResponse(b"ready\n")
        text = "".join(f"not ready: {reason}\n" for reason in reasons or ("starting",))
        return HttpResponse(text.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/healthz": answer_alive, "/livez": answer_alive, "/readyz": answer_ready}


def build_routes(
    metrics: Callable[[], bytes],
    readiness: Callable[[], tuple[bool, Sequence[str]]],
    config: Callable[[], object],
    cache: Callable[[], object],
    throttle: Callable[[], object],
    isolation: Callable[[], object],
) -> dict[str, Handler]:
    """The routes of Forebay: path to handler. `readiness` is that of `build_probes`. The other
    functions return the content of their path.
    """
    return {
        **build_probes(readiness),
        METRICS: lambda: HttpResponse(metrics(), PROMETHEUS_TEXT),
        "/config": lambda: json_answer(config()),
        "/cache": lambda: json_answer(cache()),
        "/throttle": lambda: json_answer(throttle()),
        ISOLATION: lambda: json_answer(isolation()),
    }


def scan_head(head: bytes) -> HttpRequest:
    """Parse a request's head, which ends with its empty line. Raises BadRequest if the head is
    malformed or announces a body.
    """
    line, *headers = head.removesuffix(_END_OF_HEAD).split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no HTTP/1 request line")
    keeps_alive = match[3] == b"1"
    authorization, has_origin = b"", False
    for header in headers:
        field = _HEADER.fullmatch(header)
        if field is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header line is malformed")
        name, value = field[1].lower(), field[2].strip().lower()
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a request may have no body here")
        if name == b"connection" and b"close" in value:
            keeps_alive = False
        if name == b"authorization":
            authorization = field[2].strip()
        has_origin = has_origin or name == b"origin"
    path, _, query = match[2].decode().partition("?")
    return HttpRequest(match[1].decode(), path, keeps_alive, authorization, query, has_origin)


class AdminServer:
    """Serves `routes` (path to handler) and `actions` (path to what a POST does) on listening sockets. Call
    start(), then close(). `access` returns who may ask, at each connection and request. `keeps_alive`
    False: each connection is closed after its first response.
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        *,
        actions: Mapping[str, Action] = MappingProxyType({}),
        max_connections: int = 32,
        request_timeout_s: float = 10.0,
        access: Callable[[], Access] = lambda: OPEN,
        keeps_alive: bool = True,
    ) -> None:
        self._routes = dict(routes)
        self._actions = dict(actions)
        self._max_connections = max_connections
        self._request_timeout_s = request_timeout_s
        self._access = access
        self._keeps_alive = keeps_alive
        self._sockets: list[socket.socket] = []
        self._connections: dict[asyncio.Task[None], None] = {}
        self._reserved: dict[asyncio.Task[None], None] = {}
        self._idle: set[asyncio.Task[None]] = set()
        """Of these, those that wait for another request."""

    @property
    def connections(self) -> int:
        """Number of open connections, reserved ones included."""
        return len(self._connections) + len(self._reserved)

    async def start(self, sockets: Sequence[socket.socket]) -> Address:
        """Accept from `sockets`, which listen and do not block, and own them. Returns the address of the first."""
        self._sockets = list(sockets)
        for one in sockets:
            self._listen(one)
        return find_address(sockets)

    @property
    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return bool(self._sockets)

    def _listen(self, one: socket.socket) -> None:
        if one in self._sockets:
            asyncio.get_running_loop().add_reader(one.fileno(), self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        """Accept a client, and hold its task within the same call: none is accepted and then forgotten."""
        try:
            client, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process has accepted it, or it has gone
        except OSError as error:
            _log.error("cannot accept a client of the admin server: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            loop.call_later(PAUSE_S, self._listen, listening)
            return
        client.setblocking(False)
        is_full = len(self._connections) >= self._max_connections
        held = self._reserved if is_full else self._connections
        if is_full and len(held) >= RESERVED:
            oldest = next(iter(held))
            del held[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(client, is_full))
        held[task] = None
        task.add_done_callback(lambda done: held.pop(done, None))

    def stop_accepting(self) -> None:
        """Close the sockets. Connections that are open end by themselves."""
        for one in self._sockets:
            asyncio.get_running_loop().remove_reader(one.fileno())
            one.close()
        self._sockets = []

    def leave(self) -> None:
        """Another process accepts now. Each connection ends after its response, those that wait for another request at
        once.
        """
        self.stop_accepting()
        self._keeps_alive = False
        for task in self._idle:
            task.cancel()

    async def close(self) -> None:
        """Stop accepting and end all connections."""
        self.stop_accepting()
        held = [*self._connections, *self._reserved]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    async def _serve(self, client: socket.socket, is_full: bool) -> None:
        """Serve a client to the end of its connection. `is_full`: see `_serve_one`."""
        try:
            reader, writer = await self._open(client)
        except (OSError, TimeoutError):
            return  # its TLS handshake has failed
        except asyncio.CancelledError:
            client.close()
            return
        task = asyncio.current_task()
        assert task is not None
        try:
            while await self._serve_one(reader, writer, is_full, task):
                self._idle.add(task)
            writer.close()
            async with asyncio.timeout(self._request_timeout_s):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._idle.discard(task)

    async def _open(
        self, client: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams of a client, after its TLS handshake where there is one. Raises OSError if that fails or takes
        too long. From here on the transport owns the socket.
        """
        loop, context = asyncio.get_running_loop(), self._access().context
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES - len(_END_OF_HEAD), loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        timeout_s = None if context is None else self._request_timeout_s
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            client,
            ssl=context,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=timeout_s,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _serve_one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_full: bool,
        task: asyncio.Task[None],
    ) -> bool:
        """Answer a request. Returns whether another may follow on the connection. `is_full`: answer
        a probe only, and no other request after it. `task`: the connection's. Raises TimeoutError if the
        response is not read in time.
        """
        try:
            head = await self._read_head(reader)
            if head is None:
                return False
            self._idle.discard(task)
            request = scan_head(head)
            if is_full and request.path not in PROBES:
                raise BadRequest(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            answer, allow = await self._answer(request, has_certificate(writer))
            request = request._replace(
                keeps_alive=request.keeps_alive and self._keeps_alive and not is_full
            )
        except BadRequest as refusal:
            answer, allow = HttpResponse(f"{refusal}\n".encode(), status=refusal.status), ""
            request = HttpRequest("GET", "", keeps_alive=False)
        writer.write(
            _build_answer(answer, request.keeps_alive, allow, with_body=request.method != "HEAD")
        )
        async with asyncio.timeout(self._request_timeout_s):
            await writer.drain()
        return request.keeps_alive

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes | None:
        """The head of the next request; None if it does not come whole, or not in time. Raises
        BadRequest if it is too long.
        """
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await reader.readuntil(_END_OF_HEAD)
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise BadRequest(
                status, f"a request's head has at most {MAX_HEAD_BYTES} bytes"
            ) from None
        except (asyncio.IncompleteReadError, TimeoutError):
            return None

    async def _answer(
        self, request: HttpRequest, has_certificate: bool
    ) -> tuple[HttpResponse, str]:
        """The response, and the methods that it must name as allowed (405), or ""."""
        refusal = self._refuse(request, has_certificate)
        if refusal is not None:
            return refusal, ""
        handler, action = self._routes.get(request.path), self._actions.get(request.path)
        if handler is None and action is None:
            known = " ".join(sorted({*self._routes, *self._actions}))
            return HttpResponse(
                f"not found; there are {known}\n".encode(), status=HTTPStatus.NOT_FOUND
            ), ""
        methods = ", ".join([READS] * (handler is not None) + [ACTS] * (action is not None))
        if request.method not in methods.split(", "):
            text = f"only {methods.replace(', ', ' and ')}\n".encode()
            return HttpResponse(text, status=HTTPStatus.METHOD_NOT_ALLOWED), methods
        try:
            if request.method == ACTS and action is not None:
                return await action(request.query), ""
            assert handler is not None
            found = handler()
            return (found if isinstance(found, HttpResponse) else await found), ""
        except Exception:
            _log.exception("the admin handler failed", extra={"path": request.path})
            return HttpResponse(
                b"failed; see the log\n", status=HTTPStatus.INTERNAL_SERVER_ERROR
            ), ""

    def _refuse(self, request: HttpRequest, has_certificate: bool) -> HttpResponse | None:
        """The response to a client that may not ask this; None: it may."""
        access = self._access()
        if request.method == ACTS and request.has_origin:
            # any page that a browser beside the port shows could send it (CSRF)
            return HttpResponse(b"a browser may not change anything\n", status=HTTPStatus.FORBIDDEN)
        if access.is_open(request.path):
            return None
        if access.wants_certificate and not has_certificate:
            return HttpResponse(b"a client certificate is wanted\n", status=HTTPStatus.FORBIDDEN)
        if not access.has_token(request.authorization):
            return HttpResponse(b"a token is wanted\n", status=HTTPStatus.UNAUTHORIZED)
        return None


def has_certificate(writer: asyncio.StreamWriter) -> bool:
    """Whether the client has presented a certificate. One that is not trusted has failed the handshake."""
    found = writer.get_extra_info("ssl_object")
    return found is not None and bool(found.getpeercert())


def _build_answer(
    answer: HttpResponse, keeps_alive: bool, allow: str = "", with_body: bool = True
) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status:d} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        *([f"Allow: {allow}"] if allow else []),
        *(["WWW-Authenticate: Bearer"] if answer.status == HTTPStatus.UNAUTHORIZED else []),
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
    ]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + answer.body if with_body else head
