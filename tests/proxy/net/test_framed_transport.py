"""One framed transport on a played socket: departure of bytes, and the calls that report it."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from protocol.framing import Framer
from proxy.net import framed_transport as wire_module
from proxy.net.framed_transport import (
    CHUNK_BYTES,
    TURN_BYTES,
    TURN_FRAME_BYTES,
    TURN_FRAMES,
    FramedTransport,
    Hooks,
)
from proxy.net.send_buffer import PIECE_BYTES, SendBuffer
from tests.proxy.event_loop import until


class PlayedTransport:
    """Takes what it is given; while `full`, it tells the protocol so, as asyncio does within `write`."""

    def __init__(self):
        self.protocol: Any = None
        self.pieces: list[bytes] = []
        self.full = False
        self.calls = []

    def set_write_buffer_limits(self, high, low):
        assert (high, low) == (0 if self.get_extra_info("ssl_object") is None else 1, 0)

    def get_extra_info(self, name):
        return {"peername": ("peer", 9092), "ssl_object": self}[
            name
        ]  # as if encrypted: it has no descriptor

    def write(self, data):
        self.pieces.append(bytes(data))
        if self.full:
            self.protocol.pause_writing()

    def writelines(self, buffers):
        self.write(b"".join(buffers))

    def drain(self):
        """The kernel takes all; the next piece may fill it again."""
        self.protocol.resume_writing()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def pause_reading(self):
        self.calls.append("pause")

    def resume_reading(self):
        self.calls.append("resume")

    def close(self):
        self.calls.append("close")

    def abort(self):
        self.calls.append("abort")


class Listening:
    """A wire whose callbacks are remembered."""

    def __init__(self, connect=True, on_eof=None, on_frame=None, max_frame_bytes=1000):
        self.frames: list[Any] = []
        self.bad: list[Exception] = []
        self.closed: list[Exception | None] = []
        self.sent: list[tuple[str, bool]] = []
        self.drained: list[int] = []
        self.framed = FramedTransport(
            max_frame_bytes,
            Hooks(
                on_frame or self.frames.append,
                self.closed.append,
                self.bad.append,
                on_eof,
                on_drained=lambda: self.drained.append(self.framed.unsent_bytes),
            ),
        )
        transport: Any = PlayedTransport()
        transport.protocol = self.framed
        self.transport = transport
        if connect:
            self.framed.connection_made(transport)

    def send(self, name, *buffers):
        return self.framed.send(buffers, lambda whole: self.sent.append((name, whole)))

    def taken_bytes(self):
        return sum(map(len, self.transport.pieces))

    def receive(self, data):
        """As an event loop does: while a buffered protocol stands in, into its buffer."""
        while data:
            protocol = self.transport.protocol
            if protocol is self.framed:
                self.framed.data_received(data)
                return
            buffer = protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]


def frame(body):
    return len(body).to_bytes(4, "big") + body


def test_frames_come_out_whole_and_in_order():
    played = Listening()
    stream = frame(b"one") + frame(b"two")
    for i in range(len(stream)):
        played.receive(stream[i : i + 1])
    assert played.frames == [frame(b"one"), frame(b"two")]
    assert played.framed.frames == 2
    assert played.framed.peer == "peer:9092"


def test_a_begun_frame_is_pending():
    played = Listening()
    played.receive(frame(b"body")[:5])
    assert played.framed.pending_frame_bytes == 5
    played.receive(frame(b"body")[5:])
    assert played.framed.pending_frame_bytes == 0


def test_a_frame_over_the_limit_is_bad():
    played = Listening()
    played.receive((1001).to_bytes(4, "big"))
    assert len(played.bad) == 1
    assert not played.frames


def test_frames_behind_a_close_are_not_handed_on():
    def take_one(taken):
        played.frames.append(taken)
        played.framed.abort()

    played = Listening(on_frame=take_one)
    played.receive(frame(b"one") + frame(b"two"))
    assert played.frames == [frame(b"one")]


@pytest.mark.parametrize(
    ("size", "most"), [(1, TURN_FRAMES), (TURN_FRAME_BYTES // 4, 4), (2 * TURN_FRAME_BYTES, 1)]
)
async def test_many_frames_at_once_leave_others_their_turn(size, most):
    listening, others = Listening(max_frame_bytes=1 << 16), []
    asyncio.get_running_loop().call_soon(lambda: others.append(len(listening.frames)))
    frames = [frame(b"%07d" % number + b"." * size) for number in range(2 * TURN_FRAMES + 1)]
    listening.framed.data_received(b"".join(frames))
    assert len(listening.frames) == most
    assert listening.transport.calls == ["pause"]
    await until(lambda: not listening.framed.reading_held)
    assert others == [most], "another has its turn before the next frames"
    assert listening.frames == frames
    assert listening.transport.calls[-1] == "resume"


async def test_shortcut_hears_whether_another_frame_follows_in_this_turn():
    listening, heard = Listening(), []

    def take(_frame, has_more):
        heard.append(has_more)
        return True

    listening.framed.intercept(take, lambda: heard.append("end"))
    listening.framed.data_received(frame(b"a"))
    listening.framed.data_received(frame(b"a") * (TURN_FRAMES + 2))
    await until(lambda: not listening.framed.reading_held)
    first_turn = [True] * (TURN_FRAMES - 1) + [False, "end"]
    assert heard == [False, *first_turn, True, False, "end"]
    assert listening.frames == []


async def test_frames_of_a_later_turn_end_with_the_connection():
    listening = Listening()
    listening.framed.data_received(frame(b"a") * 2 * TURN_FRAMES)
    listening.framed.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(listening.frames) == TURN_FRAMES


async def test_a_frame_of_a_later_turn_that_aborts_ends_reading():
    """uvloop's transport raises where it is read after `abort`."""

    def take(taken):
        listening.frames.append(taken)
        if len(listening.frames) > TURN_FRAMES:
            listening.framed.abort()

    listening = Listening(on_frame=take)
    listening.framed.data_received(frame(b"a") * 2 * TURN_FRAMES)
    await until(lambda: len(listening.frames) > TURN_FRAMES)
    assert listening.transport.calls == ["pause", "abort"]


async def test_frames_of_a_later_turn_come_before_the_end_of_the_stream():
    """A TLS transport reports close_notify behind frames of the same read, paused or not."""
    ended: list[int] = []
    frames = [frame(b"%03d" % number) for number in range(5 * TURN_FRAMES)]

    def on_eof():
        ended.append(len(listening.frames))
        return True

    listening = Listening(on_eof=on_eof)
    listening.framed.data_received(b"".join(frames))
    assert listening.framed.eof_received()
    await until(lambda: not listening.framed.reading_held)
    assert ended == [len(frames)]
    assert listening.frames == frames


async def test_frames_of_a_later_turn_come_before_the_loss_of_the_connection():
    """uvloop's TLS transport reports a loss without close_notify, although reading is paused."""
    frames = [frame(b"%03d" % number) for number in range(5 * TURN_FRAMES)]
    listening = Listening()
    listening.framed.data_received(b"".join(frames))
    listening.send("a", b"response")
    listening.framed.connection_lost(None)
    assert listening.frames == frames
    assert listening.closed == [None]
    assert listening.sent == [("a", True)]
    listening.send("late", b"response")
    assert listening.sent[1:] == [("late", False)]


async def test_a_response_to_a_frame_of_a_lost_connection_is_not_delivered():
    def answer(taken):
        listening.frames.append(taken)
        listening.send(len(listening.frames), b"response")

    listening = Listening(on_frame=answer)
    listening.framed.data_received(frame(b"a") * 2 * TURN_FRAMES)
    listening.framed.connection_lost(None)
    assert listening.sent == [(n + 1, n < TURN_FRAMES) for n in range(2 * TURN_FRAMES)]


async def test_a_frame_that_raises_in_a_later_turn_ends_the_connection():
    """As asyncio does where `data_received` raises: frames behind it would be missing."""
    errors: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))

    def take(taken):
        listening.frames.append(taken)
        if len(listening.frames) == TURN_FRAMES + 1:
            raise ValueError

    listening = Listening(on_frame=take)
    listening.framed.data_received(frame(b"a") * 3 * TURN_FRAMES)
    await until(lambda: errors)
    assert [type(error) for error in errors] == [ValueError]
    assert listening.transport.calls[-1] == "abort"
    assert len(listening.frames) == TURN_FRAMES + 1


async def test_a_begun_frame_behind_a_later_turn_is_whole():
    listening, last = Listening(), frame(b"last")
    listening.framed.data_received(frame(b"a") * 2 * TURN_FRAMES + last[:5])
    await until(lambda: not listening.framed.reading_held)
    listening.framed.data_received(last[5:])
    assert listening.frames == [frame(b"a")] * 2 * TURN_FRAMES + [last]


async def test_a_large_response_leaves_in_several_turns():
    listening = Listening()
    size_bytes, others = 20 * PIECE_BYTES, []
    asyncio.get_running_loop().call_soon(lambda: others.append(listening.taken_bytes()))
    listening.send("large", b"x" * size_bytes)
    listening.send("next", b"y")
    assert TURN_BYTES <= listening.taken_bytes() <= TURN_BYTES + PIECE_BYTES
    await until(lambda: listening.sent)
    assert others[0] <= TURN_BYTES + PIECE_BYTES
    await until(lambda: len(listening.sent) == 2)
    assert listening.taken_bytes() == size_bytes + 1
    assert listening.sent == [("large", True), ("next", True)]


async def test_a_response_sent_by_another_ones_departure_waits_for_its_turn():
    listening, turns = Listening(), []

    def sent(_delivered):
        listening.send("next", b"y" * 20 * PIECE_BYTES)

    def note_turn():
        turns.append(listening.taken_bytes())
        if not listening.sent:
            asyncio.get_running_loop().call_soon(note_turn)

    listening.framed.send((b"x" * 2 * PIECE_BYTES,), sent)
    note_turn()
    await until(lambda: listening.sent)
    taken = [after - before for before, after in pairwise([0, *turns])]
    assert max(taken[1:]) <= TURN_BYTES


async def test_an_abort_ends_the_turns_of_a_response():
    listening = Listening()
    listening.send("large", b"x" * 6 * PIECE_BYTES)
    left_bytes = listening.taken_bytes()
    listening.framed.abort()
    await asyncio.sleep(0)
    assert listening.taken_bytes() == left_bytes
    listening.framed.connection_lost(None)
    assert listening.sent == [("large", False)]


async def test_a_close_waits_for_the_turns_of_a_response():
    listening = Listening()
    listening.send("large", b"x" * 20 * PIECE_BYTES)
    listening.framed.close_when_sent()
    assert "close" not in listening.transport.calls
    await until(lambda: "close" in listening.transport.calls)
    assert listening.sent == [("large", True)]


def test_on_sent_runs_on_an_immediate_write():
    played = Listening()
    played.send("a", b"12", b"345")
    assert played.transport.pieces == [b"12345"]
    assert played.sent == [("a", True)]
    assert played.framed.unsent_bytes == 0


def test_on_sent_waits_for_the_last_byte():
    played = Listening()
    played.transport.full = True
    played.send("a", b"123")
    played.send("b", b"45")
    assert played.sent == []
    assert played.framed.unsent_bytes == 5
    assert played.transport.pieces == [b"123"]
    played.transport.drain()
    assert played.sent == [("a", True)]
    assert played.framed.unsent_bytes == 2
    played.transport.drain()
    assert played.sent == [("a", True), ("b", True)]
    assert b"".join(played.transport.pieces) == b"12345"


def test_large_response_leaves_in_one_mebibyte_pieces():
    played = Listening()
    played.transport.full = True
    parts = [b"h" * 10, b"a" * (2 * PIECE_BYTES), b"t" * 5]
    played.send("a", *parts)
    for left in (2, 1, 0):
        assert len(played.transport.pieces) == 3 - left
        assert played.sent == []
        played.transport.drain()
    assert [len(p) for p in played.transport.pieces] == [PIECE_BYTES, PIECE_BYTES, 15]
    assert b"".join(played.transport.pieces) == b"".join(parts)
    assert played.sent == [("a", True)]


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_pieces_at_the_bound(size):
    outgoing = SendBuffer((b"x" * size,), None)
    assert sum(map(len, outgoing.next_piece())) == min(size, PIECE_BYTES)
    assert sum(map(len, outgoing.next_piece())) == max(size - PIECE_BYTES, 0)
    assert outgoing.next_piece() == []


def test_unsent_views_are_copied_out_of_foreign_memory():
    played = Listening()
    played.transport.full = True
    memory = bytearray(b"x" * PIECE_BYTES + b"unsent")
    first = played.send("a", memoryview(memory))
    waiting = played.send("b", memoryview(memory)[:3])
    assert not first.copy_out()  # a piece of it is with the transport
    assert waiting.copy_out()
    assert [type(b) for b in waiting.buffers] == [bytes]
    memory[:3] = b"new"
    for _ in range(3):
        played.transport.drain()
    assert b"".join(played.transport.pieces)[-9:] == b"unsentxxx"
    assert played.sent == [("a", True), ("b", True)]


def test_early_bytes_leave_when_the_socket_opens():
    played = Listening(connect=False)
    played.send("a", b"early")
    assert played.sent == []
    assert not played.framed.is_open
    played.framed.connection_made(played.transport)
    assert played.transport.pieces == [b"early"]
    assert played.sent == [("a", True)]


def test_on_drained_runs_when_nothing_is_left():
    played = Listening()
    assert played.drained == [0], "once open"
    played.drained.clear()
    played.transport.full = True
    played.send("a", b"1")
    played.send("b", b"2")
    played.transport.drain()
    assert played.drained == []
    played.transport.drain()
    assert played.drained == [0]


async def test_close_when_sent_lets_everything_leave_first():
    played = Listening()
    played.transport.full = True
    played.send("a", b"1")
    played.send("b", b"2")
    played.framed.close_when_sent()
    assert played.transport.calls == ["pause"]
    assert not played.framed.is_open
    assert played.send("late", b"3") is None
    assert played.sent == [("late", False)]
    played.transport.drain()
    assert "close" not in played.transport.calls
    played.transport.drain()
    assert played.sent == [("late", False), ("a", True), ("b", True)]
    assert played.transport.calls == ["pause", "close"]
    assert played.transport.pieces == [b"1", b"2"]


async def test_stalled_peer_delays_close_for_limited_time(monkeypatch):
    monkeypatch.setattr(wire_module, "LINGER_S", 0.0)
    played = Listening()
    played.transport.full = True
    played.send("a", b"1")
    played.framed.close_when_sent()
    assert "abort" not in played.transport.calls
    await until(lambda: "abort" in played.transport.calls)
    played.framed.connection_lost(None)
    assert played.sent == [("a", False)]


async def test_close_when_sent_before_the_socket_is_open():
    played = Listening(connect=False)
    played.send("a", b"early")
    played.framed.close_when_sent()
    played.framed.connection_made(played.transport)
    assert played.transport.pieces == [b"early"]
    assert played.transport.calls == ["pause", "close"]


def test_early_abort_aborts_when_the_socket_opens():
    played = Listening(connect=False)
    played.framed.abort()
    played.framed.connection_made(played.transport)
    assert played.transport.calls == ["abort"]


def test_a_lost_connection_tells_everyone_once():
    played = Listening()
    played.transport.full = True
    played.send("a", b"1")
    played.send("b", b"2")
    error = ConnectionResetError()
    played.framed.connection_lost(error)
    assert played.sent == [("a", False), ("b", False)]
    assert played.closed == [error]
    assert played.framed.unsent_bytes == 0
    assert played.send("late", b"3") is None
    assert played.sent[2:] == [("late", False)]


def test_reading_is_held_until_every_reason_is_released():
    played = Listening()
    client, bound = object(), object()
    played.framed.hold_reading(client)
    played.framed.hold_reading(bound)
    played.framed.hold_reading(bound)
    assert played.transport.calls == ["pause"]
    played.framed.release_reading(client)
    assert played.framed.reading_held
    assert played.transport.calls == ["pause"]
    played.framed.release_reading(bound)
    assert not played.framed.reading_held
    assert played.transport.calls == ["pause", "resume"]
    played.framed.release_reading(bound)
    assert played.transport.calls == ["pause", "resume"]


def test_reasons_are_told_apart_by_identity():
    played = Listening()
    one: list[int] = []
    other: list[int] = []
    played.framed.hold_reading(one)
    played.framed.release_reading(other)
    assert played.framed.reading_held


def test_transport_held_before_opening_is_not_read():
    played = Listening(connect=False)
    played.framed.hold_reading(played)
    played.framed.connection_made(played.transport)
    assert played.transport.calls == ["pause"]


def test_a_blind_wire_hands_on_raw_bytes():
    played = Listening()
    raw: list[bytes] = []
    played.framed.go_blind(raw.append)
    played.receive(b"\xff\xff\xff\xffnot a frame")
    assert raw == [b"\xff\xff\xff\xffnot a frame"]
    assert played.frames == played.bad == []
    assert played.framed.pending_frame_bytes == 0


@pytest.mark.parametrize(("answer", "stays"), [(True, True), (False, False)])
def test_the_owner_decides_whether_a_half_stays_open(answer, stays):
    played = Listening(on_eof=lambda: answer)
    assert played.framed.eof_received() is stays
    played.framed.abort()
    assert played.framed.eof_received() is False
    assert Listening().framed.eof_received() is False


def test_large_frame_is_received_into_its_buffer():
    played = Listening()
    played.framed.framer = Framer(1000, small_bytes=20)
    large = frame(bytes(range(200)))
    played.receive(frame(b"one") + large[:30])
    stand_in = played.transport.protocol
    assert stand_in is not played.framed
    assert played.framed.pending_frame_bytes == 30
    played.receive(large[30:] + frame(b"two"))
    assert played.frames == [frame(b"one"), large, frame(b"two")]
    assert played.transport.protocol is played.framed


@pytest.mark.parametrize("more", [0, 1])
def test_frame_that_fits_in_a_chunk_is_awaited_in_one(more):
    played = Listening(max_frame_bytes=1 << 20)
    large = frame(bytes(CHUNK_BYTES - 4 + more))
    played.receive(large[:100])
    assert played.transport.protocol is not played.framed
    played.receive(large[100:])
    is_back = played.transport.protocol is played.framed
    assert is_back is not bool(more), "a larger one could not arrive in one chunk"
    played.receive(large)
    assert played.frames == [large, large]
    assert (played.frames[1] is large) is is_back


def test_large_frame_leaves_the_socket_to_its_transport():
    played = Listening(on_eof=lambda: True)
    played.framed.framer = Framer(1000, small_bytes=20)
    played.receive(frame(bytes(200))[:30])
    played.transport.full = True
    played.send("a", b"123")
    assert played.sent == []
    played.transport.drain()
    assert played.sent == [("a", True)]
    assert played.transport.protocol.eof_received()
    played.transport.protocol.connection_lost(None)
    assert played.closed == [None]
