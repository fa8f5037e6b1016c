"""Laggards do not share what they read."""

import pytest

from bench.pollution.lagging import Stretch, plan_stretches


def test_each_reads_a_stretch_of_its_own() -> None:
    assert plan_stretches([100, 80], 3) == [
        Stretch(0, 0, 50),
        Stretch(0, 50, 100),
        Stretch(1, 0, 80),
    ]


@pytest.mark.parametrize("count", [1, 8, 20])
def test_stretches_do_not_overlap(count: int) -> None:
    stretches = plan_stretches([1000] * 8, count)
    read = [(one.partition, offset) for one in stretches for offset in range(one.first, one.last)]
    assert len(stretches) == count
    assert len(read) == len(set(read))
