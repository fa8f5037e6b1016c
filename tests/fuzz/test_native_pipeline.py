"""Produces of real clients and their answers, spoiled, sent between real sockets under AddressSanitizer and UBSan.

Owns the rows that the program is fed. Must not know which requests may use the pipeline. FUZZ_ROUNDS and
FUZZ_SEED as in test_golden_frames.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

from protocol.api import PRODUCE
from proxy.produce import pipeline
from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.mutations import read_golden, spoil
from tests.fuzz.test_golden_frames import ROUNDS, SEED
from tests.fuzz.test_native_produce_rows import NATIVE, PROGRAM

PIPELINE = Path(pipeline.__file__).parent / "native"
REQUEST, ANSWER, MATCHING = range(3)
LONGEST_BYTES = 64 << 10


def test_spoiled_produces_are_forwarded_or_rejected(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    golden = [one for one in read_golden() if one.api_key == PRODUCE]
    kinds = {
        kind: [one.frame for one in golden if one.kind == kind] for kind in ("request", "response")
    }
    rows = []
    for _ in range(ROUNDS * 200):
        kind = rng.choice((REQUEST, REQUEST, ANSWER, MATCHING, MATCHING))
        frame = rng.choice(kinds["request" if kind == REQUEST else "response"])
        if rng.random() < 0.5:
            frame = spoil(frame, rng)[
                : rng.choice((LONGEST_BYTES, LONGEST_BYTES, rng.randrange(12)))
            ]
        state = rng.choice((0, 0, 0, 0, 0, 0, 1, 2))
        rows.append(struct.pack("<BBI", kind, state, len(frame)) + frame)
    program = build_sanitized(PROGRAM.with_name("pipeline_spoiled.c"), PIPELINE, tmp_path, NATIVE)
    counted = count_rows(program, rows)
    assert counted["rows"] == len(rows)
    assert counted["forwarded"] >= counted["completed"] > counted["succeeded"] > 0
    assert counted["other"] > 0
