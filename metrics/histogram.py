"""A histogram of plain integers: what the data path fills and the scrape reads.

Owns bounds and counts; knows neither Prometheus nor a clock. One thread observes; the scrape reads cells.
Invariants: bounds grow; `counts` has one cell more than there are bounds, each observation in exactly one.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise


class Histogram:
    """Counts of observations by upper bound (inclusive); the last cell is what lies above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """ValueError: no bounds, or bounds that do not grow."""
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"histogram bounds must grow: {bounds}")
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One more observation, in the bounds' unit."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Observations that were counted elsewhere, by the same bounds, and their sum."""
        for cell, count in enumerate(counts):
            self.counts[cell] += count
        self.sum += total

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """(upper bound as Prometheus writes it, observations at or below it), ending with +Inf."""
        below = 0
        for bound, cell in zip(self.bounds, self.counts, strict=False):
            below += cell
            yield repr(float(bound)), below
        yield "+Inf", below + self.counts[-1]
