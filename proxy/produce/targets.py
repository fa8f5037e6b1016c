"""Targets of Produces: the partition and the queue for the bytes by which a request names them.

Owns the memory of what was looked up, per broker. Must not know how a request is forwarded.
Invariants:
* a target is remembered only while its topic's name is known, and its partition followed if it is
  stored.
* the memory is bounded. Whoever forgets a topic or partition must call `Targets.clear`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.classify import queue_of_topic
from protocol import header, produce
from protocol.produce_rows import ROW_WORDS
from proxy.partitions.partition_row import NO_ROW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocol.primitives import Frame
    from protocol.produce_rows import ProduceRows, Row
    from proxy.partitions.table import Partition
    from proxy.produce.services import ProduceLink, ProduceServices

TARGETS_LIMIT: Final = 16_384
"""Limit of remembered targets. At the limit all are forgotten, and looked up again with the next
requests.
"""
CLIENTS_LIMIT: Final = 4096
"""Limit of remembered client ids, in the same way."""
CLIENT_ID_BYTES: Final = 1024
"""A longer client id is not remembered."""
UNKNOWN: Final = "(unknown)"
"""Stands for a client id that is not remembered. Compare by identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A partition that requests name.

    `named`: the topic as the request's bytes name it. `topic`: the topic as the request scheduler
    knows it, its name, or its id while the name is unknown. `queue`: number of its queue.
    `partition` None: nothing is stored. `row`: the partition's row, or NULL. `is_known`: whether the
    topic is. Compared by identity.
    """

    named: bytes
    topic: str | bytes
    queue: int
    partition: Partition | None
    row: Any
    is_known: bool


NOTHING: Final[Mapping[int, Target]] = {}


class Targets:
    """The known targets of one broker."""

    __slots__ = ("_broker", "_known", "clears", "clients", "count")

    def __init__(self, broker: ProduceServices) -> None:
        self._broker = broker
        self.clears = 0
        """Number of calls of `clear`. A target found before the last one may be out of date."""
        self.count = 0
        """Number of remembered targets."""
        self._known: dict[tuple[int, bytes, bool], dict[int, Target]] = {}
        """By version, topic as the request's bytes name it, and whether batches are stored; then by
        partition.
        """
        self.clients: dict[bytes, str | None] = {}
        """Client ids by the bytes of a request from `produce_rows.ROUTE_START` to its body."""

    def clear(self) -> None:
        """Forget all targets: topics or partitions have changed."""
        self._known.clear()
        self.count = 0
        self.clears += 1

    def find_client(self, frame: Frame, raw: bytes) -> str | None:
        """Return the client id of a request, and remember it by `raw` (`clients`); None if it has
        none. Raises BadFrame if it is not UTF-8.
        """
        client_id = header.peek_request(frame).client_id
        if len(raw) <= CLIENT_ID_BYTES:
            if len(self.clients) >= CLIENTS_LIMIT:
                self.clients.clear()
            self.clients[raw] = client_id
        return client_id

    def peek(self, frame: Frame, version: int, row: Row, stores: bool) -> Target | None:
        """Return the remembered target of a row; None if there is none. `stores`: of a client whose
        batches are stored.
        """
        named = bytes(frame[row.topic_start : row.topic_end])
        return self._known.get((version, named, stores), NOTHING).get(row.partition)

    def find(
        self, link: ProduceLink, frame: Frame, version: int, rows: ProduceRows
    ) -> list[Target]:
        """Return the target of each row. Partitions are followed from now on if the client's
        batches are stored. Raises BadFrame if a topic's name is not UTF-8.
        """
        found: list[Target] = []
        words = rows.words
        starts, indexes = words[0::ROW_WORDS].tolist(), words[2::ROW_WORDS].tolist()
        while (begin := len(found)) < rows.count:
            start = starts[begin]
            named = bytes(frame[start : words[begin * ROW_WORDS + 1]])
            of_topic = self._known.get((version, named, link.stores), NOTHING)
            asked = indexes[begin : bisect_right(starts, start, begin)]
            targets = list(filter(None, map(of_topic.get, asked)))
            if len(targets) < len(asked):
                topic = produce.peek_topic(frame, version, start)
                targets = [
                    of_topic.get(index) or self._look_up(link, version, topic, index, named)
                    for index in asked
                ]
            found += targets
        return found

    def _look_up(
        self, link: ProduceLink, version: int, asked: str | bytes, index: int, named: bytes
    ) -> Target:
        broker, partition = self._broker, None
        topic = broker.topics.find(asked)
        if topic is not None and link.stores:
            if index not in topic.leaders:
                broker.topic_lookup.ask(topic.id, link)
            partition = broker.partitions.follow(topic, index)
        name = asked if topic is None else topic.name
        queue = queue_of_topic(name, broker.scheduler.data_queues)
        row = NO_ROW if partition is None else partition.row
        target = Target(named, name, queue, partition, row, topic is not None)
        # the name of an id that is not known yet would stand for another queue
        is_final = partition is not None if link.stores else isinstance(name, str)
        if is_final:
            self._remember(version, index, target, link.stores)
        return target

    def _remember(self, version: int, index: int, target: Target, stores: bool) -> None:
        if self.count >= TARGETS_LIMIT:
            self.clear()
        of_topic = self._known.setdefault((version, target.named, stores), {})
        self.count += index not in of_topic
        of_topic[index] = target
