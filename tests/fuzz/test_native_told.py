"""Acknowledged batches through a ring between two processes, and rings that hold anything, under sanitizers.

Owns nothing but the call: the program draws requests, and knows what must come of them. FUZZ_ROUNDS and FUZZ_SEED as in
test_golden_frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.test_golden_frames import ROUNDS, SEED
from tests.fuzz.test_native_partition_rows import PARTITIONS, PROGRAM, PROTOCOL

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_told_is_stored_in_order_and_nothing_beyond_a_ring_is_read(tmp_path: Path) -> None:
    program = build_sanitized(PROGRAM.with_name("told_spoiled.c"), PARTITIONS, tmp_path, PROTOCOL)
    counted = count_rows(program, [], SEED, max(ROUNDS, 100))
    assert min(counted.values()) > 50
