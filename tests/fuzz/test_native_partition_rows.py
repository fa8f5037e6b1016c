"""Produced batches through the rows of their partitions, random and hostile ones, under AddressSanitizer and UBSan.

Owns the number of rounds: FUZZ_ROUNDS and FUZZ_SEED as in test_golden_frames. Must not know the rules: the C program
holds every field against a reference of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blockcache import _build
from tests.blockcache.test_native import build_sanitized, count_rows
from tests.fuzz.test_golden_frames import ROUNDS, SEED

PROGRAM = Path(__file__).parent / "native" / "partition_rows_spoiled.c"
ROOT = Path(_build.__file__).parents[1]
PROTOCOL, PARTITIONS = ROOT / "protocol" / "native", ROOT / "proxy" / "partitions" / "native"
EVENTS = 10 * max(ROUNDS, 60)
"""Requests and responses of each life: with fewer, no producer is believed."""
CHOSEN = 512
"""Topics of a request whose names collide in a hash without a secret."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sanitized(PROGRAM, PARTITIONS, tmp_path_factory.mktemp("rows"), PROTOCOL)


@pytest.mark.parametrize("life", range(4))
def test_rows_are_as_the_reference_says(program: Path, life: int) -> None:
    counted = count_rows(program, [], SEED * 4 + life, EVENTS)
    assert counted["stored"] > counted["left"] > 10
    assert counted["acknowledged"] > counted["stored"] > 100
    assert min(counted["stamped"], counted["fresh"], counted["resent"]) > 10
    assert min(counted["ahead"], counted["united"]) > 10


def test_names_that_a_client_chose_cost_no_more_than_others(program: Path) -> None:
    counted = count_rows(program, [], SEED, 1)
    assert CHOSEN <= counted["usual"] <= 3 * CHOSEN
    assert CHOSEN <= counted["chosen"] <= 3 * CHOSEN
