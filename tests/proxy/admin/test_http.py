"""The admin server over real sockets on the loopback: routes, refusals, bounds, closing."""

import asyncio
import gc
import json
import re
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import uvloop

from proxy.admin.access import OPEN, PROBES, Access
from proxy.admin.http import (
    MAX_HEAD_BYTES,
    RESERVED,
    Action,
    AdminServer,
    BadRequest,
    Handler,
    HttpResponse,
    build_routes,
    scan_head,
)
from proxy.config.units import Address
from proxy.sockets import bind
from tests.proxy.event_loop import until

T = TypeVar("T")
NEVER_S = 60.0
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def routes_of(ready: tuple[bool, list[str]] = (True, [])) -> dict[str, Handler]:
    def fail() -> HttpResponse:
        raise RuntimeError("hunter2")

    routes = build_routes(
        lambda: b"metric 1\n",
        lambda: ready,
        lambda: {"cache": {"size": "1MiB"}},
        lambda: {"hits": 5},
        lambda: {"disks": {}},
        lambda: {"queues": {}},
    )
    return {**routes, "/fail": fail, "/large": lambda: HttpResponse(b"x" * (8 << 20))}


ANYWHERE = Address("127.0.0.1", 0)


def run_on_uvloop(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario)


@asynccontextmanager
async def serving(
    routes: dict[str, Handler] | None = None,
    max_connections: int = 4,
    request_timeout_s: float = NEVER_S,
    token: str | None = None,
    actions: dict[str, Action] | None = None,
) -> AsyncIterator[Address]:
    server = AdminServer(
        routes_of() if routes is None else routes,
        actions=actions or {},
        max_connections=max_connections,
        request_timeout_s=request_timeout_s,
        access=lambda: Access(token=token.encode()) if token else OPEN,
    )
    address = await server.start(bind(ANYWHERE))
    try:
        yield address
    finally:
        await server.close()


async def exchange(address: Address, sent: bytes) -> bytes:
    """Send, say that nothing follows, and give all that comes until the server closes."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def ask(sent: bytes, routes: dict[str, Handler] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one request on a fresh server."""

    async def run() -> bytes:
        async with serving(routes) as address:
            return await exchange(address, sent)

    head, _, body = run_on_uvloop(run()).partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return int(line.split()[1]), dict(header.split(": ", 1) for header in headers), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", b"metric 1\n"),
        ("/metrics?name=x", "text/plain; version=0.0.4; charset=utf-8", b"metric 1\n"),
        ("/healthz", "text/plain; charset=utf-8", b"alive\n"),
        ("/livez", "text/plain; charset=utf-8", b"alive\n"),
        ("/readyz", "text/plain; charset=utf-8", b"ready\n"),
    ],
)
def test_routes_answer(path: str, content_type: str, body: bytes) -> None:
    status, headers, said = ask(get(path))
    assert (status, headers["Content-Type"], said) == (200, content_type, body)
    assert headers["Content-Length"] == str(len(body))


def test_state_is_json() -> None:
    for path, value in (("/config", {"cache": {"size": "1MiB"}}), ("/cache", {"hits": 5})):
        status, headers, body = ask(get(path))
        assert (status, headers["Content-Type"], json.loads(body)) == (
            200,
            "application/json",
            value,
        )


def test_readiness_says_why_not() -> None:
    status, _, body = ask(
        get("/readyz"), routes_of((False, ["broker b:1 is not reachable", "draining"]))
    )
    assert (status, body) == (503, b"not ready: broker b:1 is not reachable\nnot ready: draining\n")
    assert ask(get("/readyz"), routes_of((False, [])))[2] == b"not ready: starting\n"


def test_head_is_get_without_the_body() -> None:
    status, headers, body = ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (status, headers["Content-Length"], body) == (200, "9", b"")


def test_a_large_answer_arrives_whole() -> None:
    assert len(ask(get("/large"))[2]) == 8 << 20


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (get("/nothing"), 404),
        (get("/healthz/"), 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET http://x/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /met rics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (get("/fail"), 500),
    ],
)
def test_refusals(sent: bytes, status: int) -> None:
    answered, headers, body = ask(sent)
    assert answered == status
    assert (headers.get("Allow") == "GET, HEAD") == (status == 405)
    assert (headers["Connection"] == "close") == (status == 400)
    assert b"hunter2" not in body


def test_a_head_is_taken_up_to_its_bound() -> None:
    start, end = b"GET /healthz HTTP/1.1\r\nX: ", b"\r\n\r\n"
    padding = MAX_HEAD_BYTES - len(start) - len(end)
    assert ask(start + b"a" * padding + end)[0] == 200
    assert ask(start + b"a" * (padding + 1) + end)[0] == 431


def test_a_connection_serves_several_requests_in_order() -> None:
    async def run() -> bytes:
        async with serving() as address:
            last = b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"
            return await exchange(address, GET + get("/nothing") + last + GET)

    answers = run_on_uvloop(run())
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404", b"200"]


def test_http_1_0_closes() -> None:
    assert ask(b"GET /healthz HTTP/1.0\r\n\r\n" * 2)[1]["Connection"] == "close"


@pytest.mark.parametrize("sent", [b"", b"GET /heal"])
def test_late_request_is_dropped(sent: bytes) -> None:
    async def run() -> bytes:
        async with serving(request_timeout_s=0.05) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            answer = await reader.read()
            writer.close()
            return answer

    assert run_on_uvloop(run()) == b""


def test_unread_response_is_dropped() -> None:
    async def run() -> None:
        async with serving(request_timeout_s=0.05) as address:
            reader, writer = await asyncio.open_connection(*address, limit=1024)
            writer.write(get("/large"))
            await reader.readuntil(b"\r\n\r\n")
            with pytest.raises(ConnectionError):
                while True:  # the server stays: it answers others until this connection is gone
                    await exchange(address, GET)
                    writer.write(b"x")
                    await writer.drain()
            writer.close()

    run_on_uvloop(run())


def test_connections_beyond_the_limit_are_refused() -> None:
    async def run() -> list[bytes]:
        async with serving(max_connections=1) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET)
            first = await reader.readuntil(b"alive\n")
            refused = await exchange(address, get("/metrics"))
            writer.write_eof()
            await reader.read()
            writer.close()
            return [first, refused, await exchange(address, GET)]

    first, refused, third = run_on_uvloop(run())
    assert [answer.split()[1] for answer in (first, refused, third)] == [b"200", b"503", b"200"]


def probe(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n\r\n".encode()


@asynccontextmanager
async def holding(address: Address, count: int) -> AsyncIterator[None]:
    """Connections that stay open and say nothing."""
    opened = [await asyncio.open_connection(*address) for _ in range(count)]
    try:
        yield
    finally:
        for _, writer in opened:
            writer.close()


def test_probes_are_answered_at_the_connection_limit() -> None:
    """The kubelet would end a Forebay that does not answer; whoever holds the reserve longest gives way."""

    async def run() -> list[bytes]:
        async with serving(max_connections=2) as address, holding(address, 2 + 3 * RESERVED):
            return [
                await exchange(address, probe(path))
                for path in ("/livez", "/readyz", "/healthz", "/metrics")
            ]

    answers = run_on_uvloop(run())
    assert [answer.split()[1] for answer in answers] == [b"200", b"200", b"200", b"503"]
    assert all(b"Connection: close" in answer for answer in answers)
    assert answers[3].endswith(b"too many connections\n")


def test_the_reserve_is_bounded() -> None:
    async def run() -> int:
        server = AdminServer(routes_of(), max_connections=1)
        address = await server.start(bind(ANYWHERE))
        async with holding(address, 1 + 5 * RESERVED):
            assert await exchange(address, GET)
            held = server.connections
            await server.close()
            return held

    assert run_on_uvloop(run()) <= 1 + RESERVED


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("", 401),
        ("Authorization: Bearer hunter3", 401),
        ("Authorization: Bearer hunter2x", 401),
        ("Authorization: Basic hunter2", 401),
        ("Authorization: hunter2", 401),
        ("Authorization: Bearer hunter2", 200),
        ("authorization: bearer hunter2", 200),
    ],
)
def test_all_but_probes_need_the_token(given: str, status: int) -> None:
    async def run(path: str) -> bytes:
        async with serving(token="hunter2") as address:
            return await exchange(address, f"GET {path} HTTP/1.1\r\n{given}\r\n\r\n".encode())

    for path in ("/metrics", "/config", "/nothing"):
        answer = run_on_uvloop(run(path))
        assert int(answer.split()[1]) == (404 if status == 200 and path == "/nothing" else status)
        assert (b"WWW-Authenticate: Bearer" in answer) == (status == 401)
        assert b"hunter2" not in answer
    for path in PROBES:
        assert run_on_uvloop(run(path)).split()[1] == b"200"


def test_close_ends_connections_and_frees_the_address() -> None:
    async def run() -> bytes:
        server = AdminServer(routes_of())
        address = await server.start(bind(ANYWHERE))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(GET)
        await reader.readuntil(b"alive\n")
        await server.close()
        await server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    assert run_on_uvloop(run()) == b""


def test_a_head_is_scanned_without_a_socket() -> None:
    assert scan_head(b"GET /a?b HTTP/1.1\r\nconnection: Keep-Alive\r\n\r\n") == (
        "GET",
        "/a",
        True,
        b"",
        "b",
        False,
    )
    assert scan_head(b"POST /a HTTP/1.1\r\norigin: null\r\n\r\n").has_origin
    assert (
        scan_head(b"GET / HTTP/1.1\r\nAUTHORIZATION:  Bearer xY \r\n\r\n").authorization
        == b"Bearer xY"
    )
    with pytest.raises(BadRequest, match="no HTTP/1"):
        scan_head(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "token", "status", "allow"),
    [
        ("POST /act", "hunter2", 200, None),
        ("POST /act", "other", 401, None),
        ("POST /act", "", 401, None),
        ("GET /act", "hunter2", 405, "POST"),
        ("HEAD /act", "hunter2", 405, "POST"),
        ("POST /config", "hunter2", 405, "GET, HEAD"),
    ],
)
def test_an_action_runs_by_post_with_the_token_alone(
    request_line: str, token: str, status: int, allow: str | None
) -> None:
    acts: list[int] = []

    async def act(_query: str) -> HttpResponse:
        await asyncio.sleep(0)
        acts.append(1)
        return HttpResponse(b"done\n")

    async def run() -> bytes:
        async with serving(actions={"/act": act}, token="hunter2") as address:
            carried = f"Authorization: Bearer {token}\r\n" if token else ""
            return await exchange(address, f"{request_line} HTTP/1.1\r\n{carried}\r\n".encode())

    head = run_on_uvloop(run()).partition(b"\r\n\r\n")[0].decode()
    assert int(head.split()[1]) == status
    assert ("Allow" in head) is (allow is not None)
    assert allow is None or f"Allow: {allow}" in head
    assert len(acts) == (status == 200)


def test_a_page_in_a_browser_changes_nothing() -> None:
    acts: list[str] = []

    async def act(query: str) -> HttpResponse:
        await asyncio.sleep(0)
        acts.append(query)
        return HttpResponse(b"done\n")

    async def run(head: str) -> bytes:
        async with serving(actions={"/act": act}) as address:
            return await exchange(address, f"{head}\r\n\r\n".encode())

    refused = run_on_uvloop(run("POST /act?a=1 HTTP/1.1\r\nOrigin: http://elsewhere.example"))
    assert refused.startswith(b"HTTP/1.1 403 ")
    assert run_on_uvloop(run("POST /act?a=1&b HTTP/1.1")).startswith(b"HTTP/1.1 200 ")
    assert acts == ["a=1&b"]


def test_a_path_may_be_read_and_acted_on() -> None:
    async def act(_query: str) -> HttpResponse:
        await asyncio.sleep(0)
        return HttpResponse(b"acted\n")

    async def run(method: str) -> bytes:
        routes: dict[str, Handler] = {"/both": lambda: HttpResponse(b"read\n")}
        async with serving(routes, actions={"/both": act}) as address:
            return await exchange(address, f"{method} /both HTTP/1.1\r\n\r\n".encode())

    assert run_on_uvloop(run("GET")).endswith(b"read\n")
    assert run_on_uvloop(run("POST")).endswith(b"acted\n")
    assert b"Allow: GET, HEAD, POST" in run_on_uvloop(run("PUT"))


def test_an_action_that_fails_costs_a_500() -> None:
    async def fail(_query: str) -> HttpResponse:
        raise RuntimeError("hunter2")

    async def run() -> bytes:
        async with serving(actions={"/act": fail}) as address:
            return await exchange(address, b"POST /act HTTP/1.1\r\n\r\n")

    answer = run_on_uvloop(run())
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"hunter2" not in answer


@pytest.mark.parametrize("turns", range(5))
def test_a_client_is_answered_or_left_to_the_next_server(turns: int) -> None:
    """Whenever the server stops to accept; the supervisor shares its sockets with a worker, on asyncio's own loop."""

    async def scenario() -> bytes:
        (listening,) = bind(ANYWHERE)
        server, successor = AdminServer(routes_of()), AdminServer(routes_of())
        await server.start([listening.dup()])
        with socket.create_connection(listening.getsockname()) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, GET)
            for _ in range(turns):
                await asyncio.sleep(0)
            server.stop_accepting()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await successor.start([listening])
            answer = await asyncio.wait_for(loop.sock_recv(client, 1 << 16), NEVER_S)
        await server.close()
        await successor.close()
        return answer

    gc.collect()
    gc.disable()  # a connection that was forgotten would be closed at a collection, some time later
    try:
        assert b"200 OK" in asyncio.run(scenario())
    finally:
        gc.enable()


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_who_was_accepted_is_answered_by_a_server_that_leaves(is_asked_before: bool) -> None:
    """At an upgrade: a scrape whose connection the former process has accepted is not cut. One that waits for another
    request is, since it would keep the former process.
    """

    async def run() -> tuple[bytes, bytes]:
        asked = asyncio.Event()

        async def answer_late() -> HttpResponse:
            asked.set()
            await may_answer.wait()
            return HttpResponse(b"late\n")

        may_answer = asyncio.Event()
        server = AdminServer({**routes_of(), "/late": answer_late})
        address = await server.start(bind(ANYWHERE))
        reader, writer = await asyncio.open_connection(*address)
        idle_reader, idle_writer = await asyncio.open_connection(*address)
        idle_writer.write(GET)
        await idle_reader.readuntil(b"alive\n")
        await until(lambda: server.connections == 2)
        if is_asked_before:
            writer.write(GET.replace(b"/healthz", b"/late"))
            await asked.wait()
        server.leave()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        if not is_asked_before:
            writer.write(GET.replace(b"/healthz", b"/late"))
        may_answer.set()
        try:
            idle = await idle_reader.read()
        except ConnectionResetError:
            idle = b""
        answer = await reader.read()  # to the end of the connection
        writer.close()
        idle_writer.close()
        await server.close()
        return idle, answer

    idle, answer = run_on_uvloop(run())
    assert idle == b""
    assert answer.endswith(b"late\n")
    assert b"Connection: close" in answer
