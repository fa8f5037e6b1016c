"""Record batches of real brokers, spoiled, into the C code under AddressSanitizer and UBSan.

Owns the rows that the program is fed. Must not know the arena. FUZZ_ROUNDS and FUZZ_SEED as in test_golden_frames.
"""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from protocol import fetch
from protocol.api import FETCH, PRODUCE
from protocol.header import peek_request
from tests.blockcache.test_native import NATIVE, build_sanitized, count_rows
from tests.fuzz.mutations import EDGES, WORDS, read_golden
from tests.kit import produce_messages

PROGRAM = Path(__file__).parent / "native" / "spoiled.c"
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
OFFSET_BYTES = 8
FAR = (0, 1, 1 << 31, 1 << 62, (1 << 63) - 1, -1, -(1 << 63))


def find_spans() -> list[bytes]:
    """The record bytes of every golden frame, each once."""
    found: dict[bytes, None] = {}
    for one in read_golden():
        partitions: list[fetch.FetchedPartition] | list[produce_messages.ProducePartition] = []
        if (one.api_key, one.kind) == (FETCH, "response"):
            partitions = list(fetch.scan_response(one.frame, one.version).partitions)
        elif (one.api_key, one.kind) == (PRODUCE, "request"):
            at = peek_request(one.frame).body_start
            partitions = list(produce_messages.scan_request(one.frame, one.version, at).partitions)
        found |= {one.frame[p.start : p.end]: None for p in partitions if p.end > p.start}
    return list(found)


def spoil_run(span: bytes, rng: random.Random) -> bytes:
    """A few bytes of it, mostly of headers, and often where it stands in the log."""
    run = bytearray(span)
    if rng.random() < 0.7:
        offset = rng.choice(FAR) if rng.random() < 0.3 else rng.randrange(100)
        run[:OFFSET_BYTES] = struct.pack(">q", offset)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        at = rng.randrange(len(run)) if rng.random() < 0.2 else rng.randrange(min(61, len(run)))
        spoiling = rng.choice((bytes([rng.choice(EDGES)]), rng.choice(WORDS), rng.randbytes(2)))
        run[at : at + len(spoiling)] = spoiling
    if rng.random() < 0.1:
        del run[rng.randrange(1, len(run)) :]
    return bytes(run * rng.choice((1, 1, 1, 2)))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sanitized(PROGRAM, NATIVE, tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize(
    ("arena_bytes", "shared_bytes", "observe"),
    [(64 << 10, 0, 0), (128 << 10, 4 << 10, 0), (128 << 10, 4 << 10, 1)],
)
def test_a_spoiled_batch_is_taken_or_refused(
    program: Path, arena_bytes: int, shared_bytes: int, observe: int
) -> None:
    rng = random.Random(f"{SEED}/{arena_bytes}/{observe}")
    rows = []
    for _ in range(ROUNDS * 100):
        run = spoil_run(rng.choice(SPANS), rng)
        covers_from = rng.choice((0, 0, 0, rng.randrange(100), rng.choice(FAR)))
        rows.append(struct.pack("<Iq", len(run), covers_from) + run)
    counted = count_rows(program, rows, arena_bytes, shared_bytes, observe)
    assert min(counted["placed"], counted["taken"], counted["refused"]) > ROUNDS
    assert observe or counted["compared"] > 0


SPANS = find_spans()
