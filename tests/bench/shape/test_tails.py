"""Nothing is counted before memory serves a whole second, or before three seconds are over."""

from __future__ import annotations

from typing import Any

import pytest

from bench.ladder.arms import CACHE, DIRECT, Arm
from bench.shape import tails
from bench.shape.tails import WARMS, Counts, warm_up


def count_seconds(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], name: str = CACHE
) -> list[float]:
    """The seconds that `warm_up` lets clients produce, if memory serves these shares of them."""
    sums = [(0.0, 0.0)]
    for share in shares:
        sums.append((sums[-1][0] + share * 1000, sums[-1][1] + 1000))
    produced: list[float] = []

    def count(arm: Arm) -> Counts | None:
        return Counts(0.0, *sums[len(produced)]) if arm.serves else None

    class Played:
        def produce(self, _: float, seconds: float) -> int:
            produced.append(seconds)
            return 0

    clients: Any = Played()
    monkeypatch.setattr(tails, "_count", count)
    warm_up(Arm(name, ""), clients, 100.0)
    return produced


@pytest.mark.parametrize(
    ("shares", "seconds"), [([1.0], 1), ([0.9, 1.0], 2), ([0.0, 0.998, 0.5], WARMS)]
)
def test_until_memory_serves(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], seconds: int
) -> None:
    assert count_seconds(monkeypatch, shares) == [1.0] * seconds


def test_a_second_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_seconds(monkeypatch, [], DIRECT) == [1.0]
