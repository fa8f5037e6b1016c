"""The wire passes what it is given, and cuts where it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.chaos.wire import Wire
from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 20.0
SENT = bytes(range(256)) * 1000


class Ends:
    """Both ends of a connection through a wire."""

    def __init__(self, wire: Wire, server: socket.socket) -> None:
        host, port = wire.address.split(":")
        self.near = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.far, _ = server.accept()
        self.far.settimeout(TIMEOUT_S)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        yield listening


@pytest.fixture
def wire(server: socket.socket) -> Iterator[Wire]:
    with Wire(0, server.getsockname()) as running:
        yield running


def send_from(source: socket.socket, data: bytes) -> threading.Thread:
    def send() -> None:
        with contextlib.suppress(OSError):
            source.sendall(data)

    sending = threading.Thread(target=send)
    sending.start()
    return sending


def take(source: socket.socket, size_bytes: int) -> bytes:
    """Up to so many bytes: fewer where the connection ends before."""
    taken = b""
    with contextlib.suppress(ConnectionResetError):
        while len(taken) < size_bytes and (part := source.recv(size_bytes - len(taken))):
            taken += part
    return taken


def test_both_ways(wire: Wire, server: socket.socket) -> None:
    ends = Ends(wire, server)
    for source, sink in ((ends.near, ends.far), (ends.far, ends.near)):
        sending = send_from(source, SENT)
        assert take(sink, len(SENT)) == SENT
        sending.join()
    ends.near.close()
    assert ends.far.recv(1) == b""


@pytest.mark.parametrize("after_bytes", [0, 100, 100_000])
def test_a_cut_comes_after_so_many_bytes_and_ends_both_sides(
    wire: Wire, server: socket.socket, after_bytes: int
) -> None:
    ends = Ends(wire, server)
    ends.near.sendall(b"x")
    assert take(ends.far, 1) == b"x"
    assert wire.cut(after_bytes) == 1
    sending = send_from(ends.near, SENT)
    assert take(ends.far, len(SENT)) == SENT[:after_bytes]
    sending.join()
    assert take(ends.near, 1) == b""
    again = Ends(wire, server)
    again.near.sendall(b"y")
    assert take(again.far, 1) == b"y", "it goes on listening"


def test_a_stalled_wire_holds_back_and_loses_nothing(wire: Wire, server: socket.socket) -> None:
    ends = Ends(wire, server)
    wire.stall()
    ends.near.sendall(b"x")
    ends.far.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ends.far.recv(1)
    wire.flow()
    ends.far.settimeout(TIMEOUT_S)
    assert take(ends.far, 1) == b"x"


def test_who_has_vanished_says_nothing_until_it_is_found(wire: Wire, server: socket.socket) -> None:
    ends = Ends(wire, server)
    ends.near.sendall(b"x")
    assert take(ends.far, 1) == b"x"
    assert wire.vanish() == 1
    ends.near.sendall(b"y")
    ends.near.close()
    ends.far.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ends.far.recv(1)
    again = Ends(wire, server)
    again.near.sendall(b"z")
    assert take(again.far, 1) == b"z", "new ones pass"
    wire.find_vanished()
    ends.far.settimeout(TIMEOUT_S)
    assert take(ends.far, 1) == b"", "it has ended"
    again.near.sendall(b"z")
    assert take(again.far, 1) == b"z"


def test_who_cannot_be_connected_is_closed_and_the_next_one_served(server: socket.socket) -> None:
    with socket.create_server((HOST, 0)) as gone:
        address = gone.getsockname()
    with Wire(0, address) as wire:
        host, port = wire.address.split(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as refused:
            assert take(refused, 1) == b""
        wire.target = server.getsockname()
        assert Ends(wire, server)


def test_what_was_said_last_on_half_a_connection_is_told(wire: Wire, server: socket.socket) -> None:
    ends = Ends(wire, server)
    ends.near.sendall(b"\x00\x00\x00\x04ABCD")
    assert take(ends.far, 8) == b"\x00\x00\x00\x04ABCD"
    assert wire.describe_half_open() == []

    ends.near.shutdown(socket.SHUT_WR)
    assert ends.far.recv(1) == b""

    (told,) = await_told(wire, 1)
    assert "near end: 8 bytes" in told
    assert "closed" in told.split("far end")[0]
    assert "00000004 41424344" in told
    ends.far.close()
    assert await_told(wire, 0) == []


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("vanishes", [False, True])
def test_what_was_asked_and_not_answered_is_known_when_both_ends_are_gone(
    wire: Wire, server: socket.socket, vanishes: bool, answered: bool
) -> None:
    ends = Ends(wire, server)
    ends.near.sendall(b"question")
    assert take(ends.far, 8) == b"question"
    assert wire.unanswered(near_closed=False) == [b"question"]
    if answered:
        ends.far.sendall(b"answer")
        assert take(ends.near, 6) == b"answer"
    if vanishes:
        wire.vanish()
        ends.near.sendall(b"nobody hears this")
        wire.find_vanished()
    for one in (ends.near, ends.far):
        one.close()
    deadline = time.monotonic() + TIMEOUT_S
    while (wire.open_lines or wire.describe_half_open()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert wire.unanswered(near_closed=True) == ([] if answered else [b"question"])
    assert wire.unanswered(near_closed=False) == []


def await_told(wire: Wire, count: int) -> list[str]:
    deadline = time.monotonic() + TIMEOUT_S
    while len(wire.describe_half_open()) != count and time.monotonic() < deadline:
        time.sleep(0.01)
    return wire.describe_half_open()
