"""The webhook over HTTPS: answers, bounds, and files that change under it."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.config.units import parse_listen_address
from proxy.injector import server
from proxy.injector.patch import API_VERSION
from proxy.injector.server import Files, Injector
from proxy.sockets import bind, find_address


def write_certificate(directory: Path, name: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    command += ["-keyout", str(directory / "tls.key"), "-out", str(directory / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def write_sidecar(directory: Path, name: str = "forebay") -> None:
    sidecar = {
        "initContainers": [{"name": name}],
        "volumes": [],
        "labels": {},
        "annotations": {},
        "graceSeconds": 30,
    }
    (directory / "sidecar.json").write_text(json.dumps(sidecar))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    write_certificate(tmp_path, "first.test")
    write_sidecar(tmp_path)
    return Files(tmp_path / "sidecar.json", tmp_path / "tls.crt", tmp_path / "tls.key")


class Running:
    """An injector and its port."""

    def __init__(self, injector: Injector, port: int) -> None:
        self.injector, self.port = injector, port

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of an answer; status 0 where the connection ends without one."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
            writer.write(request)
            said = await reader.read()
            writer.close()
        except OSError:
            return 0, b""
        head, _, body = said.partition(b"\r\n\r\n")
        return (int(head.split()[1]), body) if head else (0, b"")

    async def post(self, body: bytes, path: str = "/inject") -> tuple[int, bytes]:
        return await self.ask(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self.ask(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())


@pytest.fixture
async def running(files: Files) -> AsyncIterator[Running]:
    sockets = bind(parse_listen_address("127.0.0.1:0"))
    injector = Injector(files)
    await injector.start(sockets)
    yield Running(injector, find_address(sockets).port)
    await injector.close()


def build_review(**spec: Any) -> bytes:
    pod = {"metadata": {}, "spec": {"containers": [], **spec}}
    return json.dumps({"apiVersion": API_VERSION, "request": {"uid": "1", "object": pod}}).encode()


async def test_reviews_are_answered_and_counted(running: Running) -> None:
    status, body = await running.post(build_review())
    assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
    await running.post(build_review(initContainers=[{"name": "forebay"}]))
    assert (await running.post(b"{}"))[0] == 400
    status, text = await running.get("/metrics")
    assert status == 200
    counts = dict.fromkeys(("injected", "present", "failed"), 1)
    for result, count in counts.items():
        assert f'forebay_injector_reviews_total{{result="{result}"}} {count}\n' in text.decode()


async def test_probes_and_unknown_paths(running: Running) -> None:
    assert (await running.get("/readyz"))[0] == (await running.get("/livez"))[0] == 200
    assert (await running.get("/else"))[0] == (await running.post(b"{}", "/else"))[0] == 404
    assert (await running.ask(b"nonsense\r\n\r\n"))[0] == 400


async def test_bodies_and_heads_at_their_bounds(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = build_review()
    monkeypatch.setattr(server, "MAX_BODY_BYTES", len(body))
    assert (await running.post(body))[0] == 200
    assert (await running.post(body + b" "))[0] == 413
    long = b"GET /livez HTTP/1.1\r\nX: " + b"x" * server.MAX_HEAD_BYTES + b"\r\n\r\n"
    assert (await running.ask(long))[0] == 0


async def test_a_connection_too_many_is_dropped(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 0)
    assert (await running.get("/livez"))[0] == 0
    assert running.injector.counts["dropped"] == 1
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    assert (await running.get("/livez"))[0] == 200


def test_changed_files_are_read_and_broken_ones_leave_the_former(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_sidecar(tmp_path, "second")
    files.refresh()
    assert files.sidecar.init_containers == [{"name": "second"}]
    (tmp_path / "sidecar.json").write_text("nothing of that kind")
    files.refresh()
    files.refresh()
    assert files.sidecar.init_containers == [{"name": "second"}]
    assert caplog.text.count("keeps its former files") == 1
    write_sidecar(tmp_path, "third")
    write_certificate(tmp_path, "second.test")
    files.refresh()
    assert files.sidecar.init_containers == [{"name": "third"}]
