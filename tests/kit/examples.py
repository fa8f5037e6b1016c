"""How many examples Hypothesis draws for a long test, and how many seeds a simulation is run with: EXAMPLES=10 in the
environment takes ten times as many.

Owns the factor. Tests that run for each version of an API have small counts, because the versions differ little and
`make unit` has two minutes. Invariant: a count is at least 1.
"""

import os

FACTOR = float(os.environ.get("EXAMPLES", "1"))


def examples(count: int) -> int:
    """The count, times the factor."""
    return max(1, round(count * FACTOR))
