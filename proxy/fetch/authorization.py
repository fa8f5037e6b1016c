"""Authorization: the broker decides for each connection and topic whether memory may serve it, and
until when.

Owns one connection's rights and their renewal. Must not know the cache. Invariants:
* A topic is allowed only after the broker has answered this connection's own Fetch of it without an
  authorization error. UNKNOWN_TOPIC_ID and UNKNOWN_TOPIC_OR_PARTITION prove nothing:
  KafkaApis.handleFetchRequest returns them before it authorizes.
* A renewal is one Fetch for all topics in use, at the log's end, so that it carries no records.
  There is one renewal at a time.
* Rights end with the client's SASL session (KIP-368): after that a broker closes the connection at
  its next request.
* No record is read only to learn a right. If a right is missing for bytes that memory or the disk
  throttle could provide, a Fetch at the log's end asks first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_request
from proxy.net.services import ConnectionServices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocol.fetch import FetchResponse
    from protocol.primitives import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.net.services import Handlers
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.topic_metadata import TopicLookup

PROVES = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""Error codes of a Fetch response that prove the right to read a topic."""
PURPOSE = "authorization"
"""Label of a renewal's bytes in the counters. The log may have grown meanwhile; the response then
has one batch.
"""
OUTLIVED_S = 1.0
"""Seconds after a session's end in which the broker still answers.

A broker without connections.max.reauth.ms only announces a lifetime, and closes no connection
(SaslServerAuthenticator.ReauthInfo.calcCompletionTimesAndReturnSessionLifetimeMs).
"""
RENEW_AT = 0.75
"""Share of the period after which a topic in use is asked for again, so that no Fetch has to wait
for it.
"""


class AuthorizationServices(ConnectionServices, Protocol):
    """Handed to the rights of a connection."""

    @property
    def topic_lookup(self) -> TopicLookup:
        """The questions about topics."""


AuthorizationLink: TypeAlias = "ClientConnection[AuthorizationServices, Handlers]"
"""A client connection as its rights see it."""


class Authorization:
    """Rights of one connection. `version` and `has_rack` are those of its last Fetch. `withdrawn`
    counts rights that the broker has taken back.
    """

    __slots__ = (
        "_ends_at",
        "_link",
        "_outlived_at",
        "_renewing",
        "_until",
        "_used",
        "has_rack",
        "version",
        "withdrawn",
    )

    def __init__(self, link: AuthorizationLink) -> None:
        self._link = link
        self._until: dict[str | bytes, float] = {}
        self._used: dict[str | bytes, Partition] = {}
        self._renewing = False
        self._ends_at, self._outlived_at = float("inf"), float("-inf")
        self.version = 0
        self.has_rack = False
        self.withdrawn = 0

    def allows(self, topic: str | bytes, now: float) -> bool:
        """Return True if memory may serve `topic`, as the client names it, on this connection.
        `now` is in seconds.
        """
        return self._until.get(topic, 0.0) > now

    def begin_session(self, sent_at: float, answered_at: float, lifetime_s: float) -> None:
        """Note that the broker has accepted the client, in a response to a request sent at
        `sent_at`. All times in seconds.

        `lifetime_s` 0: the broker named no lifetime, as in every round of the exchange but the
        last.
        """
        if not lifetime_s:
            return
        self._ends_at = sent_at + lifetime_s
        self._outlived_at = answered_at + lifetime_s + OUTLIVED_S
        for topic, until in self._until.items():
            self._until[topic] = min(until, self._ends_at)

    def learn(self, topic: str | bytes, error_code: int, asked_at: float) -> None:
        """Note the broker's `error_code` for a Fetch of `topic` that this connection sent at
        `asked_at`, in seconds.
        """
        if error_code in PROVES:
            period_s = self._link.broker.config.cache.authorize_every_s
            until = asked_at + period_s
            if asked_at < self._outlived_at:
                until = min(until, self._ends_at)
            self._until[topic] = max(self._until.get(topic, 0.0), until)
        elif error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self.withdrawn += self._until.pop(topic, None) is not None
            self._used.pop(topic, None)

    def learn_answer(self, response: FetchResponse, asked_at: float) -> None:
        """Learn from the response to the client's own Fetch, sent at `asked_at` in seconds.

        Updates rights and notes whether the broker names a preferred replica. The response does not
        change leader states (`proxy.partitions.update`).
        """
        link = self._link
        for answered in response.partitions:
            self.learn(answered.topic, answered.error_code, asked_at)
            if answered.preferred_read_replica >= 0:
                link.saw_preferred_replica()
            if link.stores:
                if answered.error_code in PROVES:
                    link.broker.topic_lookup.want(answered.topic, link)
                link.broker.counters.upstream.fetch_bytes["client"] += answered.end - answered.start

    def note_version(self, version: int) -> None:
        """Note the version of the client's Fetches, in which its rights are asked for."""
        self.version = version

    def note_rack(self, has_rack: bool) -> None:
        """Note whether the client names a rack: only its own Fetch shows a preferred replica."""
        self.has_rack = has_rack

    def used(self, topic: str | bytes, partition: Partition, now: float) -> None:
        """Note that memory has served `topic`, so that its right is renewed before it ends."""
        self._used[topic] = partition
        period_s = self._link.broker.config.cache.authorize_every_s
        until = self._until.get(topic, 0.0)
        # No renewal extends a right beyond the end of the SASL session.
        if now > until - period_s * (1 - RENEW_AT) and until != self._ends_at:
            self._renew(now)

    def _renew(self, now: float) -> None:
        """Ask for all topics in use, by id or by name as the client's version does; topics named
        the other way are dropped.

        A client with a rack asks itself: only its own Fetch shows a preferred replica.
        """
        if self._renewing or self.has_rack or not self._used:
            return
        by_id = self.version >= fetch.TOPIC_IDS_FROM
        used, self._used = self._used, {}
        used = {topic: used[topic] for topic in used if isinstance(topic, bytes) is by_id}
        if not used:
            return
        self._renewing = True
        self._link.broker.counters.clients.renew()
        self._ask(used, self.version, now, self._renewed)

    def _renewed(self, _answered: bool) -> None:
        self._renewing = False

    def prove(
        self, topics: Mapping[str | bytes, Partition], version: int, then: Callable[[bool], None]
    ) -> None:
        """Ask for the right to `topics`, named as the client does, in a Fetch of its `version`.

        `then` is called with True when the broker has answered, whatever the result, and with False
        if the connection is lost.
        """
        self._link.broker.counters.clients.prove()
        self._ask(topics, version, self._link.broker.now(), then)

    def _ask(
        self,
        topics: Mapping[str | bytes, Partition],
        version: int,
        asked_at: float,
        then: Callable[[bool], None],
    ) -> None:
        """Send one Fetch on the client's own broker connection, for each topic at the end of one
        partition.
        """
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
                fetch.FetchPartition(
                    topic, p.index, -1, max(p.leader_state.high_watermark, 0), -1, -1, 1
                )
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
            counters.faults.count_bad_frame()
            return
        for answered in response.partitions:
            counters.upstream.fetch_bytes[PURPOSE] += answered.end - answered.start
            self.learn(answered.topic, answered.error_code, asked_at)

    def close(self) -> None:
        """Forget all rights: the connection is closed."""
        self._used.clear()
        self._until.clear()
