"""Answers to Fetches of extreme numbers, built by C under AddressSanitizer and UBSan.

Owns nothing but the call: the program chooses the numbers. Must not know an answer's form. FUZZ_ROUNDS and FUZZ_SEED as
in test_golden_frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.test_golden_frames import ROUNDS, SEED
from tests.fuzz.test_native_produce_rows import NATIVE, PROGRAM

if TYPE_CHECKING:
    from pathlib import Path


def test_an_answer_of_any_numbers_takes_what_room_it_says(tmp_path: Path) -> None:
    program = build_sanitized(PROGRAM.with_name("answer_built.c"), NATIVE, tmp_path)
    rounds = 4 * ROUNDS
    counted = count_rows(program, [], SEED, rounds)
    assert counted["rounds"] == rounds
    assert 0 < counted["with_records"] < rounds
    assert 0 < counted["read"] < rounds
