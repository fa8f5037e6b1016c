"""However a stream is cut, the same frames come out; what is announced is not what is allocated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadFrame
from protocol.framing import EAGER_BYTES, SMALL_BYTES, Framer

MAX_BYTES = 400
SMALL = 32


def frame_of(content):
    return len(content).to_bytes(4, "big") + content


def fed(framer, stream, cuts):
    """Feed `stream` in pieces of the sizes `cuts`, the last of which repeats."""
    frames, at, cuts = [], 0, list(cuts)
    while at < len(stream):
        piece = memoryview(stream)[at : at + cuts[0]]
        at += len(piece)
        if len(cuts) > 1:
            cuts.pop(0)
        while piece:
            if not framer.in_large:
                frames += framer.received(bytes(piece))
                break
            buffer = framer.get_buffer()
            assert len(buffer) > 0
            size = min(len(buffer), len(piece))
            buffer[:size] = piece[:size]
            piece = piece[size:]
            frames += filter(None, [framer.received_large(size)])
    return frames


frames_lists = st.lists(
    st.one_of(
        st.binary(max_size=10),
        st.integers(SMALL - 6, SMALL + 2).map(bytes),
        st.integers(100, MAX_BYTES).map(lambda n: bytes(range(200))[: n // 2] * 2),
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(
    contents=frames_lists, cuts=st.lists(st.integers(1, 90), min_size=1), eager=st.integers(0, 150)
)
def test_whole_byte_by_byte_and_randomly_cut_streams_give_the_same_frames(contents, cuts, eager):
    expected = [frame_of(content) for content in contents]
    stream = b"".join(expected)

    for sizes in ([len(stream) or 1], [1], cuts):
        framer = Framer(MAX_BYTES, small_bytes=SMALL, eager_bytes=eager)
        assert fed(framer, stream, sizes) == expected
        assert framer.pending_bytes == 0


@settings(max_examples=50, deadline=None)
@given(
    content=st.binary(max_size=100),
    taken=st.integers(0, 103),
    cuts=st.lists(st.integers(1, 9), min_size=1),
)
def test_pending_bytes_are_those_of_the_unfinished_frame(content, taken, cuts):
    start = frame_of(content)[:taken]
    whole = frame_of(b"before")
    framer = Framer(MAX_BYTES, small_bytes=SMALL)

    frames = fed(framer, whole + start, cuts)

    if len(start) == len(frame_of(content)):
        assert frames == [whole, start]
        assert framer.pending_bytes == 0
    else:
        assert frames == [whole]
        assert framer.pending_bytes == len(start)


@pytest.mark.parametrize("length", [0, 1, MAX_BYTES])
def test_lengths_up_to_the_limit_are_received(length):
    assert fed(Framer(MAX_BYTES, small_bytes=SMALL), frame_of(bytes(length)), [7]) == [
        frame_of(bytes(length))
    ]


@pytest.mark.parametrize("length", [-1, MAX_BYTES + 1, 2**31 - 1, -(2**31)])
def test_lengths_beyond_the_limit_are_refused_at_the_fourth_byte(length):
    prefix = length.to_bytes(4, "big", signed=True)
    framer = Framer(MAX_BYTES, small_bytes=SMALL)

    assert fed(framer, prefix[:3], [1]) == []
    with pytest.raises(BadFrame, match="a frame of"):
        fed(framer, prefix[3:], [1])


def test_a_frame_that_is_announced_and_not_sent_takes_little_memory():
    framer = Framer(100 * 1024 * 1024)

    fed(framer, (100 * 1024 * 1024).to_bytes(4, "big") + b"x", [5])

    assert framer.held_bytes == 5
    framer.get_buffer()
    assert framer.held_bytes == EAGER_BYTES
    fed(framer, bytes(EAGER_BYTES), [SMALL_BYTES])
    assert framer.held_bytes == 2 * EAGER_BYTES


@pytest.mark.parametrize(("size", "is_large"), [(SMALL, False), (SMALL + 1, True)])
def test_an_incomplete_frame_larger_than_a_small_one_gets_a_buffer_of_its_own(size, is_large):
    framer = Framer(MAX_BYTES, small_bytes=SMALL)
    frame = frame_of(bytes(size - 4))

    assert framer.received(frame[:5]) == []
    assert framer.in_large is is_large
    assert framer.held_bytes == framer.pending_bytes == 5
    if is_large:
        assert len(framer.get_buffer()) == size - 5
        assert framer.held_bytes == size
    assert fed(framer, frame[5:], [7]) == [frame]
    assert not framer.in_large


def test_a_large_frame_that_has_begun_can_be_left_to_somebody_else():
    framer = Framer(MAX_BYTES, small_bytes=SMALL)
    large = frame_of(bytes(range(196)))
    assert framer.received(frame_of(b"before") + large[:50]) == [frame_of(b"before")]
    assert (framer.begun, framer.large_bytes) == (large[:50], len(large))
    assert framer.in_large
    assert framer.held_bytes == framer.pending_bytes == 50
    framer.leave_large()

    assert not framer.in_large
    assert framer.held_bytes == framer.pending_bytes == 0
    assert fed(framer, frame_of(b"next"), [3]) == [frame_of(b"next")]


def test_a_chunk_that_is_one_frame_is_not_copied():
    chunk = frame_of(b"whole")

    (frame,) = Framer(MAX_BYTES).received(chunk)

    assert frame is chunk


def test_frames_are_not_changed_by_what_is_received_later():
    framer = Framer(MAX_BYTES, small_bytes=SMALL)
    kept = fed(framer, frame_of(b"a" * 10) + frame_of(b"b" * 100), [1])

    fed(framer, frame_of(b"c" * 10) + frame_of(b"d" * 100), [1])

    assert kept == [frame_of(b"a" * 10), frame_of(b"b" * 100)]


def test_a_connection_between_frames_holds_no_memory():
    framer = Framer(1000, small_bytes=SMALL)
    for content in (b"abcd", bytes(100)):
        frame = frame_of(content)
        assert framer.received(frame[:6]) == []
        assert framer.held_bytes > 0
        assert fed(framer, frame[6:], [50]) == [frame]
        assert framer.held_bytes == framer.pending_bytes == 0


@pytest.mark.parametrize(
    ("size", "is_asked"), [(SMALL, False), (SMALL + 1, True), (200, True), (201, False)]
)
def test_memory_is_asked_for_where_a_frame_may_have_all_of_it_at_once(size, is_asked):
    asked, memory = [], bytearray(300)

    def lend(begun, frame_bytes):
        asked.append((bytes(begun), frame_bytes))
        return memoryview(memory)[:frame_bytes]

    framer = Framer(MAX_BYTES, small_bytes=SMALL, eager_bytes=200)
    framer.borrow_from(lend)
    frame = frame_of(bytes(range(size - 4)))
    assert fed(framer, frame_of(b"before") + frame, [15, 7]) == [frame_of(b"before"), frame]
    assert asked == ([(frame[:5], size)] if is_asked else [])
    assert bytes(memory[:size]) == (frame if is_asked else bytes(size))


def test_where_none_is_lent_a_frame_has_its_own():
    framer = Framer(MAX_BYTES, small_bytes=SMALL)
    framer.borrow_from(lambda begun, frame_bytes: None)
    frame = frame_of(bytes(range(200)))
    assert fed(framer, frame, [9]) == [frame]
