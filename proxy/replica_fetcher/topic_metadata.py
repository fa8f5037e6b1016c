"""What Forebay asks the broker's Metadata about topics: what a name or an id stands for, and who leads.

Owns which topics are to be asked about, when, and over whose link. It must not know what follows from an answer: that
is told to the topics' table and to the watch. Invariants:
* a name that is not known is asked about only once the broker has answered a client for it (`want`).
* on Forebay's own links one question by name and one by id are out at a time, each of at most NAMES_A_QUESTION.
* a topic is asked about at most once in ASK_EVERY_S. What the broker would not explain is left alone for a pause that
  doubles, up to MOST_REFUSED_S; all such together are at most one question in RETRY_EVERY_S.
* what Forebay's own principal may not describe is asked on the link of the client that reads it.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import BadFrame, ErrorCode
from protocol.metadata import scan_metadata_response
from proxy.partitions.topics import NO_TOPIC_ID, Leader

if TYPE_CHECKING:
    from protocol.metadata import TopicMetadata
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.replica_fetcher.services import FetcherServices

log = logging.getLogger("forebay.topics")

CLIENT_ID = "forebay-watch"
METADATA_VERSION = 12
NAMES_A_QUESTION = 200
ASK_EVERY_S = 0.25
RETRY_EVERY_S = 1.0
FIRST_REFUSED_S = 1.0
MOST_REFUSED_S = 60.0
TOPICS_LIMIT = 10_000
"""How many topics wait to be asked about, and of how many it is remembered when they were."""

Key = str | bytes


class Pace:
    """When one topic may be asked about again; `pause_s` is above zero after a refusal."""

    __slots__ = ("next_at", "pause_s")

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self.pause_s = 0.0


class TopicLookup:
    """All questions of a process about topics."""

    def __init__(self, broker: FetcherServices) -> None:
        self._broker = broker
        self._due: dict[type, dict[Key, None]] = {str: {}, bytes: {}}
        self._later: dict[Key, None] = {}
        self._own_paces: dict[Key, Pace] = {}
        self._client_paces: dict[Key, Pace] = {}
        self._out: dict[type, bool] = {str: False, bytes: False}
        self._retry_at = float("-inf")

    def __len__(self) -> int:
        """Topics that wait to be asked about."""
        return len(self._due[str]) + len(self._due[bytes]) + len(self._later)

    def want(self, topic: Key, link: ClientConnection) -> None:
        """The broker has answered `link` about this name or id: what it stands for is asked, if it is not known."""
        if self._broker.topics.find(topic) is None:
            self.ask(topic, link)

    def ask(self, topic: Key, link: ClientConnection | None = None) -> None:
        """Learn a topic's name, id and suggested epochs, soon. On `link` where Forebay has no link of its own, or may
        not describe the topic.
        """
        if topic == NO_TOPIC_ID:
            return  # a broker does not expect it (Topic.validate)
        now, pace = self._broker.now(), self._own_paces.get(topic)
        is_refused = pace is not None and pace.pause_s > 0
        is_soon = pace is not None and pace.next_at > now
        if self._broker.own_connections.usable and not (is_refused and is_soon):
            if is_refused or is_soon:
                self._put(self._later, topic)
            elif self._put(self._due[type(topic)], topic):
                self.pump()
        elif link is not None:
            self._ask_on(link, topic, now)

    def _put(self, line: dict[Key, None], topic: Key) -> bool:
        """Whether it is in line; at the bound it is not, and is asked when a client is next answered about it."""
        if topic in self._due[type(topic)] or topic in self._later:
            return True
        if len(self) >= TOPICS_LIMIT:
            self._broker.counters.topic_questions_dropped += 1
            return False
        line[topic] = None
        return True

    def tick(self, now: float) -> None:
        """Timed: what had to wait is asked by now."""
        retried = 0
        for topic in list(self._later):
            pace = self._own_paces.get(topic)
            if pace is not None and pace.next_at > now:
                continue
            if pace is not None and pace.pause_s:
                if now < self._retry_at or retried >= NAMES_A_QUESTION:
                    continue
                retried += 1
            del self._later[topic]
            self._due[type(topic)][topic] = None
        if retried:
            self._retry_at = now + RETRY_EVERY_S
        self.pump()

    def pump(self) -> None:
        """Ask what is due, where no question is out."""
        if not self._broker.own_connections.usable:
            return
        for kind, due in self._due.items():
            if due and not self._out[kind]:
                self._ask_own(kind, list(islice(due, NAMES_A_QUESTION)))

    def _ask_own(self, kind: type, topics: list[Key]) -> None:
        """One question of these, all names or all ids: where there is an id, a broker reads no name
        (KafkaApis.handleTopicMetadataRequest, useTopicId).
        """
        upstream = self._broker.own_connections.link("proof")
        if upstream is None:
            return  # it is being opened
        now = self._broker.now()
        for topic in topics:
            del self._due[kind][topic]
            self._find_pace(self._own_paces, topic).next_at = now + ASK_EVERY_S
        self._out[kind] = True
        self._broker.counters.topic_questions["own"] += 1
        frame = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=topics)
        upstream.send(frame, 0, partial(self._answered_own, kind, topics))

    def _ask_on(self, link: ClientConnection, topic: Key, now: float) -> None:
        """The client's own link asks, at its principal's cost."""
        pace = self._find_pace(self._client_paces, topic)
        if pace.next_at > now:
            return
        pace.next_at = now + ASK_EVERY_S
        self._broker.counters.topic_questions["client"] += 1
        frame = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=[topic])
        link.upstream.send(frame, 0, partial(self._answered, self._client_paces, [topic]))

    def _find_pace(self, paces: dict[Key, Pace], topic: Key) -> Pace:
        """The longest unasked are forgotten at the bound."""
        pace = paces.pop(topic, None)
        if pace is None:
            pace = Pace()
            if len(paces) >= TOPICS_LIMIT:
                del paces[next(iter(paces))]
        paces[topic] = pace
        return pace

    # -- the answers ---------------------------------------------------------------------------------------

    def _answered_own(self, kind: type, topics: list[Key], answer: Frame | None) -> None:
        self._out[kind] = False
        if answer is None:  # the link is lost: the next one is asked
            for topic in topics:
                self._put(self._later, topic)
            return
        self._answered(self._own_paces, topics, answer)
        self.pump()

    def _answered(self, paces: dict[Key, Pace], topics: list[Key], answer: Frame | None) -> None:
        if answer is None:
            return
        described: list[TopicMetadata] = []
        try:
            described = scan_metadata_response(answer, METADATA_VERSION).topics
        except BadFrame as error:
            log.error("the broker's Metadata cannot be read: %s", error)
        explained: set[Key] = set()
        for one in described:
            if one.error_code == ErrorCode.NONE and one.name and one.topic_id:
                self._learn(one)
                explained.update((one.name, one.topic_id))
            elif one.error_code == ErrorCode.UNKNOWN_TOPIC_ID and one.topic_id:
                self._broker.forget_topic(one.topic_id)
            elif one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and one.name:
                self._forget_name(one.name)
        now = self._broker.now()
        for topic in topics:
            pace = self._find_pace(paces, topic)
            if topic in explained:
                pace.pause_s = 0.0
            else:
                pace.pause_s = min(max(2 * pace.pause_s, FIRST_REFUSED_S), MOST_REFUSED_S)
                pace.next_at = now + pace.pause_s
        self._broker.watch.pump()

    def _learn(self, described: TopicMetadata) -> None:
        assert described.name is not None and described.topic_id is not None
        broker = self._broker
        leaders = {said.partition: Leader(said.leader_id, said.leader_epoch) for said in described.partitions}
        replaced = broker.topics.learn(described.name, described.topic_id, leaders)
        if replaced is not None:
            broker.forget_topic(replaced.id)
        topic = broker.topics.find(described.topic_id)
        assert topic is not None
        for index in leaders:
            partition = broker.partitions.find(topic, index)
            if partition is not None:
                broker.watch.suggest(partition)

    def _forget_name(self, name: str) -> None:
        topic = self._broker.topics.find(name)
        if topic is not None:
            self._broker.forget_topic(topic.id)
