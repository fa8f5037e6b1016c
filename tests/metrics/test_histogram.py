"""Histograms count every observation once, bounds included."""

import pytest

from metrics.histogram import Histogram


def test_a_value_on_a_bound_belongs_to_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.1000001, 1.0, 1.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert list(histogram.cumulative()) == [("0.1", 2), ("1.0", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(2.3500001)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_must_grow(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must grow"):
        Histogram(bounds)
