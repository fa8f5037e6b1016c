"""Fetches and answers of real clients and brokers, spoiled or cut, into the C scanners under sanitizers (ASan, UBSan).

Owns the rows that the program is fed. Must not know what is in them. FUZZ_ROUNDS and FUZZ_SEED as in
test_golden_frames.
"""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

from protocol.api import FETCH
from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.mutations import read_golden, spoil
from tests.fuzz.test_golden_frames import ROUNDS, SEED
from tests.fuzz.test_native_produce_rows import NATIVE, PROGRAM

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_BYTES = 2048


def test_a_spoiled_fetch_or_answer_is_ordinary_or_not(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    rows = []
    for one in [one for one in read_golden() if one.api_key == FETCH]:
        for number in range(ROUNDS):
            frame = spoil(one.frame[:LONGEST_BYTES], rng) if number else one.frame
            received = rng.choice((len(frame), rng.randint(0, len(frame))))
            start = min(18 + rng.randrange(2), received)
            end = min(start + rng.choice((0, 0, 8, 14, 22)), received)
            row = struct.pack("<BHHII", one.version, start, end, received, len(frame))
            rows.append(row + frame[:received])
    program = build_sanitized(PROGRAM.with_name("fetched_spoiled.c"), NATIVE, tmp_path)
    counted = count_rows(program, rows)
    assert counted["rows"] == len(rows)
    assert 0 < counted["requests"] < len(rows)
    assert 0 < counted["answers"] < len(rows)
    assert 0 < counted["in_rows"] < len(rows)
    assert 0 < counted["weighed"] < 2 * len(rows)
