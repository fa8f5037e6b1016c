"""Who may be served what, until when: the broker decides, per connection and topic.

Owns one connection's verdicts and their renewal. It must not know the cache. Invariants:
* a topic is allowed only after the broker answered this connection's own Fetch of it without an authorization
  error; UNKNOWN_TOPIC_ID and UNKNOWN_TOPIC_OR_PARTITION prove nothing (KafkaApis.handleFetchRequest answers
  them before it authorizes).
* renewal is one Fetch for all topics in use, at the tail, so that it carries no records; one at a time.
* rights end with the client's SASL session (KIP-368): a broker cuts the connection at its next request then.
* nothing is read only to learn a right: where one is missing to what memory or the throttle could answer, it is
  asked for at the tail first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocol.fetch import FetchResponse
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.table import Partition

PROVES = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
PURPOSE = "authorization"
"""Names a renewal's bytes in the counters: the tail may have moved on, and then one batch comes regardless."""
OUTLIVED_S = 1.0
"""What is answered so long after a session's end: the broker only tells lifetimes, and cuts nobody
(SaslServerAuthenticator.ReauthInfo.calcCompletionTimesAndReturnSessionLifetimeMs, without connections.max.reauth.ms).
"""
RENEW_AT = 0.75
"""Share of the period after which a topic in use is asked again, so that no fetch has to wait for it."""


class Authorization:
    """One connection's rights. `version` and `rack_id` are those of its last Fetch."""

    __slots__ = ("_ends_at", "_link", "_outlived_at", "_renewing", "_until", "_used", "has_rack", "version")

    def __init__(self, link: ClientConnection) -> None:
        self._link = link
        self._until: dict[str | bytes, float] = {}
        self._used: dict[str | bytes, Partition] = {}
        self._renewing = False
        self._ends_at, self._outlived_at = float("inf"), float("-inf")
        self.version = 0
        self.has_rack = False

    def allows(self, topic: str | bytes, now: float) -> bool:
        """Whether memory may serve `topic` (as the client names it) on this connection."""
        return self._until.get(topic, 0.0) > now

    def begin_session(self, sent_at: float, answered_at: float, lifetime_s: float) -> None:
        """The broker has accepted the client, in an answer to what was sent at `sent_at`. 0 s: it did not say for how
        long, as in all but the last round of an exchange.
        """
        if not lifetime_s:
            return
        self._ends_at = sent_at + lifetime_s
        self._outlived_at = answered_at + lifetime_s + OUTLIVED_S
        for topic, until in self._until.items():
            self._until[topic] = min(until, self._ends_at)

    def learn(self, topic: str | bytes, error_code: int, asked_at: float) -> None:
        """The broker answered a Fetch of `topic` that this connection sent at `asked_at`."""
        if error_code in PROVES:
            period_s = self._link.broker.config.cache.authorize_every_s
            until = asked_at + period_s
            if asked_at < self._outlived_at:
                until = min(until, self._ends_at)
            self._until[topic] = max(self._until.get(topic, 0.0), until)
        elif error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._until.pop(topic, None)
            self._used.pop(topic, None)

    def learn_answer(self, response: FetchResponse, asked_at: float) -> None:
        """The broker answered the client's own Fetch, sent at `asked_at`: its rights, and whether it is sent elsewhere.
        Of the log it teaches nothing (`proxy.partitions.update`).
        """
        link = self._link
        for answered in response.partitions:
            self.learn(answered.topic, answered.error_code, asked_at)
            if answered.preferred_read_replica >= 0:
                link.preferred_replicas = True
            if link.stores:
                if answered.error_code in PROVES:
                    link.broker.topic_lookup.want(answered.topic, link)
                link.broker.counters.upstream_fetch_bytes["client"] += answered.end - answered.start

    def used(self, topic: str | bytes, partition: Partition, now: float) -> None:
        """Memory has served `topic`: it will be asked again before its right lapses."""
        self._used[topic] = partition
        period_s = self._link.broker.config.cache.authorize_every_s
        until = self._until.get(topic, 0.0)
        if now > until - period_s * (1 - RENEW_AT) and until != self._ends_at:
            self._renew(now)

    def _renew(self, now: float) -> None:
        """Ask for all topics in use, as the client names them now: in any other way it may not come back to them. A
        client with a rack asks itself: only its own Fetch shows a preferred replica.
        """
        if self._renewing or self.has_rack or not self._used:
            return
        by_id = self.version >= fetch.TOPIC_IDS_FROM
        used, self._used = self._used, {}
        used = {topic: used[topic] for topic in used if isinstance(topic, bytes) is by_id}
        if not used:
            return
        self._renewing = True
        self._link.broker.counters.authorization_renewals += 1
        self._ask(used, self.version, now, self._renewed)

    def _renewed(self, _answered: bool) -> None:
        self._renewing = False

    def prove(
        self, topics: Mapping[str | bytes, Partition], version: int, then: Callable[[bool], None]
    ) -> None:
        """Ask for topics as the client names them, in a Fetch of its `version`; `then`: whether the broker has
        answered, whatever it said.
        """
        self._link.broker.counters.authorization_proofs += 1
        self._ask(topics, version, self._link.broker.now(), then)

    def _ask(
        self,
        topics: Mapping[str | bytes, Partition],
        version: int,
        asked_at: float,
        then: Callable[[bool], None],
    ) -> None:
        """One Fetch on the client's own link, each topic at one partition's tail."""
        frame = build_request(
            version,
            0,
            self._link.client_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            partitions=[
                fetch.FetchPartition(topic, p.index, -1, max(p.leader_state.high_watermark, 0), -1, -1, 1)
                for topic, p in topics.items()
            ],
        )

        def on_answer(answer: Frame | None) -> None:
            if answer is not None:
                self._learn_all(answer, version, asked_at)
            then(answer is not None)

        self._link.upstream.send(frame, 0, on_answer)

    def _learn_all(self, answer: Frame, version: int, asked_at: float) -> None:
        counters = self._link.broker.counters
        try:
            response: FetchResponse = fetch.scan_response(answer, version)
        except BadFrame:
            counters.bad_frames += 1
            return
        for answered in response.partitions:
            counters.upstream_fetch_bytes[PURPOSE] += answered.end - answered.start
            self.learn(answered.topic, answered.error_code, asked_at)

    def close(self) -> None:
        """The connection is gone."""
        self._used.clear()
        self._until.clear()
