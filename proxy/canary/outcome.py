"""What came of one record: latencies, or the step that failed.

Owns these values alone. Must not know aiokafka, which need not be installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from proxy.canary.plan import LatencyBar

Step = Literal["connect", "produce", "consume"]
STEPS: Final[tuple[Step, ...]] = ("connect", "produce", "consume")


class StepFailed(Exception):
    """A step of a side has failed; `str()` is the reason."""

    def __init__(self, step: Step, reason: str) -> None:
        super().__init__(reason)
        self.step: Step = step


class Latency(NamedTuple):
    """Seconds from the moment a record is handed to the producer: to its acknowledgement by all replicas in sync, and
    to its receipt by the consumer.
    """

    acknowledged_s: float
    received_s: float


RecordOutcome = Latency | StepFailed


class Round(NamedTuple):
    """What came of one record on each side."""

    through: RecordOutcome
    direct: RecordOutcome

    def is_slow(self, bar: LatencyBar) -> bool:
        """Whether Forebay's latency is above the bar, by either measure; False where a side has failed."""
        if isinstance(self.through, StepFailed) or isinstance(self.direct, StepFailed):
            return False
        return not all(map(bar.holds, self.through, self.direct))
