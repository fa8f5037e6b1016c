"""Asks the broker which topics it may compact, and by which settings it stores produced batches.

Compaction removes a key's old value, and later the tombstone that deleted it. The cache may hold
the value and lack the tombstone: a reader of the cache would never see the delete. So of a topic
that may be compacted the cache serves only a run without a hole up to the tail
(partitions/readable.py). Nothing is served below the cleaned end (partitions/compaction.py). If a
setting changes by which batches are stored otherwise than sent, all batches stored from Produce are
dropped (`Broker.distrust`). Bytes alone show such a change later, or by chance.

Owns the questions, on Forebay's own connection. Must not know which batches are stored. Invariants:
* a topic may be compacted until the broker has said otherwise, and while it could be compacted, and
  lose tombstones, before the next question: the cleaner keeps a tombstone for `delete.retention.ms`
  from the first pass that sees it (KIP-534, MemoryRecords.filterTo).
* one question in flight, of MOST_TOPICS topics at most.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import BadFrame, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocol.primitives import Frame
    from proxy.partitions.topics import Topic
    from proxy.replica_fetcher.services import FetcherServices

log = logging.getLogger("forebay.compaction")

VERSION = 4
CLIENT_ID = "forebay-cleanup"
POLICY = "cleanup.policy"
STORING = ("compression.type", "message.timestamp.type")
COMPACT = "compact"
DELETE = "delete"
TOMBSTONES_STAY_MS = "delete.retention.ms"
RETENTION_MS = "retention.ms"
EVERY_S = 60.0
"""Seconds between questions: a topic's policy may change at any time."""
LEAST_STAY_MS = 2000 * EVERY_S
"""Where tombstones stay for less, a changed policy may be learned too late."""
MOST_TOPICS = 200
FOR_EVER = -1


class CompactionPolicies:
    """Asks periodically; the result is `Topic.may_be_compacted`.

    A followed topic is either in `_unasked`, or in `_line`, which has the order of the next
    questions.
    """

    __slots__ = ("_broker", "_in_flight", "_in_line", "_line", "_unasked")

    def __init__(self, broker: FetcherServices) -> None:
        self._broker = broker
        self._in_flight = False
        self._unasked: dict[Topic, None] = {}
        self._line: deque[tuple[float, Topic]] = deque()
        self._in_line: set[Topic] = set()

    def tick(self, now: float) -> None:
        """Ask about the topics that were not asked about in the last EVERY_S seconds. Called
        periodically.
        """
        if self._in_flight or not self._broker.own_connections.usable:
            return
        due = self._list_due(now)
        link = self._broker.own_connections.link("proof") if due else None
        if link is None:
            return
        asked = {topic.name: topic for topic in due}
        for topic in asked.values():
            del self._unasked[topic]
            self._line.append((now + EVERY_S, topic))
            self._in_line.add(topic)
        frame = control.build_describe_configs_request(
            VERSION,
            0,
            CLIENT_ID,
            topics=list(asked),
            settings=[POLICY, TOMBSTONES_STAY_MS, RETENTION_MS, *STORING],
        )
        self._in_flight = True
        link.send(frame, 0, partial(self._answered, asked))

    def _list_due(self, now: float) -> list[Topic]:
        """Return at most MOST_TOPICS topics that are followed and due, the longest due first."""
        partitions = self._broker.partitions
        self._unasked |= dict.fromkeys(
            topic for topic in partitions.take_new_topics() if topic not in self._in_line
        )
        while self._line and self._line[0][0] <= now:
            topic = self._line.popleft()[1]
            self._in_line.discard(topic)
            self._unasked[topic] = None
        self._unasked = {topic: None for topic in self._unasked if partitions.follows(topic)}
        return list(islice(self._unasked, MOST_TOPICS))

    def _answered(self, asked: dict[str, Topic], answer: Frame | None) -> None:
        self._in_flight = False
        if answer is None:
            return
        try:
            described = control.scan_describe_configs_response(answer, VERSION)
        except BadFrame as error:
            log.error("the broker's DescribeConfigs cannot be read: %s", error)
            return
        for said in described:
            topic = asked.get(said.name)
            if topic is not None:
                self._learn(topic, said.values if said.error_code == ErrorCode.NONE else {})

    def _learn(self, topic: Topic, values: Mapping[str, str | None]) -> None:
        policy, stay_ms = values.get(POLICY), values.get(TOMBSTONES_STAY_MS)
        topic.learn_policy(
            policy is None or COMPACT in policy or stay_ms is None or float(stay_ms) < LEAST_STAY_MS
        )
        topic.learn_retention(_find_retention(values))
        if not values:
            return
        settings = tuple(values.get(name) for name in STORING)
        if topic.settings is not None and topic.settings != settings:
            self._broker.distrust(topic, "settings")
        topic.learn_settings(settings)


def _find_retention(values: Mapping[str, str | None]) -> int | None:
    """How long the broker keeps records, in milliseconds; -1: for ever; None: it did not say. A segment is deleted once
    its largest timestamp is older (UnifiedLog.deleteRetentionMsBreachedSegments), if the policy is to delete at all.
    """
    policy, kept_ms = values.get(POLICY), values.get(RETENTION_MS)
    if policy is None or kept_ms is None or not kept_ms.removeprefix("-").isdecimal():
        return None
    return int(kept_ms) if DELETE in policy.split(",") else FOR_EVER
