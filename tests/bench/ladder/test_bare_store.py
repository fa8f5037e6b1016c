"""The floor of Produces passes whole frames both ways, and has a copy of each Produce that was answered."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from bench.ladder.bare import start_bare_store
from bench.ladder.frames import build_fetch
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.frames import build_batch, build_produce
from tests.kit.raw_fetch import TopicWords

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
MEMORY_BYTES = 1 << 16
HELD_MAX = 4 << 20
"""bare_store.c's."""
FETCH = build_fetch(TopicWords("t", bytes(16), {0: 0}), [0], 1000)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def produce(size_bytes: int) -> bytes:
    return build_produce("t", build_batch(size_bytes, size_bytes))


def answer_of(frame: bytes) -> bytes:
    """As long as its request, so that both directions carry as much, and under its correlation id."""
    return frame[:4] + frame[8:12] + bytes(len(frame) - 8)


def read_frame(connection: socket.socket) -> bytes:
    """The next frame, whole."""
    frame, size = bytearray(), 4
    while len(frame) < size:
        more = connection.recv(size - len(frame))
        assert more, "the other side has closed"
        frame += more
        if len(frame) == size == 4:
            size += struct.unpack(">I", frame)[0]
    return bytes(frame)


class Stand:
    """The program before a socket that is played by the test."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        self._stack = contextlib.ExitStack()
        self._listening = self._stack.enter_context(socket.create_server((HOST, 0)))
        self._listening.settimeout(PATIENCE_S)
        lease = self._stack.enter_context(lease_port())
        upstream = f"{HOST}:{self._listening.getsockname()[1]}"
        self.child = start_bare_store(directory, lease.port, upstream, memory_bytes)
        self._stack.callback(self.child.wait, PATIENCE_S)
        self._stack.callback(self.child.kill)
        self._address = HOST, lease.port

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """The client's socket, and the broker's."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                client = socket.create_connection(self._address, PATIENCE_S)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        broker, _ = self._listening.accept()
        broker.settimeout(PATIENCE_S)
        return self._stack.enter_context(client), self._stack.enter_context(broker)

    def read_stored(self, size_bytes: int) -> bytes:
        """The first bytes of its mapping."""
        descriptors = Path("/proc", str(self.child.pid), "fd")
        (found,) = (one for one in descriptors.iterdir() if "memfd:stored" in str(one.readlink()))
        with found.open("rb") as file:
            return file.read(size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with Stand(tmp_path, MEMORY_BYTES) as running:
        yield running


def test_a_produce_is_kept_once_its_answer_came(stand: Stand) -> None:
    client, broker = stand.connect()
    frames = [produce(1000), FETCH, produce(500), produce(300)]
    client.sendall(b"".join(frames))
    for frame in frames:
        assert read_frame(broker) == frame
    assert not any(stand.read_stored(MEMORY_BYTES)), "nothing is answered"
    for frame in frames[:3]:
        broker.sendall(answer_of(frame))
        assert read_frame(client) == answer_of(frame)
    kept = frames[0] + frames[2]
    assert stand.read_stored(MEMORY_BYTES) == kept.ljust(MEMORY_BYTES, b"\0")


def test_only_whole_frames_are_passed_on(stand: Stand) -> None:
    client, broker = stand.connect()
    first, second = produce(1000), produce(500)
    client.sendall(first + second[:-1])
    assert read_frame(broker) == first
    broker.settimeout(0)
    with pytest.raises(BlockingIOError):
        broker.recv(1)
    broker.settimeout(PATIENCE_S)
    client.sendall(second[-1:])
    assert read_frame(broker) == second


def test_connections_share_the_mapping_which_is_written_round_and_round(stand: Stand) -> None:
    frame = produce(MEMORY_BYTES // 4)
    each = MEMORY_BYTES // len(frame)
    sockets = [stand.connect() for _ in range(each + 1)]
    expected = bytearray(MEMORY_BYTES)
    for number, (client, broker) in enumerate(sockets):
        one = frame[:-1] + bytes([number])
        client.sendall(one)
        broker.sendall(answer_of(read_frame(broker)))
        read_frame(client)
        at = number % each * len(frame)
        expected[at : at + len(one)] = one
    assert stand.read_stored(MEMORY_BYTES) == expected


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_requests_of_more_than_it_holds_pass_in_order(tmp_path: Path) -> None:
    """The broker reads none before it has to; the client reads no answer before all of its requests are sent."""
    with Stand(tmp_path, HELD_MAX) as stand:
        client, broker = stand.connect()
        count = 4 * HELD_MAX // 100_000
        frames = [produce(100_000 + number) for number in range(count)]
        answers = [answer_of(frame)[:12] for frame in frames]

        def answer_all() -> None:
            for frame in frames:
                assert read_frame(broker) == frame
                broker.sendall(struct.pack(">I", 8) + answer_of(frame)[4:12])

        answering = in_thread(answer_all)
        client.sendall(b"".join(frames))
        for answer in answers:
            assert read_frame(client)[4:] == answer[4:]
        answering.join(PATIENCE_S)
        assert not answering.is_alive()


def test_answers_of_more_than_it_holds_pass_in_order(stand: Stand) -> None:
    client, broker = stand.connect()
    count = 2 * HELD_MAX // 10_000
    client.sendall(FETCH * count)
    answers = [struct.pack(">II", 20_000, number) + bytes(19_996) for number in range(count)]

    def answer_all() -> None:
        for _ in range(count):
            read_frame(broker)
        broker.sendall(b"".join(answers))

    answering = in_thread(answer_all)
    for answer in answers:
        assert read_frame(client) == answer
    answering.join(PATIENCE_S)
    assert not answering.is_alive()


@pytest.mark.parametrize("end", ["client", "broker"])
def test_either_end_ends_both(stand: Stand, end: str) -> None:
    client, broker = stand.connect()
    kept, kept_broker = stand.connect()
    ending, other = (client, broker) if end == "client" else (broker, client)
    ending.close()
    assert other.recv(1) == b""
    kept.sendall(FETCH)
    assert read_frame(kept_broker) == FETCH, "no other connection is harmed"


def test_a_frame_longer_than_it_holds_ends_the_connection(stand: Stand) -> None:
    client, broker = stand.connect()
    with contextlib.suppress(ConnectionError):
        client.sendall(struct.pack(">I", HELD_MAX) + bytes(HELD_MAX))
    assert broker.recv(1) == b""


def test_an_answer_without_a_request_ends_the_connection(stand: Stand) -> None:
    client, broker = stand.connect()
    broker.sendall(answer_of(FETCH))
    assert client.recv(1) == b""


def test_a_produce_larger_than_the_mapping_ends_the_program(stand: Stand) -> None:
    client, broker = stand.connect()
    client.sendall(produce(MEMORY_BYTES))
    broker.sendall(answer_of(read_frame(broker)))
    child: subprocess.Popen[bytes] = stand.child
    assert child.wait(PATIENCE_S) == 1
