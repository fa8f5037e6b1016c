"""Clients of the bench of cores: what they count, and which processes are pinned."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.ladder import __main__ as ladder
from bench.ladder import cores
from bench.ladder.bare import build_program

ANSWER = (1000).to_bytes(4, "big") + bytes(1000)


def answer(listening: socket.socket, request_bytes: int) -> None:
    with listening:
        client, _ = listening.accept()
        with client:
            while client.recv(request_bytes, socket.MSG_WAITALL):
                client.sendall(ANSWER)


def test_answers_and_their_bytes_are_counted(tmp_path: Path) -> None:
    program = build_program(tmp_path, Path(cores.__file__).with_name("cores.c"))
    frames = tmp_path / "frames"
    frames.write_bytes(2 * ((60).to_bytes(4, "big") + bytes(60)))
    listening = socket.create_server(("127.0.0.1", 0))
    port = str(listening.getsockname()[1])
    thread = threading.Thread(target=answer, args=(listening, 64), daemon=True)
    thread.start()
    done = subprocess.run(
        [str(program), port, str(frames), "1", "0.2"], check=True, capture_output=True, text=True
    )
    answers, size_bytes, taken_ns, smallest = map(int, done.stdout.split())
    assert answers > 0
    assert size_bytes == answers * len(ANSWER)
    assert smallest == len(ANSWER)
    assert taken_ns >= 2e8


def test_who_accepts_on_a_port_is_found_among_the_descendants() -> None:
    code = (
        "import os, socket, sys\n"
        "sock = socket.create_server(('127.0.0.1', 0))\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    child = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
    assert child.stdin and child.stdout and other.stdin
    try:
        port = int(child.stdout.readline())
        found = cores.list_accepting(os.getpid(), port)
        assert child.pid in found
        assert other.pid not in found
    finally:
        child.stdin.close()
        other.stdin.close()
        child.wait()
        other.wait()
        child.stdout.close()


def test_a_name_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ladder.Unknown, match="--arms has no nix; there is: direct, haproxy"):
        ladder.refuse_unknown("--arms", ["direct", "nix"], ["direct", "haproxy"])
