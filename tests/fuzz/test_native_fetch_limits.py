"""The judge of Fetches in C over random and hostile rows, under AddressSanitizer and UBSan.

Owns the number of rounds: FUZZ_ROUNDS and FUZZ_SEED as in test_golden_frames. Must not know the rules: the C program
holds each number against a reference of its own. A lease that a row still has after it was freed is seen there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blockcache import _build
from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.test_golden_frames import ROUNDS, SEED

PROGRAM = Path(__file__).parent / "native" / "fetch_limits_spoiled.c"
ROOT = Path(_build.__file__).parents[1]
PROTOCOL, PARTITIONS = ROOT / "protocol" / "native", ROOT / "proxy" / "partitions" / "native"
FETCHES = 100 * max(ROUNDS, 20)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sanitized(PROGRAM, PARTITIONS, tmp_path_factory.mktemp("limits"), PROTOCOL)


@pytest.mark.parametrize("life", range(4))
def test_limits_are_as_the_reference_says(program: Path, life: int) -> None:
    counted = count_rows(program, [], SEED * 4 + life, FETCHES)
    assert counted["compared"] > FETCHES
    assert min(counted["readable"], counted["ends"], counted["unsettled"]) > 1000
