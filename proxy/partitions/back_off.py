"""Back-off: when Forebay's own questions about a partition pause.

Owns the pause after errors, and the time in which only clients' connections ask. Must not know the
questions. Invariants: several polls with the same error count as one step; a step doubles the pause.
"""

from __future__ import annotations

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
REFUSED_FOR_S = 30.0
"""After the broker refused a topic to Forebay's own principal, only clients' connections ask about
it for this time.
"""


class BackOff:
    """Pause of one partition. `until`: its end; `refused_until`: end of the refusal; both in seconds
    of a monotonic clock, -inf before the first. `failures`: steps since the last success.
    """

    __slots__ = ("failures", "refused_until", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = float("-inf")
        self.refused_until = float("-inf")

    def reset(self, now: float) -> None:
        """End the pause at `now`: the broker has answered for the partition."""
        self.failures = 0
        self.until = now

    def end(self, now: float) -> None:
        """End the pause at `now`, since the next question is another. The next step is as long as
        it would have been.
        """
        self.until = now

    def extend(self, now: float) -> None:
        """Begin the next pause, if none lasts: FIRST_PAUSE_S doubled per failure, up to
        LONGEST_PAUSE_S.
        """
        if self.until <= now:
            self.until = now + min(FIRST_PAUSE_S * 2 ** min(self.failures, 10), LONGEST_PAUSE_S)
            self.failures += 1

    def refuse(self, now: float) -> None:
        """Note that the broker refused the topic to Forebay's own principal."""
        self.refused_until = now + REFUSED_FOR_S
