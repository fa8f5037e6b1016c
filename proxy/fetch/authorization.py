"""Authorization: the broker decides for each principal and topic whether memory may serve it, and
until when.

Owns what one connection knows of its rights: whose they are, the end of its SASL session, and the questions
that it asks. The rights of its principal are shared (fetch/principals.py). Must not know the cache.
Invariants:
* A topic is allowed only after the broker has answered a Fetch of it by this principal without an
  authorization error. UNKNOWN_TOPIC_ID and UNKNOWN_TOPIC_OR_PARTITION prove nothing:
  KafkaApis.handleFetchRequest returns them before it authorizes.
* A renewal is one Fetch for all topics in use whose rights end soon, at the log's end, so that it carries no
  records. A connection has one renewal at a time.
* Rights end with the client's SASL session (KIP-368): after that a broker closes the connection at
  its next request. An accepted exchange gives the connection the rights of that principal and no other.
* No record is read only to learn a right. If a right is missing for bytes that memory or the disk
  throttle could provide, a Fetch at the log's end asks first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from protocol import fetch
from protocol.api import FETCH
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_request
from proxy.fetch.principals import PrincipalKey
from proxy.net.services import ConnectionServices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocol.fetch import FetchResponse
    from protocol.primitives import Frame
    from protocol.sasl import SaslExchange, SaslIdentity
    from proxy.fetch.principals import PrincipalRights, Principals, Question, Wait
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
JOIN_RENEWAL_AT = 0.5
"""A renewal also asks for other topics in use of whose period this share is over, so that one Fetch renews
them all.
"""
JOINS = 2
"""How many questions of other connections a Fetch waits for before it asks itself."""


class AuthorizationServices(ConnectionServices, Protocol):
    """Handed to the rights of a connection."""

    @property
    def topic_lookup(self) -> TopicLookup:
        """The questions about topics."""

    @property
    def principals(self) -> Principals:
        """The rights of all principals."""

    def attempt(
        self,
        action: Callable[[], object],
        doing: str,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        """Run `action`. Log and count its error, then run `otherwise`."""


AuthorizationLink: TypeAlias = "ClientConnection[AuthorizationServices, Handlers]"
"""A client connection as its rights see it."""


class Authorization:
    """Rights on one connection. `rights`: those of its principal, or its own. `version` and `has_rack` are
    those of its last Fetch. `exchange`: the client's last SASL exchange; None: it has begun none.
    """

    __slots__ = (
        "_link",
        "_outlived_at",
        "_renewing",
        "_since",
        "_used",
        "_waits",
        "ends_at",
        "exchange",
        "has_rack",
        "rights",
        "version",
    )

    def __init__(self, link: AuthorizationLink) -> None:
        """A client as whose principal Forebay signs in has that principal's rights. Until any other signs in,
        its rights are those of all clients of the listener that do not: the broker's listener asks nobody for
        a name, or else it grants nothing.
        """
        self._link = link
        self._used: dict[str | bytes, Partition] = {}
        self._waits: dict[Wait, Callable[[], None]] = {}  # and what is to be done at the close
        self._renewing = False
        self._since = float("-inf")  # the rights are this connection's since then
        self.ends_at, self._outlived_at = float("inf"), float("-inf")
        self.exchange: SaslExchange | None = None
        self.version = 0
        self.has_rack = False
        key = PrincipalKey(link.listener.name, link.principal) if link.stores else None
        self.rights: PrincipalRights = link.broker.principals.join(key)

    def allows(self, topic: str | bytes, now: float) -> bool:
        """Return True if memory may serve `topic`, as the client names it, on this connection.
        `now` is in seconds.
        """
        return self.rights.until.get(topic, 0.0) > now and now < self.ends_at

    # -- who the client is ---------------------------------------------------------------------------------

    def begin_exchange(self, exchange: SaslExchange) -> None:
        """Note that the client begins to sign in. It keeps its rights until the broker has decided."""
        self.exchange = exchange

    def begin_session(self, sent_at: float, answered_at: float, lifetime_s: float) -> None:
        """Note that the broker has accepted the client, in a response to a request sent at
        `sent_at`. All times in seconds.

        `lifetime_s` 0: the broker named no lifetime, as in every round of the exchange but the
        last.
        """
        if not lifetime_s:
            return
        self.ends_at = sent_at + lifetime_s
        self._outlived_at = answered_at + lifetime_s + OUTLIVED_S

    def sign_in(self, identity: SaslIdentity | None) -> None:
        """Note that the broker has ended an exchange: the rights are those of `identity` from now on. None:
        they are nobody else's, and nothing is proven, as after a refusal or by a mechanism that is not read.
        """
        if self.exchange is not None:
            self.exchange.end()
        key = PrincipalKey(self._link.listener.name, identity)
        if identity is not None and self.rights.key == key:
            return  # it has signed in again as before
        self._take_rights(key if identity is not None and not self.has_rack else None)
        self._since = (
            self._link.broker.now()
        )  # what was asked before proves nothing for this principal

    def _take_rights(self, key: PrincipalKey | None) -> None:
        """Let the rights of `key`, or its own, replace those of the connection."""
        principals = self._link.broker.principals
        principals.leave(self.rights)
        self.rights = principals.join(key if self._link.stores else None)
        self._used.clear()

    def note_version(self, version: int) -> None:
        """Note the version of the client's Fetches, in which its rights are asked for."""
        self.version = version

    def note_rack(self, has_rack: bool) -> None:
        """Note whether the client names a rack. Only its own Fetch shows a preferred replica, so that from
        then on its rights are its own.
        """
        if has_rack and self.rights.key is not None:
            self._take_rights(None)
        self.has_rack = has_rack

    # -- what the broker says ------------------------------------------------------------------------------

    def learn(self, topic: str | bytes, error_code: int, asked_at: float) -> None:
        """Note the broker's `error_code` for a Fetch of `topic` that this connection sent at
        `asked_at`, in seconds.
        """
        if asked_at > self._since:
            self._learn(self.rights, topic, error_code, asked_at)

    def _learn(
        self, rights: PrincipalRights, topic: str | bytes, error_code: int, asked_at: float
    ) -> None:
        """Note the broker's `error_code` for `topic`, for the principal that `rights` belong to."""
        if error_code in PROVES:
            rights.grant(
                topic, asked_at, asked_at + self._link.broker.config.cache.authorize_every_s
            )
            if asked_at >= self._outlived_at:
                self.ends_at = float("inf")
        elif error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            if rights.refuse(topic, self._link.broker.now()):
                self._link.broker.counters.clients.withdraw()
            self._used.pop(topic, None)

    def learn_answer(self, response: FetchResponse, asked_at: float) -> None:
        """Learn from the response to the client's own Fetch, sent at `asked_at` in seconds.

        Updates rights and notes whether the broker names a preferred replica. The response does not
        change leader states (`proxy.partitions.update`).
        """
        link = self._link
        if response.error_code:
            link.broker.counters.apis.fail(FETCH, response.error_code)
        for answered in response.partitions:
            self.learn(answered.topic, answered.error_code, asked_at)
            if answered.error_code:
                link.broker.counters.apis.fail(FETCH, answered.error_code)
            if answered.preferred_read_replica >= 0:
                link.saw_preferred_replica()
            if link.stores:
                if answered.error_code in PROVES:
                    link.broker.topic_lookup.want(answered.topic, link)
                link.broker.counters.upstream.fetch_bytes["client"] += answered.end - answered.start

    # -- what is asked -------------------------------------------------------------------------------------

    def used(self, topic: str | bytes, partition: Partition, now: float) -> None:
        """Note that memory has served `topic`, so that its right is renewed before it ends. `now` is in
        seconds.
        """
        self._used[topic] = partition
        rights = self.rights
        period_s = self._link.broker.config.cache.authorize_every_s
        if now <= rights.until.get(topic, 0.0) - period_s * (1 - RENEW_AT):
            return
        # At the end of a SASL session, and within an exchange, a broker closes at any other request.
        may_ask = now < self.ends_at - OUTLIVED_S and not self._is_signing_in
        if may_ask and not (self._renewing or self.has_rack or rights.is_asked(topic, now)):
            self._renew(now)

    @property
    def _is_signing_in(self) -> bool:
        """Whether an exchange is under way."""
        return self.exchange is not None and not self.exchange.is_over

    def _renew(self, now: float) -> None:
        """Ask for the topics in use whose rights end soon, by id or by name as the client's version does;
        topics named the other way are dropped.

        A client with a rack asks itself: only its own Fetch shows a preferred replica.
        """
        by_id, rights = self.version >= fetch.TOPIC_IDS_FROM, self.rights
        most = now + self._link.broker.config.cache.authorize_every_s * (1 - JOIN_RENEWAL_AT)
        used, self._used = self._used, {}
        due = {
            topic: partition
            for topic, partition in used.items()
            if isinstance(topic, bytes) is by_id
            and rights.until.get(topic, 0.0) < most
            and not rights.is_asked(topic, now)
        }
        if due:
            self._renewing = True
            self._link.broker.counters.clients.renew()
            self._ask(due, self.version, now, self._renewed)

    def _renewed(self, _answered: bool) -> None:
        self._renewing = False

    def prove(
        self,
        topics: Mapping[str | bytes, Partition],
        version: int,
        then: Callable[[bool], None],
        joins: int = JOINS,
    ) -> None:
        """Ask for the right to `topics`, named as the client does, in a Fetch of its `version`. Where another
        connection of the principal is asking already, wait for that, for at most `joins` such questions.

        `then` is called with True when the broker has answered, whatever the result, and with False
        if the connection is lost.
        """
        now, principals = self._link.broker.now(), self._link.broker.principals
        question = self.rights.find_question(topics, now) if joins else None
        if question is not None:

            def run(wait: Wait, answered: bool) -> None:
                del self._waits[wait]
                if answered:
                    then(True)
                else:
                    self.prove(topics, version, then, joins - 1)

            wait = principals.wait(question, run)
            if wait is not None:
                self._waits[wait] = partial(then, False)
                return
        self._link.broker.counters.clients.prove()
        self._ask(topics, version, now, then)

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
        rights = self.rights
        question = rights.ask(topics, asked_at, not self._link.upstream.unanswered)

        def on_answer(answer: Frame | None) -> None:
            if answer is not None:
                self._learn_all(rights, answer, version, asked_at)
            self._end(rights, question, answer is not None)
            then(answer is not None)

        self._link.upstream.send(frame, 0, on_answer)

    def _end(self, rights: PrincipalRights, question: Question, answered: bool) -> None:
        """Run what waits for `question`. An error in another connection's Fetch stays there."""
        broker = self._link.broker
        broker.attempt(
            partial(broker.principals.end, rights, question, answered), "going on after a question"
        )

    def _learn_all(
        self, rights: PrincipalRights, answer: Frame, version: int, asked_at: float
    ) -> None:
        counters = self._link.broker.counters
        try:
            response: FetchResponse = fetch.scan_response(answer, version)
        except BadFrame:
            counters.faults.count_bad_frame()
            return
        for answered in response.partitions:
            counters.upstream.fetch_bytes[PURPOSE] += answered.end - answered.start
            self._learn(rights, answered.topic, answered.error_code, asked_at)

    def close(self) -> None:
        """Forget all rights: the connection is closed, and Fetches that wait for questions end."""
        self._used.clear()
        principals = self._link.broker.principals
        waits, self._waits = self._waits, {}
        for wait, drop in waits.items():
            principals.forget(wait)
            drop()
        principals.leave(self.rights)
        self.rights = principals.join(None)
