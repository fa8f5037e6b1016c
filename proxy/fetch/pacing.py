"""Pacing of one connection's wide Fetches: those of many partitions, few of which have records (decision 0037).

Owns when the connection's next Fetch is evaluated. Must not know how a Fetch waits. A client without
fetch sessions names all its partitions in each Fetch. Each costs the event loop time for every
partition, whether it has records or not. Answered at once, such a client takes the whole loop, and
its records come a few at a time. Invariants:
* The pause is bounded, and it is never longer than the client's own max_wait.
* A Fetch of few partitions, one of which many have records, or one that fills its bytes is not
  paced: a consumer that reads history from memory loses nothing.
"""

from __future__ import annotations

WIDE_PARTITIONS = 100
"""Fewest partitions of a response after which the next Fetch is paced."""
SPARSE = 8
"""A response is sparse if at most one of so many partitions has records."""
PAUSE_S = 0.00001
"""Pause for each partition that the response names, in seconds: about twice what it costs."""
PAUSE_MOST_S = 0.05
"""Longest pause in seconds."""


class Pacing:
    """`until`: the time, in seconds, before which the connection's next Fetch is not evaluated."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = float("-inf")

    def answered(self, partitions: int, with_records: int, now: float) -> None:
        """Note a response that left room for more bytes: how many partitions it names, at least
        WIDE_PARTITIONS, and how many of them have records.
        """
        if with_records * SPARSE <= partitions:
            self.until = now + min(partitions * PAUSE_S, PAUSE_MOST_S)
