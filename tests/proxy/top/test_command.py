"""`forebay top` before a real admin server: answers, refusals, exit codes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from proxy import cli
from proxy.admin.access import AdminAccess
from proxy.admin.http import AdminServer, HttpResponse
from proxy.admin.live_view import build_view, describe
from proxy.config.admin import Admin
from proxy.config.units import Address
from proxy.sockets import bind
from proxy.top.command import NoAnswer, read_document
from tests.proxy.admin.live_states import build_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from proxy.admin.live_state import LiveState


@pytest.fixture
def config_file(tmp_path: Path) -> Iterator[Path]:
    """Of a Forebay that serves the view and wants a token."""
    for name in ("token", "mine"):
        (tmp_path / name).write_text("hunter2\n")
    access = AdminAccess(
        Admin.model_validate({"tokenFile": str(tmp_path / "token")}, by_alias=True, by_name=False)
    )
    loop, ready, places = asyncio.new_event_loop(), threading.Event(), []

    async def read_state() -> LiveState:
        return build_state()

    async def serve() -> None:
        server = AdminServer(
            build_view(read_state) | {"/garbage": lambda: HttpResponse(b"[]")}, access=access.check
        )
        places.append(await server.start(bind(Address("127.0.0.1", 0))))
        ready.set()
        await stopping.wait()
        await server.close()

    stopping = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "listeners: [{listen: '127.0.0.1:1', upstream: '127.0.0.2:1'}]\n"
        f"admin: {{listen: '127.0.0.1:{places[0].port}', tokenFile: '{tmp_path}/mine'}}\n"
    )
    yield path
    loop.call_soon_threadsafe(stopping.set)
    thread.join(60)
    loop.close()


def test_one_view_as_text_and_as_json(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", str(config_file), "--once"]) == 0
    assert "Readers behind: 1 in 1 partitions" in capsys.readouterr().out
    assert cli.main(["top", str(config_file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe(build_state())))


def test_a_wrong_token_is_told(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.with_name("mine").write_text("hunter3\n")
    assert cli.main(["top", str(config_file), "--once"]) == 1
    assert "/top answers 401: a token is wanted" in capsys.readouterr().err


def test_nobody_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "listeners: [{listen: ':1', upstream: ':2'}]\nadmin: {listen: '127.0.0.1:1'}\n".replace(
            "':2'", "'b:2'"
        )
    )
    assert cli.main(["top", str(path), "--once"]) == 1
    assert "127.0.0.1:1/top: " in capsys.readouterr().err


def test_what_is_no_document_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin.model_validate({"listen": "127.0.0.1:1"}, by_alias=True, by_name=False)
    for body in ("[]", "{", ""):
        answer = type("Answer", (), {"status": 200, "body": body})
        monkeypatch.setattr("proxy.top.command.ask", lambda *_, said=answer: said)
        with pytest.raises(NoAnswer):
            read_document(admin)


def read_until(terminal: int, text: str) -> str:
    """What a terminal shows, as far as `text`."""
    readable = select.poll()  # descriptors of a long run are beyond select's
    readable.register(terminal, select.POLLIN)
    shown = b""
    while text.encode() not in shown:
        assert readable.poll(60_000), shown
        shown += os.read(terminal, 65_536)
    return shown.decode(errors="replace")


def test_the_screen_goes_on_without_an_answer_until_the_user_ends_it(config_file: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 200, 0, 0))
    token = config_file.with_name("mine")
    command = [sys.executable, "-m", "proxy", "top", str(config_file), "--every", "500ms"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as watching:
        try:
            read_until(ours, "Readers behind: 1 in 1 partitions")
            token.write_text("hunter3\n")
            read_until(ours, "/top answers 401")
            token.write_text("hunter2\n")
            read_until(ours, "Readers behind: 1 in 1 partitions")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 0
        finally:
            watching.kill()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    "flags",
    [["--by", "name"], ["--every", "0s"], ["--every", "5"], ["--rows", "21"], ["--rows", "x"]],
)
def test_a_wrong_flag_is_2(tmp_path: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["top", str(tmp_path / "forebay.yaml"), *flags])
    assert caught.value.code == cli.USAGE


def test_without_rich_json_still_works(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["top", str(config_file), "--once"]) == cli.USAGE
    assert "install " in capsys.readouterr().err
    assert cli.main(["top", str(config_file), "--json"]) == 0
