"""Produced batches of several requests in flight, against a plain reference (`tests.proxy.forwarded_life`)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.forwarded_life import live


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_lives_of_partitions(seed: int) -> None:
    live(seed)


def test_lives_are_not_dull() -> None:
    counts: Counter[str] = Counter()
    lines = 0
    for seed in range(6):
        life = live(seed)
        counts += life.counts
        lines += len(life.lines)
    reasons = {
        "store",
        "sample",
        "warm-up",
        "resent",
        "no-epoch",
        "unlike",
        "below-hw",
        "old-format",
    }
    assert set(counts) == reasons
    assert counts["store"] > 100 and lines > 50
