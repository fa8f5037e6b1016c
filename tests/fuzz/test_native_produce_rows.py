"""Produces of real clients and their responses, spoiled or cut, into the C scanners under AddressSanitizer and UBSan.

Owns the rows that the program is fed. Must not know what is in them. FUZZ_ROUNDS and FUZZ_SEED as in
test_golden_frames.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

from blockcache import _build
from protocol.api import PRODUCE
from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.mutations import read_golden, spoil
from tests.fuzz.test_golden_frames import ROUNDS, SEED

PROGRAM = Path(__file__).parent / "native" / "produce_rows_spoiled.c"
NATIVE = Path(_build.__file__).parents[1] / "protocol" / "native"


def join(frames: list[bytes], rng: random.Random) -> bytes:
    """The beginning of one frame and the end of another: partitions of both may follow each other."""
    first, last = rng.choice(frames), rng.choice(frames)
    return first[: rng.randrange(len(first))] + last[rng.randrange(len(last)) :]


def test_a_spoiled_frame_has_rows_or_none(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    golden = [one for one in read_golden() if one.api_key == PRODUCE]
    frames = [one.frame for one in golden]
    rows = []
    for one in golden:
        for number in range(ROUNDS):
            frame = spoil(one.frame, rng) if number else one.frame
            frame = join(frames, rng) if rng.random() < 0.1 else frame
            received = rng.choice((len(frame), rng.randint(0, len(frame))))
            room = rng.choice((0, 1, 1, 2, 200))
            rows.append(struct.pack("<BBII", one.version, room, received, len(frame)) + frame)
    program = build_sanitized(PROGRAM, NATIVE, tmp_path)
    counted = count_rows(program, rows)
    assert counted["rows"] == len(rows)
    assert 0 < counted["singles"] < counted["requests"] < len(rows)
    assert 0 < counted["answers"] < len(rows)
