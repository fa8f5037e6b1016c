"""Who may ask the admin server, in plain text and over TLS, and how its files are renewed: real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from proxy.admin import access as access_module
from proxy.admin.access import PAGE, PROBES, TOP, AdminAccess
from proxy.admin.http import RESERVED, AdminServer, HttpResponse, build_probes
from proxy.config.admin import Admin, AdminTls
from proxy.config.units import Address
from proxy.sockets import bind
from tests.kit.broker.certificates import Identity, TlsFiles, write_certificates
from tests.kit.broker.settings import HOST
from tests.proxy.event_loop import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
GUARDED = ("/metrics", "/config", TOP)
OPEN_PATHS = (*PROBES, PAGE)


class Stand:
    def __init__(self, server: AdminServer, access: AdminAccess, address: Address) -> None:
        self.server, self.access, self.address = server, access, address

    async def open(
        self, files: TlsFiles | None = None, shows: Identity | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """`files` None: plain text."""
        if files is None:
            return await asyncio.open_connection(*self.address)
        context = ssl.create_default_context(cafile=str(files.authority))
        if shows is not None:
            context.load_cert_chain(shows.certificate, shows.key)
        return await asyncio.open_connection(
            *self.address, ssl=context, server_hostname="localhost"
        )

    async def ask(
        self,
        path: str,
        files: TlsFiles | None = None,
        shows: Identity | None = None,
        token: str = "",
    ) -> int:
        """The status; 0 if there is no answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await self.open(files, shows)
                carried = f"Authorization: Bearer {token}\r\n" if token else ""
                text = f"GET {path} HTTP/1.1\r\nConnection: close\r\n{carried}\r\n"
                writer.write(text.encode())
                answer = await reader.read(-1)
                writer.close()
        except (ssl.SSLError, ConnectionError):
            return 0
        return int(answer.split()[1]) if answer else 0


@asynccontextmanager
async def standing(max_connections: int = 4, **keys: Any) -> AsyncIterator[Stand]:
    config = Admin(listen=Address(HOST, 0), **keys)
    access = AdminAccess(config)
    routes = {
        **build_probes(lambda: (True, [])),
        **{path: lambda: HttpResponse(b"x") for path in (*GUARDED, PAGE)},
    }
    server = AdminServer(
        routes,
        max_connections=max_connections,
        request_timeout_s=config.request_timeout_s,
        access=access.check,
    )
    address = await server.start(bind(config.listen))
    try:
        yield Stand(server, access, address)
    finally:
        await server.close()


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return write_certificates(tmp_path)


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("hunter2\n")
    return str(path)


def tls_of(files: TlsFiles, **more: Any) -> AdminTls:
    server = files.server
    return AdminTls(certificate_file=str(server.certificate), key_file=str(server.key), **more)


@both_loops
def test_all_paths_are_served_over_tls_alone(run: Any, files: TlsFiles) -> None:
    async def scenario() -> None:
        async with standing(tls=tls_of(files)) as stand:
            for path in (*OPEN_PATHS, *GUARDED):
                assert await stand.ask(path, files) == 200
                assert await stand.ask(path) == 0, "plain text"
            await until(lambda: stand.server.connections == 0)

    run(scenario())


@both_loops
def test_probes_need_no_certificate_and_all_else_does(run: Any, files: TlsFiles) -> None:
    async def scenario() -> None:
        tls = tls_of(files, client_ca_file=str(files.authority))
        async with standing(tls=tls) as stand:
            for path in OPEN_PATHS:
                assert await stand.ask(path, files) == 200
            for path in GUARDED:
                assert await stand.ask(path, files) == 403
                assert await stand.ask(path, files, files.client) == 200

    run(scenario())


@both_loops
def test_a_certificate_of_another_authority_reaches_nothing(
    run: Any, files: TlsFiles, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = write_certificates(tmp_path / "other")

    async def scenario() -> None:
        tls = tls_of(files, client_ca_file=str(files.authority))
        async with standing(tls=tls) as stand:
            for path in (*OPEN_PATHS, *GUARDED):
                assert await stand.ask(path, files, other.client) == 0

    run(scenario())


@both_loops
def test_the_page_holds_nothing_and_needs_nothing_its_data_does(run: Any, token_file: str) -> None:
    async def scenario() -> None:
        async with standing(token_file=token_file) as stand:
            assert await stand.ask(PAGE) == 200
            assert await stand.ask(TOP) == 401
            assert await stand.ask(TOP, token="hunter3") == 401
            assert await stand.ask(TOP, token="hunter2") == 200

    run(scenario())


@both_loops
def test_token_and_certificate_are_both_needed(run: Any, files: TlsFiles, token_file: str) -> None:
    async def scenario() -> None:
        tls = tls_of(files, client_ca_file=str(files.authority))
        async with standing(tls=tls, token_file=token_file) as stand:
            for path in GUARDED:
                assert await stand.ask(path, files, None, "hunter2") == 403
                assert await stand.ask(path, files, files.client) == 401
                assert await stand.ask(path, files, files.client, "hunter3") == 401
                assert await stand.ask(path, files, files.client, "hunter2") == 200

    run(scenario())


@both_loops
def test_metrics_can_be_open(run: Any, files: TlsFiles, token_file: str) -> None:
    async def scenario() -> None:
        tls = tls_of(files, client_ca_file=str(files.authority))
        async with standing(tls=tls, token_file=token_file, open_metrics=True) as stand:
            assert await stand.ask("/metrics", files) == 200
            assert await stand.ask("/config", files) == 403

    run(scenario())


@both_loops
def test_a_changed_token_holds_for_open_connections(
    run: Any, token_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "LOOK_EVERY_S", 0.0)

    async def scenario() -> None:
        async with standing(token_file=token_file) as stand:
            reader, writer = await stand.open()
            for token, status in (("hunter2", 200), ("hunter3", 401)):
                writer.write(
                    f"GET /config HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
                )
                head = await reader.readuntil(b"\r\n\r\n")
                assert int(head.split()[1]) == status
                await reader.readexactly(1 if status == 200 else len(b"a token is wanted\n"))
            (tmp_path / "token").write_text("hunter3\n")
            writer.write(b"GET /config HTTP/1.1\r\nAuthorization: Bearer hunter2\r\n\r\n")
            assert int((await reader.readuntil(b"\r\n\r\n")).split()[1]) == 401
            assert await stand.ask("/config", token="hunter3") == 200
            assert stand.access.watched.counts.loaded == 1
            writer.close()

    run(scenario())


async def test_a_blank_token_file_keeps_the_former_token(
    token_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(access_module, "LOOK_EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "forebay.tls")
    async with standing(token_file=token_file) as stand:
        (tmp_path / "token").write_text("\n")
        for _ in range(3):
            assert await stand.ask("/config", token="hunter2") == 200
            assert await stand.ask("/config", token="") == 401
        (told,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert "hunter" not in told.getMessage()
        assert stand.access.watched.counts.refused >= 6


async def test_a_renewed_certificate_is_shown_and_half_a_pair_is_not(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "LOOK_EVERY_S", 0.0)
    (tmp_path / "new").mkdir()
    new = write_certificates(tmp_path / "new")
    async with standing(tls=tls_of(files)) as stand:
        files.server.certificate.write_bytes(new.server.certificate.read_bytes())
        assert await stand.ask("/config", files) == 200
        assert stand.access.watched.failure
        files.server.key.write_bytes(new.server.key.read_bytes())
        assert await stand.ask("/config", new) == 200
        assert await stand.ask("/config", files) == 0
        assert stand.access.watched.failure == ""


@both_loops
def test_silent_handshakes_are_bounded_and_leave_probes_their_places(
    run: Any, files: TlsFiles
) -> None:
    async def scenario() -> None:
        async with standing(max_connections=2, tls=tls_of(files)) as stand:
            silent = [await stand.open() for _ in range(2 + 2 * RESERVED)]
            assert await stand.ask("/livez", files) == 200
            assert await stand.ask("/config", files) == 503
            assert stand.server.connections <= 2 + RESERVED
            for _, writer in silent:
                writer.close()
            await until(lambda: stand.server.connections == 0)

    run(scenario())


@both_loops
def test_a_silent_handshake_ends(run: Any, files: TlsFiles) -> None:
    async def scenario() -> None:
        async with standing(tls=tls_of(files), request_timeout_s="200ms") as stand:
            reader, writer = await stand.open()
            with contextlib.suppress(ConnectionError):
                assert await reader.read(-1) == b""
            await until(lambda: stand.server.connections == 0)
            writer.close()

    run(scenario())


def test_files_that_cannot_be_loaded_refuse_the_start(files: TlsFiles) -> None:
    wrong = tls_of(files).model_copy(update={"key_file": str(files.client.key)})
    with pytest.raises(OSError, match=r"admin: tls: a file cannot be loaded .*keyFile"):
        AdminAccess(Admin(tls=wrong))
