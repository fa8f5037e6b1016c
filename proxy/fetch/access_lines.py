"""Lines of the access log about Fetches.

Owns the fields of a line; metrics.access_log.ResponseLine has their meaning
and units. Must not know when a response has left, or what is counted. Invariants:
* a partition is in the line of its response if that carried records of it, or its read was delayed;
  else a sum of `EmptyAnswers` counts it.
* a line names at most RESPONSE_PARTITIONS partitions; a response with more has several.
* a line keeps no more of a client's text than it shows.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, TypeAlias

from metrics.access_log import cut_text
from metrics.access_log_schema import RESPONSE_PARTITIONS
from proxy.accounting.empty_answers import CLEAN
from proxy.partitions.readable import UNREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog, AnswerValues
    from protocol.fetch import FetchPartition
    from proxy.accounting.empty_answers import EmptyAnswers
    from proxy.fetch.services import ClientFetch, FetchLink
    from proxy.partitions.readable import PartitionOutcome
    from proxy.partitions.table import Partition, Partitions
    from proxy.partitions.topics import Topics

NS_IN_MS = 1_000_000
LEAST_DELAY_S = 0.000001
"""Shortest delay, in seconds, that a line shows; lines have a resolution of a microsecond."""
US_IN_S = 1_000_000

Departed: TypeAlias = "tuple[ClientFetch, Sequence[PartitionOutcome], bool, float, float, int]"
"""A response that has left: Fetch, outcomes, whether Forebay built it (False: it is the broker's own
frame), when it left, in seconds, the seconds in the purgatory, or NOT_PARKED, and the number of
partitions that it names without records and without an outcome.
"""


def _is_at_end(one: PartitionOutcome) -> bool:
    """Return True if memory named the partition without records: the client has read all of its log."""
    asked, partition, _, _, _ = one.status
    return (
        not one.size_bytes
        and (one.result, one.reason) == CLEAN
        and partition is not None
        and partition.is_followed
        and partition.row.high_watermark == asked.fetch_offset
    )


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
        """Log Fetches whose responses have left completely: a line of each, and sums."""
        put = self._log.put
        admitted_bytes, time_ms = self._cache.peek_admitted_bytes(), time_ns() // NS_IN_MS
        for fetch, outcomes, _, left_at, waited_s, clean in departed:
            answers: list[AnswerValues] = []
            empty: list[PartitionOutcome] = []
            for one in outcomes:
                status, size_bytes, result, reason, delay_s, would_hit, at, timestamp_ms = one
                if not size_bytes and delay_s < LEAST_DELAY_S:
                    empty.append(one)
                    continue
                asked, partition, _, _, _ = status
                _, index, _, offset, _, _, _ = asked
                topic_name: str | None
                topic_id: bytes | None
                if (
                    partition is not None
                    and (row := partition.row).is_followed
                    and (topic := partition.topic).name
                ):
                    topic_name, topic_id, high_watermark = topic.name, topic.id, row.high_watermark
                else:
                    topic_name, topic_id = self._name(asked.topic)
                    partition = self._find_partition(asked)
                    high_watermark = -1 if partition is None else partition.row.high_watermark
                age_bytes = None if at is None else admitted_bytes - at
                if at is None and partition is not None:
                    age_bytes = self._age(partition, one)
                answers.append(
                    (
                        topic_name,
                        topic_id,
                        result,
                        reason,
                        index,
                        offset,
                        size_bytes,
                        high_watermark,
                        age_bytes,
                        timestamp_ms,
                        None if delay_s < LEAST_DELAY_S else round(delay_s * US_IN_S),
                        would_hit,
                    )
                )
            link, head, request, _, _, received_at, _ = fetch
            while answers:
                rest = answers[RESPONSE_PARTITIONS:]
                del answers[RESPONSE_PARTITIONS:]
                line = (
                    time_ms,
                    link.listener.name,
                    link.number,
                    cut_text(link.client_id),
                    link.group,
                    head.api_version,
                    request.isolation_level,
                    max(waited_s, 0.0) * 1000,
                    (left_at - received_at) * 1000,
                    admitted_bytes,
                    answers,
                )
                put(line, len(answers))
                answers = rest
            if clean:
                empty = self._add_clean(fetch, outcomes, empty, admitted_bytes)
            if empty:
                self._add_empty(link, empty, admitted_bytes)

    def _add_clean(
        self,
        fetch: ClientFetch,
        outcomes: Sequence[PartitionOutcome],
        empty: Sequence[PartitionOutcome],
        admitted_bytes: int,
    ) -> list[PartitionOutcome]:
        """Count the partitions of a response that have no outcome, and those of `empty` that are at
        the end of their logs, too. Return the rest of `empty`.
        """
        link, repeated = fetch.link, fetch.repeated
        assert repeated is not None
        rest = [one for one in empty if not _is_at_end(one)]
        others = [one.status.asked[:2] for one in outcomes if not _is_at_end(one)]
        asker = link.listener.name, link.number, cut_text(link.client_id), link.group
        self.empty.add_run(asker, repeated.by_topic, others, self._name, admitted_bytes)
        return rest

    def _add_empty(
        self, link: FetchLink, outcomes: Sequence[PartitionOutcome], admitted_bytes: int
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
            if partition is not None and (high_watermark := partition.row.high_watermark) >= 0:
                lag = high_watermark - asked.fetch_offset
                lag = 10 ** (len(str(lag)) - 1) if lag > 0 else 0
            found[asked.topic, one.result, one.reason][lag].append(asked.partition)
        for (asked_topic, result, reason), by_lag in found.items():
            topic = self._name(asked_topic)
            key = (
                link.listener.name,
                link.number,
                cut_text(link.client_id),
                link.group,
                *topic,
                result,
                reason,
            )
            self.empty.add(key, by_lag, admitted_bytes)

    def put_unread(self, link: FetchLink, version: int, took_s: float) -> None:
        """Write one line for a whole Fetch that Forebay did not decode. `took_s` is in seconds."""
        asker = link.listener.name, link.number, cut_text(link.client_id), link.group
        took_ms, time_ms = took_s * 1000, time_ns() // NS_IN_MS
        answers: list[AnswerValues] = [(None, None, *UNREAD, -1, -1, 0, -1, None, None, None, None)]
        admitted_bytes = self._cache.peek_admitted_bytes()
        self._log.put((time_ms, *asker, version, 0, 0.0, took_ms, admitted_bytes, answers), 1)

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
        """Return the bytes admitted since this offset was, its batch included; None if it never was, or is
        forgotten.

        A FIFO cache must hold this age to hit the offset. Observed records may reach
        their reader before the index; their age is then their own size, the least possible.
        """
        age_bytes = self._cache.age_bytes(partition.slot, one.status.asked.fetch_offset)
        return one.size_bytes if age_bytes is None and one.would_hit_bytes else age_bytes
