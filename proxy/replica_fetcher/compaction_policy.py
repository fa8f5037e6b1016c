"""Which topics the broker may compact, asked of the broker, and what shows that it has; and the settings by which it
stores what is produced.

Compaction removes a key's old value, and later the tombstone that deleted it. Memory may hold the one and lack the
other: whoever read the value from memory would never hear that it was deleted. Of a topic that may be compacted memory
serves only what it holds without a hole up to the tail (partitions/readable.py), and nothing below what the cleaner is
seen to have cleaned (partitions/compaction.py). Where a setting has changed by which batches are stored otherwise than
they are sent, what was stored from Produce goes (`Broker.distrust`): bytes alone show that later, or by chance. Owns
the asking, on Forebay's own link. It must not know what is stored. Invariants: a topic may be compacted until the
broker has said that it is not; one question in flight, of MOST_TOPICS at most.
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

    from protocol.wire import Frame
    from proxy.partitions.topics import Topic
    from proxy.replica_fetcher.services import FetcherServices

log = logging.getLogger("forebay.cleanup")

VERSION = 4
CLIENT_ID = "forebay-cleanup"
POLICY = "cleanup.policy"
STORING = ("compression.type", "message.timestamp.type")
COMPACT = "compact"
EVERY_S = 60.0
"""A topic's policy may be changed at any time; a tombstone stays for `delete.retention.ms`, a day by default."""
MOST_TOPICS = 200


class CompactionPolicies:
    """Asks again and again; `Topic.may_be_compacted` is what has come of it. A followed topic stands in `_unasked`,
    or in `_line` in the order in which they are to be asked for again.
    """

    __slots__ = ("_broker", "_in_flight", "_in_line", "_line", "_unasked")

    def __init__(self, broker: FetcherServices) -> None:
        self._broker = broker
        self._in_flight = False
        self._unasked: dict[Topic, None] = {}
        self._line: deque[tuple[float, Topic]] = deque()
        self._in_line: set[Topic] = set()

    def tick(self, now: float) -> None:
        """Timed: ask for those that were not asked for in EVERY_S."""
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
            VERSION, 0, CLIENT_ID, topics=list(asked), settings=[POLICY, *STORING]
        )
        self._in_flight = True
        link.send(frame, 0, partial(self._answered, asked))

    def _list_due(self, now: float) -> list[Topic]:
        """At most MOST_TOPICS that are followed and due, the longest due first."""
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
        policy = values.get(POLICY)
        topic.may_be_compacted = policy is None or COMPACT in policy
        if not values:
            return
        settings = tuple(values.get(name) for name in STORING)
        if topic.settings is not None and topic.settings != settings:
            self._broker.distrust(topic, "settings")
        topic.settings = settings
