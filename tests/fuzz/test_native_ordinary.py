"""Produce frames of real clients and brokers, spoiled, into the C scanner under AddressSanitizer and UBSan.

Owns the rows that the program is fed. Must not know what ordinary is. FUZZ_ROUNDS and FUZZ_SEED as in
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

PROGRAM = Path(__file__).parent / "native" / "ordinary_spoiled.c"
NATIVE = Path(_build.__file__).parents[1] / "protocol" / "native"
NAMES_AT = 8


def test_a_spoiled_frame_is_ordinary_or_not(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    frames = [one for one in read_golden() if one.api_key == PRODUCE]
    rows = []
    for one in frames:
        for number in range(ROUNDS):
            frame = spoil(one.frame, rng) if number else one.frame
            start = min(NAMES_AT + rng.randrange(2), len(frame))
            end = min(start + rng.choice((0, 8, 12, 14, 16, 20, 22)), len(frame))
            rows.append(struct.pack("<BHHI", one.version, start, end, len(frame)) + frame)
    program = build_sanitized(PROGRAM, NATIVE, tmp_path)
    counted = count_rows(program, rows)
    assert counted["rows"] == len(rows)
    assert 0 < counted["requests"] < len(rows)
