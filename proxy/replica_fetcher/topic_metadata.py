"""Asks the broker's Metadata about topics: the pairs of name and id, and the leaders.

Owns which topics are asked about, when, and on which connection. Must not know the consequences of
an answer: the topics' table and the replica fetcher get it. Invariants:
* an unknown name is asked about only once the broker has answered a client for it (`want`).
* on Forebay's own connections one question by name and one by id are in flight, each of at most
  NAMES_A_QUESTION topics.
* a topic is asked about at most once in ASK_EVERY_S. After a refusal it pauses; the pause doubles,
  up to MOST_REFUSED_S. All refused topics together are at most one question in RETRY_EVERY_S.
* a topic that Forebay's own principal may not describe is asked about on the reading client's
  connection.
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
    from protocol.primitives import Frame, TopicNameOrId
    from proxy.net.client_connection import AnyLink
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
"""Limit of the topics that wait to be asked about, and of the topics whose last question is
remembered.
"""


class Pace:
    """When a topic may be asked about again; `pause_s` is above zero after a refusal."""

    __slots__ = ("next_at", "pause_s")

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self.pause_s = 0.0

    def ask(self, now: float) -> None:
        """Note a question that is sent now."""
        self.next_at = now + ASK_EVERY_S

    def explain(self) -> None:
        """Note that the broker has described the topic."""
        self.pause_s = 0.0

    def refuse(self, now: float) -> None:
        """Note that the broker has not described it: the pause doubles, up to MOST_REFUSED_S."""
        self.pause_s = min(max(2 * self.pause_s, FIRST_REFUSED_S), MOST_REFUSED_S)
        self.next_at = now + self.pause_s


class TopicLookup:
    """All questions of a process about topics."""

    def __init__(self, broker: FetcherServices) -> None:
        self._broker = broker
        self._due: dict[type, dict[TopicNameOrId, None]] = {str: {}, bytes: {}}
        self._later: dict[TopicNameOrId, None] = {}
        self._own_paces: dict[TopicNameOrId, Pace] = {}
        self._client_paces: dict[TopicNameOrId, Pace] = {}
        self._out: dict[type, bool] = {str: False, bytes: False}
        self._retry_at = float("-inf")
        self.questions = {"own": 0, "client": 0}
        """Questions sent, by the connection that asked."""
        self.dropped = 0

    def __len__(self) -> int:
        """Return the number of topics that wait to be asked about."""
        return len(self._due[str]) + len(self._due[bytes]) + len(self._later)

    def want(self, topic: TopicNameOrId, link: AnyLink) -> None:
        """Ask about this name or id if it is unknown: the broker has answered `link` for it."""
        if self._broker.topics.find(topic) is None:
            self.ask(topic, link)

    def ask(self, topic: TopicNameOrId, link: AnyLink | None = None) -> None:
        """Ask soon for a topic's name, id and epochs. `link` asks if Forebay has no own connection,
        or may not describe the topic; with None that question is dropped.
        """
        if topic == NO_TOPIC_ID:
            return  # a broker does not expect this id (Topic.validate)
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

    def _put(self, line: dict[TopicNameOrId, None], topic: TopicNameOrId) -> bool:
        """Return True if the topic is queued. At the limit it is not; the next response to a client
        about the topic asks again.
        """
        if topic in self._due[type(topic)] or topic in self._later:
            return True
        if len(self) >= TOPICS_LIMIT:
            self.dropped += 1
            return False
        line[topic] = None
        return True

    def tick(self, now: float) -> None:
        """Queue the topics whose pause is over. Called periodically."""
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
        """Send a question for the due topics, if no question of that kind is in flight."""
        if not self._broker.own_connections.usable:
            return
        for kind, due in self._due.items():
            if due and not self._out[kind]:
                self._ask_own(kind, list(islice(due, NAMES_A_QUESTION)))

    def _ask_own(self, kind: type, topics: list[TopicNameOrId]) -> None:
        """Ask one question about these topics, all names or all ids. If a request has ids, a broker
        reads no names (KafkaApis.handleTopicMetadataRequest, useTopicId).
        """
        upstream = self._broker.own_connections.link("proof")
        if upstream is None:
            return  # the connection is being opened
        now = self._broker.now()
        for topic in topics:
            del self._due[kind][topic]
            self._find_pace(self._own_paces, topic).ask(now)
        self._out[kind] = True
        self.questions["own"] += 1
        frame = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=topics)
        upstream.send(frame, 0, partial(self._answered_own, kind, topics))

    def _ask_on(self, link: AnyLink, topic: TopicNameOrId, now: float) -> None:
        """Ask on the client's own connection, at the cost of its principal."""
        pace = self._find_pace(self._client_paces, topic)
        if pace.next_at > now:
            return
        pace.ask(now)
        self.questions["client"] += 1
        frame = control.build_metadata_request(METADATA_VERSION, 0, CLIENT_ID, topics=[topic])
        link.upstream.send(frame, 0, partial(self._answered, self._client_paces, [topic]))

    def _find_pace(self, paces: dict[TopicNameOrId, Pace], topic: TopicNameOrId) -> Pace:
        """Return the topic's pace. At the limit the topic asked about longest ago is forgotten."""
        pace = paces.pop(topic, None)
        if pace is None:
            pace = Pace()
            if len(paces) >= TOPICS_LIMIT:
                del paces[next(iter(paces))]
        paces[topic] = pace
        return pace

    # -- responses ---------------------------------------------------------------------------------

    def _answered_own(self, kind: type, topics: list[TopicNameOrId], answer: Frame | None) -> None:
        self._out[kind] = False
        if answer is None:  # the connection is lost: ask on the next one
            for topic in topics:
                self._put(self._later, topic)
            return
        self._answered(self._own_paces, topics, answer)
        self.pump()

    def _answered(
        self, paces: dict[TopicNameOrId, Pace], topics: list[TopicNameOrId], answer: Frame | None
    ) -> None:
        if answer is None:
            return
        described: list[TopicMetadata] = []
        try:
            described = scan_metadata_response(answer, METADATA_VERSION).topics
        except BadFrame as error:
            log.error("the broker's Metadata cannot be read: %s", error)
        explained: set[TopicNameOrId] = set()
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
                pace.explain()
            else:
                pace.refuse(now)
        self._broker.replica_fetcher.pump()

    def _learn(self, described: TopicMetadata) -> None:
        assert described.name is not None and described.topic_id is not None
        broker = self._broker
        leaders = {
            said.partition: Leader(said.leader_id, said.leader_epoch)
            for said in described.partitions
        }
        replaced = broker.topics.learn(described.name, described.topic_id, leaders)
        if replaced is not None:
            broker.forget_topic(replaced.id)
        topic = broker.topics.find(described.topic_id)
        assert topic is not None
        for index in leaders:
            partition = broker.partitions.claim(topic, index)
            if partition is not None:
                broker.replica_fetcher.suggest(partition)

    def _forget_name(self, name: str) -> None:
        topic = self._broker.topics.find(name)
        if topic is not None:
            self._broker.forget_topic(topic.id)
