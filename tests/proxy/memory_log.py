"""An access log in memory.

Owns the lines that were put, and the sums of partitions without records that `empty` has, or has put. It must not know
how a line is written. Invariant: `count_empty` sees each partition of each response once, whether its sum has ended or
not.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from metrics.access_log import BlockLine, EmptyLine
from proxy.accounting.empty_answers import EmptyAnswers
from tests.kit.log_lines import LoggedFetch, name_partitions
from tests.proxy.followed_partition import stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from metrics.access_log import BlockValues, EmptyValues, ResponseValues

QUEUE_LINES = 1000
NOW_MS = 1_763_700_000_000


class Empty(NamedTuple):
    """A partition of a response without records, as far as sums keep it apart from others."""

    client_id: str | None
    topic: str | None
    partition: int
    result: str
    reason: str
    lag: int | None


class MemoryLog:
    """Lines as they were put; `empty` has the sums."""

    def __init__(self, now_ms: Callable[[], int] = lambda: NOW_MS) -> None:
        self.responses: list[list[LoggedFetch]] = []
        self.blocks: list[BlockLine] = []
        self.empties: list[EmptyLine] = []
        self.empty = EmptyAnswers(stand_in(self), QUEUE_LINES, now_ms)

    def put(self, line: ResponseValues | BlockValues, named: int = 1) -> None:
        if isinstance(line[-1], list):
            assert named == len(line[-1])
            self.responses.append(name_partitions(line))
        else:
            self.blocks.append(BlockLine(*line))

    @property
    def fetches(self) -> list[LoggedFetch]:
        """The partitions of all responses."""
        return [one for response in self.responses for one in response]

    def put_empty(self, line: EmptyValues) -> None:
        self.empties.append(EmptyLine(*line))

    def count_empty(self) -> Counter[Empty]:
        """How many responses named each partition without records, over all sums, which end by this."""
        self.empty.close()
        counted: Counter[Empty] = Counter()
        for line in self.empties:
            for lag, by_partition in line.counts.items():
                for partition, number in by_partition.items():
                    verdict = line.result, line.reason
                    counted[Empty(line.client_id, line.topic, partition, *verdict, lag)] += number
        return counted
