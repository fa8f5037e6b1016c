"""Random requests against a ring of partitions, under AddressSanitizer and UBSan.

Owns nothing but the call: the program draws the requests, and knows what must come of them. FUZZ_ROUNDS and
FUZZ_SEED as in test_golden_frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.test_golden_frames import ROUNDS, SEED
from tests.fuzz.test_native_produce_rows import NATIVE, PROGRAM

if TYPE_CHECKING:
    from pathlib import Path


def test_a_ring_finds_what_a_plain_search_finds(tmp_path: Path) -> None:
    program = build_sanitized(PROGRAM.with_name("ring_matched.c"), NATIVE, tmp_path)
    counted = count_rows(program, [], SEED, max(ROUNDS, 100))
    assert min(counted.values()) > 50
