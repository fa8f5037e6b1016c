"""Real frames, spoiled: the parsers give a value or `BadFrame`, nothing else, and spans lie within the frame.

Owns which parser reads which frame. FUZZ_ROUNDS spoils each frame so many times, FUZZ_SEED says how.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from protocol import control, fetch, fetch_build, fetch_rows, produce_build
from protocol.api import API_VERSIONS, FETCH, PRODUCE
from protocol.api_versions import cut_response
from protocol.batch import is_control, is_crc_right, scan_batches
from protocol.control_batch import scan_control
from protocol.errors import BadFrame
from protocol.framing import Framer
from protocol.header import peek_correlation_id, peek_request
from proxy.relay import DECODED
from tests.fuzz.mutations import GoldenFrame, read_golden, spoil
from tests.kit import fetch_messages, produce_messages

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
FRAMES = read_golden()
KINDS = sorted({(one.api_key, one.kind) for one in FRAMES})
MOST_BYTES = 4096
LAST_VERSIONS = 4


def read_produce_request(frame: bytes, version: int) -> None:
    at = peek_request(frame).body_start
    request = produce_messages.scan_request(frame, version, at)
    check_records(frame, request.partitions)
    kept = [number % 2 == 0 for number, _ in enumerate(request.partitions)]
    if 0 < sum(kept) < len(kept):
        produce_build.cut_request(frame, version, at, kept)


def read_fetch_request(frame: bytes, version: int) -> None:
    at = peek_request(frame).body_start
    in_c = fetch_rows.scan_request(frame, len(frame))
    try:
        request = fetch_messages.scan_request(frame, version, at)
    except BadFrame:
        assert in_c is None
        raise
    assert in_c == (peek_request(frame), request)
    wait_ms = bytearray(frame)
    fetch_build.stamp_max_wait(wait_ms, version, at, 7)
    assert fetch_messages.scan_in_c(wait_ms) == request._replace(max_wait_ms=7)


def read_produce_response(frame: bytes, version: int) -> None:
    peek_correlation_id(frame)
    produce_messages.scan_response(frame, version)
    produce_build.merge_response(frame, version, [])


def read_fetch_response(frame: bytes, version: int) -> None:
    peek_correlation_id(frame)
    check_records(frame, fetch.scan_response(frame, version).partitions)


def read_versions(frame: bytes, version: int) -> None:
    if cut_response(frame, version, DECODED) is not frame:
        control.scan_api_versions_response(cut_response(frame, version, DECODED), version)
    if (
        version <= LAST_VERSIONS
    ):  # an unknown version is asked on purpose: answered in version 0, with error 35
        control.scan_api_versions_response(frame, version)


def check_records(frame: bytes, partitions: Any) -> None:
    """Spans are within the frame, batches within spans; each may be bad on its own."""
    for partition in partitions:
        start, end = partition.start, partition.end
        assert (start, end) == (-1, -1) or 4 < start <= end <= len(frame)
        try:
            batches = scan_batches(frame, max(start, 0), max(end, 0))
        except BadFrame:
            continue
        for batch in batches:
            assert start <= batch.start < batch.end <= end
            if batch.magic == 2:
                is_crc_right(frame, batch)
                if is_control(batch.attributes):
                    try_to(partial(scan_control, frame, batch))


def try_to(read: Callable[[], object]) -> bool:
    """Whether it could be read; BadFrame is the one permitted error."""
    try:
        read()
    except BadFrame:
        return False
    return True


def read_version_request(frame: bytes, _version: int) -> None:
    """Relayed: only its header is looked at."""
    peek_request(frame)


READERS: dict[tuple[int, str], Callable[[bytes, int], None]] = {
    (PRODUCE, "request"): read_produce_request,
    (PRODUCE, "response"): read_produce_response,
    (FETCH, "request"): read_fetch_request,
    (FETCH, "response"): read_fetch_response,
    (API_VERSIONS, "request"): read_version_request,
    (API_VERSIONS, "response"): read_versions,
}


@pytest.mark.parametrize(("api_key", "kind"), KINDS)
def test_a_spoiled_frame_is_read_or_bad(api_key: int, kind: str) -> None:
    rng = random.Random(f"{SEED}/{api_key}/{kind}")
    read = READERS[api_key, kind]
    said: Counter[bool] = Counter()
    for golden in [one for one in FRAMES if (one.api_key, one.kind) == (api_key, kind)]:
        read(golden.frame, golden.version)
        for _ in range(ROUNDS):
            frame = spoil(golden.frame, rng)
            said[read_or_explain(read, golden, frame)] += 1
    assert min(said[True], said[False]) > 0 or kind == "request", said


def read_or_explain(read: Callable[[bytes, int], None], golden: GoldenFrame, frame: bytes) -> bool:
    """An error that is not permitted comes with the frame."""
    try:
        return try_to(partial(read, frame, golden.version))
    except Exception as error:
        error.add_note(
            f"API {golden.api_key} version {golden.version} {golden.kind}: {frame.hex()}"
        )
        raise


def fed(stream: bytes, sizes: Callable[[], int]) -> tuple[list[bytes], bool]:
    """The frames that come of it, and whether it ended badly."""
    framer = Framer(MOST_BYTES, small_bytes=256, eager_bytes=300)
    frames: list[bytes] = []
    at = 0
    while at < len(stream):
        buffer = framer.get_buffer() if framer.in_large else None
        size = min(len(stream) - at, sizes() if buffer is None else min(len(buffer), sizes()))
        chunk = stream[at : at + size]
        at += size
        if buffer is not None:
            buffer[:size] = chunk
            large = framer.received_large(size)
            frames += [] if large is None else [bytes(large)]
            continue
        try:
            frames += framer.received(chunk)
        except BadFrame:
            return frames, True
    return frames, False


def test_a_spoiled_stream_is_cut_alike_whole_byte_by_byte_and_at_random() -> None:
    """What came before the bad length in one chunk with it may be lost with the connection."""
    rng = random.Random(f"{SEED}/stream")
    bad = 0
    for _ in range(ROUNDS * 4):
        stream = bytearray(b"".join(rng.choice(FRAMES).frame for _ in range(rng.randint(1, 5))))
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(stream))
            stream[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        slow, slow_bad = fed(bytes(stream), lambda: 1)
        for sizes in (lambda: 1 << 20, lambda: rng.randint(1, 700)):
            frames, ended_badly = fed(bytes(stream), sizes)
            assert ended_badly == slow_bad
            assert frames == slow[: len(frames)]
            assert slow_bad or len(frames) == len(slow)
        bad += slow_bad
    assert 0 < bad < ROUNDS * 4
