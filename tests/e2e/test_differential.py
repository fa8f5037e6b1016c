"""Random Fetches are answered by Forebay as by the broker: the short form of tests/e2e/differential, with fixed seeds.

`python -m tests.e2e.differential --seed N --rounds M` is the long form.
"""

from __future__ import annotations

import pytest

from tests.e2e.differential.run import LEAST_HITS, Difference, run
from tests.e2e.differential.stage import OVERRIDES
from tests.kit.sidecar import PATIENT_CACHE, Pair

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS, REQUESTS = 3, 250


@pytest.mark.parametrize("seed", [13])
def test_answers_are_the_brokers(seed: int) -> None:
    found: list[Difference] = []
    with Pair({"overrides": OVERRIDES}, {"cache": PATIENT_CACHE}) as pair:
        hits = run(pair, seed, ROUNDS, REQUESTS, found, print)
    assert not found, "\n\n".join([f"seed {seed}", *map(str, found)])
    assert hits >= LEAST_HITS, f"{hits:.0%} of the bytes were hits"
