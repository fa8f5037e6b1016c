"""Lines of the access log about Fetches.

Owns the fields of a line, with one builder for all; metrics.access_log.FetchLine has their meaning
and units. Must not know when a response has left, or what is counted. Invariants:
* a partition has a line if its response carried records, or its read was delayed; else a sum of
  `EmptyAnswers` counts it.
* a line keeps no more of a client's text than it shows.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING

from metrics.access_log import cut_text
from proxy.partitions.readable import UNREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog, FetchValues
    from protocol.fetch import FetchPartition
    from proxy.accounting.empty_answers import EmptyAnswers
    from proxy.fetch.record import Departed, FetchRecord
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.readable import PartitionOutcome
    from proxy.partitions.table import Partition, Partitions
    from proxy.partitions.topics import Topics

LEAST_DELAY_S = 0.0000005
"""Shortest delay, in seconds, that a line shows; lines have a resolution of a thousandth of a
millisecond.
"""


class AccessLines:
    """Builds lines and hands them to `log`, which queues them."""

    __slots__ = ("_cache", "_log", "_partitions", "_topics", "empty")

    def __init__(
        self,
        log: AccessLog,
        cache: BlockCache,
        topics: Topics,
        partitions: Partitions,
        empty: EmptyAnswers,
    ) -> None:
        """`empty` gets the partitions without a line of their own; the owner ticks and closes it."""
        self._log = log
        self._cache = cache
        self._topics = topics
        self._partitions = partitions
        self.empty = empty

    def put_departed(self, departed: Sequence[Departed]) -> None:
        """Log each partition of Fetches whose responses have left completely: a line, or a sum."""
        lines: list[FetchValues] = []
        admitted_bytes = self._cache.peek_admitted_bytes()
        for record, outcomes, _, left_at in departed:
            empty: list[PartitionOutcome] = []
            for one in outcomes:
                if one.size_bytes or one.delay_s >= LEAST_DELAY_S:
                    lines.append(self._build_departed(record, one, left_at, admitted_bytes))
                else:
                    empty.append(one)
            if empty:
                self._add_empty(record.link, empty, admitted_bytes)
        if lines:
            self._log.put_all(lines)

    def _build_departed(
        self, record: FetchRecord, one: PartitionOutcome, left_at: float, admitted_bytes: int
    ) -> FetchValues:
        """Return the line of one partition of a response that left at `left_at`, in seconds."""
        asked = one.status.asked
        topic_name, topic_id, partition = self._resolve(one)
        age_bytes = None
        if one.admitted_at is not None:
            age_bytes = admitted_bytes - one.admitted_at
        elif partition is not None:
            age_bytes = self._age(partition, one)
        return _build_line(
            record.link,
            record.head.api_version,
            topic_name,
            topic_id,
            asked.partition,
            asked.fetch_offset,
            record.request.isolation_level,
            (one.result, one.reason),
            one.size_bytes,
            partition.leader_state.high_watermark if partition is not None else -1,
            age_bytes,
            record.waited_s,
            left_at - record.received_at,
            admitted_bytes,
            one.delay_s,
            one.would_hit_bytes,
        )

    def _add_empty(
        self, link: ClientConnection, outcomes: Sequence[PartitionOutcome], admitted_bytes: int
    ) -> None:
        """Count partitions of one response that carried no records.

        The loop calls no function for a partition that is followed: there may be thousands.
        """
        found: defaultdict[tuple[str | bytes, str, str], defaultdict[int | None, list[int]]] = (
            defaultdict(partial(defaultdict, list))
        )
        for one in outcomes:
            asked, partition = one.status.asked, one.status.partition
            if partition is None or not partition.is_followed:
                partition = self._find_partition(asked)
            lag = None
            if partition is not None and partition.leader_state.high_watermark >= 0:
                lag = partition.leader_state.high_watermark - asked.fetch_offset
                lag = 10 ** (len(str(lag)) - 1) if lag > 0 else 0
            found[asked.topic, one.result, one.reason][lag].append(asked.partition)
        for (asked_topic, result, reason), by_lag in found.items():
            topic = self._name(asked_topic)
            key = (
                link.listener.name,
                link.number,
                cut_text(link.client_id),
                *topic,
                result,
                reason,
            )
            self.empty.add(key, by_lag, admitted_bytes)

    def put_hit(
        self,
        link: ClientConnection,
        version: int,
        isolation_level: int,
        partition: Partition,
        fetch_offset: int,
        verdict: tuple[str, str],
        size_bytes: int,
        admitted_at: int,
        took_s: float,
    ) -> None:
        """Write the line of a Fetch of one partition that memory answered at once.

        `admitted_at` is the clock of admitted bytes when the first batch was stored; `took_s` is in
        seconds.
        """
        admitted_bytes, topic = self._cache.peek_admitted_bytes(), partition.topic
        self._log.put(
            _build_line(
                link,
                version,
                topic.name or None,
                topic.id,
                partition.index,
                fetch_offset,
                isolation_level,
                verdict,
                size_bytes,
                partition.leader_state.high_watermark,
                admitted_bytes - admitted_at,
                0.0,
                took_s,
                admitted_bytes,
            )
        )

    def put_unread(self, link: ClientConnection, version: int, took_s: float) -> None:
        """Write one line for a whole Fetch that Forebay did not decode. `took_s` is in seconds."""
        admitted_bytes = self._cache.peek_admitted_bytes()
        self._log.put(
            _build_line(
                link,
                version,
                None,
                None,
                -1,
                -1,
                0,
                UNREAD,
                0,
                -1,
                None,
                0.0,
                took_s,
                admitted_bytes,
            )
        )

    def _resolve(self, one: PartitionOutcome) -> tuple[str | None, bytes | None, Partition | None]:
        """Return topic name, topic id and partition, each None if unknown."""
        asked, partition = one.status.asked, one.status.partition
        topic = partition.topic if partition is not None and partition.is_followed else None
        if topic is not None and topic.name:
            return topic.name, topic.id, partition
        return *self._name(asked.topic), self._find_partition(asked)

    def _name(self, asked_topic: str | bytes) -> tuple[str | None, bytes | None]:
        """Return the topic's name and id, each None if unknown.

        An unknown topic appears with the name or id that the client used.
        """
        topic = self._topics.find(asked_topic)
        if topic is not None:
            return topic.name or None, topic.id
        if isinstance(asked_topic, str):
            return cut_text(asked_topic), None
        return None, asked_topic

    def _find_partition(self, asked: FetchPartition) -> Partition | None:
        """Return the followed partition that the client means, None if there is none."""
        topic = self._topics.find(asked.topic)
        return self._partitions.find(topic, asked.partition) if topic is not None else None

    def _age(self, partition: Partition, one: PartitionOutcome) -> int | None:
        """Return the bytes admitted since this offset was; None if it never was, or is forgotten.

        A FIFO cache must be larger than this age to hit the offset. Observed records may reach
        their reader before the index; their age is then their own size, the least possible.
        """
        age_bytes = self._cache.age_bytes(partition.slot, one.status.asked.fetch_offset)
        return one.size_bytes if age_bytes is None and one.would_hit_bytes else age_bytes


def _build_line(
    link: ClientConnection,
    version: int,
    topic_name: str | None,
    topic_id: bytes | None,
    partition: int,
    offset: int,
    isolation_level: int,
    verdict: tuple[str, str],
    size_bytes: int,
    high_watermark: int,
    age_bytes: int | None,
    waited_s: float,
    took_s: float,
    admitted_bytes: int,
    delay_s: float = 0.0,
    would_hit_bytes: int | None = None,
) -> FetchValues:
    """Return the fields of `FetchLine`, in its order, stamped with the current time."""
    return (
        time_ns() // 1_000_000,
        link.listener.name,
        link.number,
        cut_text(link.client_id),
        version,
        topic_name,
        topic_id,
        partition,
        offset,
        isolation_level,
        *verdict,
        size_bytes,
        high_watermark,
        age_bytes,
        waited_s * 1000,
        took_s * 1000,
        admitted_bytes,
        delay_s * 1000 if delay_s >= LEAST_DELAY_S else None,
        would_hit_bytes,
    )
