"""A standing Fetch over its member partitions, in a fetch session of its own at the broker (KIP-227).

Owns the members, the questions as the session holds them, and the lease that its members share. A
turn costs what has changed, not what is watched: a request names the partitions whose question has
changed, a response those with news. Must not know which requests wait. Invariants:
* `_asked` is the session at the broker once the request in flight has arrived. A partition that
  another object of the same topic id and index replaces is forgotten first, and named a turn later:
  the broker adds before it forgets (FetchSession.update).
* a response without an entry for a partition confirms it as last shown. The broker reads every
  partition of the session for each response, and leaves out those without records, error, diverging
  epoch, or change of HW and log start offset (CachedPartition.maybeUpdateResponseData). A full
  response confirms what it names, a throttled empty one nothing (FetchContext.getThrottledResponse).
* a partition shares the lease only while its question carries the proven epoch. It joins when a
  response to a request that asked so has come and nothing has revoked its lease since the sending.
* the LSO is no reason for an entry, nor is the epoch of a question. Where an entry may tell more
  than an omission, the partition is asked about apart.
* a lease counts from the sending of one request, and the response to the next renews it. On a busy
  machine the broker holds requests for less time, so that both, and their delays, fit in a lease.
* `open_polls` of a partition in `_asked` counts this poll, from the sending until the poll pauses.
* without a session (id 0: the broker's cache is full) each request is full.
* after a response with news the poll rests `rest_times` as long as the news took, so that the news of
  that time come by one response, and wake each delayed Fetch once. It counts as open meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode
from proxy.partitions.update import learn_response, wake_waiters
from proxy.replica_fetcher.poll import (
    FEW_BYTES,
    REST_S,
    build_poll,
    may_be_truncated,
    plan_question,
    process_answer,
    scan_poll,
)
from proxy.replica_fetcher.upstream_session import SESSION_ERRORS, UpstreamSession

if TYPE_CHECKING:
    from collections.abc import Collection

    from protocol.fetch import FetchPartition, FetchResponse
    from protocol.primitives import Frame
    from proxy.net.broker_connection import BrokerConnection
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.leader_state import Lease
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.poll import TopicIdPartition
    from proxy.replica_fetcher.services import FetcherServices

SOURCE = "watch"
LOOK_EVERY_S = 0.02
"""How often a partition that no standing poll brings up to date is asked apart, in seconds."""
REST_TIMES = 6
"""Rest after news, in times of what they took: to learn, to wake delayed Fetches, to answer them. Polls
then take at most a seventh of the event loop, and fewer polls come where the machine is busy.
"""
REST_MOST_S = 0.008
"""Longest rest, in seconds: what a record may be late for it."""


class SessionPoll:
    """Poll of `members` on the own connection `name`, one request at a time.

    `max_wait_s`: of a request, at most. `pause_s`: how long the poll waits between two requests
    while the broker grants no session. `is_refused`: the last response granted none.
    """

    __slots__ = (
        "_asked",
        "_broker",
        "_changed",
        "_claimed",
        "_covered",
        "_delay_s",
        "_forgotten",
        "_joining",
        "_lease",
        "_link",
        "_max_wait_s",
        "_missing_bytes",
        "_pause_s",
        "_rest",
        "_rest_until",
        "_session",
        "_turn",
        "_unsettled",
        "_wait_s",
        "in_flight",
        "is_refused",
        "members",
        "name",
    )

    def __init__(
        self, broker: FetcherServices, name: str, max_wait_s: float, pause_s: float = 0.0
    ) -> None:
        self._broker = broker
        self.name = name
        self._max_wait_s = max_wait_s
        self._wait_s = max_wait_s  # of the request in flight
        self._delay_s = 0.0  # by which responses have come after that wait, of late
        self._pause_s = pause_s
        self.members: dict[Partition, None] = {}
        self.in_flight = False
        self.is_refused = False
        self._session = UpstreamSession()
        self._lease = broker.partitions.open_lease()
        self._asked: dict[Partition, FetchPartition] = {}
        self._missing_bytes = 0  # sum of the limits of `_asked` where visible bytes are missing
        self._changed: dict[Partition, None] = {}  # to be planned before the next request
        self._forgotten: dict[TopicIdPartition, None] = {}  # to be told to the broker
        self._claimed: dict[Partition, None] = {}  # taken over from another poll's shared lease
        self._joining: dict[Partition, Lease] = {}  # leases as they were when the request was sent
        self._unsettled: dict[Partition, None] = {}  # an omission may not say enough of them
        self._covered: dict[Partition, None] = {}  # whose `open_polls` count this poll
        self._link: BrokerConnection | None = None
        self._turn = 0
        self._rest_until = float("-inf")
        self._rest: asyncio.TimerHandle | None = None  # after news

    # -- members -----------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        """Ask about `partition` from the next request on."""
        if partition not in self.members:
            self.members[partition] = None
            self.claim(partition)

    def claim(self, partition: Partition) -> None:
        """Have this poll renew the lease of a member, although another poll does so now."""
        self._claimed[partition] = self._changed[partition] = None

    def discard(self, partition: Partition) -> None:
        """Ask about it no more. Its lease stays for as long as it lasts."""
        if partition in self.members:
            del self.members[partition]
            self._claimed.pop(partition, None)
            self._changed[partition] = None
            self._leave(partition)

    def mark(self, partition: Partition) -> None:
        """Plan the question about it anew before the next request, if it is a member."""
        if partition in self.members:
            self._changed[partition] = None

    def mark_all(self) -> None:
        """Plan all questions anew before the next request."""
        self._changed.update(self.members)

    def mark_share(self, part: int, parts: int) -> None:
        """Plan the questions of one part of the members anew, of `parts` of about equal size."""
        self._changed.update(dict.fromkeys(islice(self.members, part, None, parts)))

    def holds(self, partition: Partition) -> bool:
        """True if the request in flight asks about `partition`, named in it or not, and the
        response will renew its lease.
        """
        is_asked = self.in_flight and partition in self._asked
        return is_asked and (self.is_refused or partition.leader_state.lease is self._lease)

    def _leave(self, partition: Partition) -> None:
        """Have this poll renew the lease of `partition` no more."""
        if partition.leader_state.lease is self._lease:
            partition.leader_state.detach()

    # -- requests ----------------------------------------------------------------------------------

    def pump(self, own: OwnConnections) -> None:
        """Send a request if none is in flight and there is something to ask."""
        if self.in_flight or self._rest is not None or not self.members:
            return
        link = own.link(self.name)
        if link is not None:
            self.send(link)

    def send(self, link: BrokerConnection) -> bool:
        """Send a request. Return False if one is in flight, the poll rests, or no member can be
        asked about.
        """
        now = self._broker.now()
        if self.in_flight or self._rest is not None or now < self._rest_until:
            return False
        if link is not self._link:
            self._link = link
            self._restart()
        try:
            frame = self._build(now)
            if not frame:
                return False
            self.in_flight = True
            link.send(frame, 0, lambda answer: self._answered(answer, now))
        except Exception:  # unknown what the broker's session holds now
            self.in_flight = False
            self._restart()
            raise
        return True

    def _build(self, now: float) -> bytes:
        """Return the next request's frame; b"" if no member can be asked about."""
        session = self._session
        named = self._plan_changed(now) if session.is_open else self._plan_all(now)
        if session.is_open and not self._asked:
            self._restart()  # the broker ends a session that all partitions have left
            named = self._plan_all(now)
        if not self._asked:
            return b""
        if self.is_refused:
            self._rest_until = now + self._pause_s
        identity = session.id, session.epoch
        forgotten, self._forgotten = self._forgotten, {}
        counts = self._broker.counters.watch
        counts.requests[SOURCE] += 1
        counts.asked_partitions += len(named)
        half_lease_s = self._broker.config.cache.confirm_every_s / 2
        self._wait_s = max(min(self._max_wait_s, half_lease_s - 2 * self._delay_s), 0.0)
        return build_poll(named, self._missing_bytes, self._wait_s, identity, forgotten)

    def _plan_all(self, now: float) -> Collection[FetchPartition]:
        """Return the questions of a full request. Partitions take turns as the first, which the
        broker favours. In a session it does so itself (IncrementalFetchContext.PartitionIterator).
        """
        self._asked, self._missing_bytes = {}, 0
        self._changed, self._forgotten, self._joining, self._unsettled = {}, {}, {}, {}
        members = list(self.members)
        first = self._turn = (self._turn + 1) % max(len(members), 1)
        for partition in members[first:] + members[:first]:
            self._plan(partition, now)
        for partition in [p for p in self._covered if p not in self._asked]:
            self._uncover(partition)
        return self._asked.values()

    def _plan_changed(self, now: float) -> Collection[FetchPartition]:
        """Return the questions that differ from those that the session holds."""
        changed, self._changed, self._joining = self._changed, {}, {}
        for partition in changed:
            if partition not in self.members:
                self._drop(partition)
        named = []
        for partition in changed:
            if partition not in self.members:
                continue
            if self._forgotten and (partition.topic.id, partition.index) in self._forgotten:
                self._changed[partition] = None  # forgotten now, named in the next turn
                continue
            before = self._asked.get(partition)
            question = self._plan(partition, now)
            if question is None:
                self._drop(partition)
            elif question != before:
                named.append(question)
        return named

    def _plan(self, partition: Partition, now: float) -> FetchPartition | None:
        """Return the question about a member, and note it; None: it is not asked about now."""
        if partition.back_off.until > now:
            return None
        may_be_cut = may_be_truncated(partition)
        question = plan_question(self._broker, partition, may_be_cut)
        if question is None:
            return None
        self._note(partition, question)
        leader_state, row = partition.leader_state, partition.row
        if question.current_leader_epoch != row.epoch:
            self._leave(partition)
        elif (
            leader_state.lease is not self._lease
            and row.high_watermark >= 0
            and (partition in self._claimed or not leader_state.lease.is_shared)
        ):
            self._joining[partition] = leader_state.lease
        if may_be_cut:
            self._changed[partition] = None  # asked each time at the end of what is stored then
        if is_unsettled(partition):
            self._unsettled[partition] = None
        if partition not in self._covered:
            self._covered[partition] = None
            partition.cover()
        return question

    def _note(self, partition: Partition, question: FetchPartition | None) -> bool:
        """Set or remove a question. Return True if there was one."""
        before = self._asked.pop(partition, None)
        if before is not None and before.max_bytes > FEW_BYTES:
            self._missing_bytes -= before.max_bytes
        if question is not None:
            self._asked[partition] = question
            if question.max_bytes > FEW_BYTES:
                self._missing_bytes += question.max_bytes
        return before is not None

    def _drop(self, partition: Partition) -> None:
        """Ask about `partition` no more: the broker is told if the session has it."""
        if self._note(partition, None):
            self._forgotten[partition.topic.id, partition.index] = None
        self._unsettled.pop(partition, None)
        self._leave(partition)
        self._uncover(partition)

    def _uncover(self, partition: Partition) -> None:
        if partition in self._covered:
            del self._covered[partition]
            partition.uncover()

    def _restart(self, error_code: int = ErrorCode.NONE) -> None:
        """End the session: the next request is full. Leases that were shared last as long as they
        did; the new session's members share another one.
        """
        self._session.end(error_code)
        self._lease = self._broker.partitions.open_lease()
        self._claimed = dict(self.members)

    # -- responses ---------------------------------------------------------------------------------

    def _answered(self, answer: Frame | None, sent_at: float) -> None:
        came_at = self._broker.now()
        late_s = came_at - sent_at - self._wait_s
        self._delay_s = max(late_s, self._delay_s / 2)  # half of it in each turn without
        response = scan_poll(answer)
        session = self._session
        if (
            answer is not None
            and response is not None
            and response.error_code == ErrorCode.NONE
            and session.accepts(response.session_id)
        ):
            learn = partial(self._learn_or_restart, response, answer, sent_at)
            has_news = len(response.partitions) > 0
            finish = partial(self._finish, came_at if has_news else None)
            process_answer(self._broker, learn, finish)
        else:
            error_code = ErrorCode.NONE if response is None else response.error_code
            if not (session.is_open and error_code in SESSION_ERRORS):
                self._rest_until = self._broker.now() + REST_S
            self._restart(error_code)
            self._broker.attempt(partial(self._finish, None), "a poll's answer")
        if not self.in_flight and self._rest is None:
            self._pause()

    def _pause(self) -> None:
        """Count this poll no more: no request follows now. The next one covers again what it asks
        about.
        """
        for partition in list(self._covered):
            self._uncover(partition)
        self.mark_all()

    def _finish(self, news_at: float | None) -> None:
        """Send the next request, after a rest if there were news: they came at `news_at` (seconds)."""
        self.in_flight = False
        if news_at is not None:
            rest_times = self._broker.replica_fetcher.rest_times
            rest_s = min(rest_times * (self._broker.now() - news_at), REST_MOST_S)
            if rest_s > 0:
                self._rest = asyncio.get_running_loop().call_later(rest_s, self._rested)
        self._broker.replica_fetcher.polled(self)

    def _rested(self) -> None:
        self._rest = None
        self._broker.attempt(self._broker.replica_fetcher.pump, "the polls after a rest")
        if not self.in_flight:
            self._pause()

    def _learn_or_restart(self, response: FetchResponse, answer: Frame, sent_at: float) -> None:
        """Learn from a response. If that raises, what was shown may be lost, so that omissions
        would prove nothing: the session ends.
        """
        try:
            self._learn(response, answer, sent_at)
        except Exception:
            self._restart()
            raise

    def _learn(self, response: FetchResponse, answer: Frame, sent_at: float) -> None:
        is_incremental = self._session.is_open
        self._session.advance(response.session_id)
        self.is_refused = not response.session_id
        if response.throttle_time_ms > 0 and not response.partitions:
            self._changed.update(dict.fromkeys(self._joining))
            return
        broker = self._broker
        confirmed, changed = learn_response(broker, self._asked, response, answer, sent_at, SOURCE)
        if not self.is_refused:
            until = sent_at + broker.config.cache.confirm_every_s
            changed += self._share_lease(confirmed, until, is_incremental)
        wake_waiters(broker, changed)
        self._ask_unsettled(confirmed)

    def _share_lease(
        self, confirmed: list[Partition], until: float, is_incremental: bool
    ) -> list[Partition]:
        """Renew the lease of all members that share it, and share it with those that the response
        has confirmed. Return those that had no lease.
        """
        now, lease = self._broker.now(), self._lease
        relieved = []
        if lease.until <= now:
            relieved = [p for p in self._asked if p.leader_state.lease is lease]
        lease.row.until = max(lease.until, until)
        joined = [p for p in confirmed if p in self.members and p.leader_state.lease.until >= until]
        for partition, before in self._joining.items():
            leader_state = partition.leader_state
            if partition not in self.members:
                continue
            if is_incremental and leader_state.lease is before:
                if not leader_state.has_lease(now):
                    relieved.append(partition)
                joined.append(partition)
            else:
                self._changed[partition] = None
        for partition in joined:
            partition.leader_state.hold(lease)
            self._claimed.pop(partition, None)
        return relieved

    def _ask_unsettled(self, confirmed: list[Partition]) -> None:
        """Ask apart about the partitions of which an omission does not say enough."""
        now = self._broker.now()
        for partition in list(self._unsettled) if self._unsettled else ():
            if not is_unsettled(partition):
                del self._unsettled[partition]
            elif (
                partition not in confirmed
                and now - partition.looked_at > LOOK_EVERY_S
                and (not _is_told(partition) or partition.transactions.is_overdue(now))
            ):
                partition.look(now)
                self._broker.replica_fetcher.ask(partition, None)


def is_unsettled(partition: Partition) -> bool:
    """True if a response with an entry for the partition may tell more than one without: of its
    leader state, of its LSO, or of a hole in the observed offsets.
    """
    return not _is_told(partition) or partition.transactions.has_hole


def _is_told(partition: Partition) -> bool:
    """True if everything is known that an entry would say, given HW and log start offset as shown.

    False: an epoch, the offsets, or the absence of a divergence are still to be proven; no run of
    transactions has begun, and it would begin at the LSO (`Transactions.shown`); or the LSO is
    below the HW, and not every batch up to the HW was seen.
    """
    row = partition.row
    high_watermark: int = row.high_watermark
    if row.frozen or high_watermark < 0 or row.suggested_epoch > row.epoch:
        return False
    observed_end: int = row.observed_end
    if observed_end < 0 and row.last_stable_offset > row.log_start_offset:
        return False
    return observed_end >= high_watermark or partition.last_stable_offset() >= high_watermark
