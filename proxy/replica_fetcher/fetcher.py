"""Forebay's own standing Fetch over the partitions that clients tail, or were served lately.

The Fetch brings leases, HW, LSO, log start offsets and epochs. Owns the assignment of partitions to
polls. A small poll has partitions with news in the last second. Idle polls have at most 500 each.
Each of these has an own connection and session. Proofs (max_wait 0) go at once for partitions in no poll. Must
not know bytes or responses. Invariants (design, "The watch"):
* a partition leaves the small poll only when an idle poll that asks about it, and renews its lease,
  is in flight: every partition with waiters has an open poll.
* while the small poll is out, join polls name the partitions that got a waiter since it was sent.
* one proof is in flight; a partition that answers with an error is retried apart, with back-off.
* if Forebay has no own connection, or is refused a topic, the waiting client's connection carries
  the poll.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from proxy.partitions.leader_state import NO_EPOCH, REFRESH_EPOCH_S
from proxy.partitions.topics import NO_LEADER
from proxy.replica_fetcher.poll import ClientPolls, JoinPolls, Poll
from proxy.replica_fetcher.session_poll import LOOK_EVERY_S, REST_TIMES, SessionPoll

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.fetch import FetchPartition
    from proxy.net.client_connection import AnyLink
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.services import FetcherServices

log = logging.getLogger("forebay.replica_fetcher")

WANTED_S = 10.0
"""How long a partition is watched after it was last tailed or served, in seconds."""
NEWS_S = 1.0
"""How long a partition stays in the small poll after its last news, in seconds."""
IDLE_MAX = 500
SWEEP_S = 0.5
"""How often all members of the polls are looked at, in seconds: who may leave."""
REPLAN_SWEEPS = 10
"""Sweeps within which each question is planned anew, although no mark asks for it: a missed mark costs
five seconds of an old question. Below the HW it brings records, so that its answer names the partition.
"""
JOIN_POLLS = 3
PROOF_MAX = 500
"""Partitions of one proof; the others follow in the next one."""


LEASE = attrgetter("leader_state.lease")


class ReplicaFetcher:
    """Keeps the leader state of partitions up to date."""

    rest_times: float = REST_TIMES
    """Rest of a standing poll after news, in times of what they took in this process."""

    def __init__(self, broker: FetcherServices) -> None:
        self._broker = broker
        self._long_s = broker.config.cache.confirm_every_s / 3
        self._hot = SessionPoll(broker, "watch", self._long_s)
        self._idle: list[SessionPoll] = []
        self._join_polls = JoinPolls(broker, JOIN_POLLS, self._long_s)
        self._client_polls = ClientPolls(broker, self._long_s)
        self._proof = Poll(broker, "proof", 0.0)
        self._to_prove: dict[Partition, None] = {}
        self._ticked_at = self._swept_at = broker.now()
        self._sweeps = 0

    @property
    def watched(self) -> int:
        """Return the number of partitions in Forebay's standing polls."""
        return len(self._hot.members) + sum(len(idle.members) for idle in self._idle)

    def count_leases(self, now: float) -> int:
        """Of the watched partitions, those with a lease. One that is watched no more keeps its lease to its end."""
        polls = (self._hot, *self._idle)
        return sum(one.leader_state.has_lease(now) for poll in polls for one in poll.members)

    # -- interface ---------------------------------------------------------------------------------

    def cover(self, partition: Partition, link: AnyLink | None) -> bool:
        """Have an open poll name `partition`, which has a waiter on `link` (None: on no connection of
        this process). Return False if no
        connection can ask, or at the limit of watched partitions.
        """
        if partition.open_polls:
            return True
        if not self._own(partition):
            return link is not None and self._client_polls.cover(link)
        if not self._is_polled(partition):
            if self.watched >= self._broker.config.limits.watched_partitions:
                return False
            self._hot.add(partition)
        self._join_polls.add(partition)
        return True

    def follow(self, partition: Partition, asked: FetchPartition | None) -> None:
        """Watch a partition that is read without waiting here (`cache.mode: observe`): as `cover`,
        on own connections alone. `asked`: a question to be confirmed at once, or None.
        """
        if not self._own(partition):
            return
        if asked is not None:
            self.ask(partition, None, asked)
        if (
            not self._is_polled(partition)
            and self.watched < self._broker.config.limits.watched_partitions
        ):
            self._hot.add(partition)
            self.pump()

    def _is_polled(self, partition: Partition) -> bool:
        return partition in self._hot.members or any(partition in p.members for p in self._idle)

    def _prove_at_times(self, partitions: Iterable[Partition]) -> None:
        """Prove partitions for which no join poll had room, each at most every LOOK_EVERY_S seconds."""
        now = self._broker.now()
        for partition in partitions:
            if now - partition.looked_at > LOOK_EVERY_S:
                partition.look(now)
                self._to_prove[partition] = None

    def ask(
        self,
        partition: Partition,
        link: AnyLink | None,
        asked: FetchPartition | None = None,
    ) -> bool:
        """Have the broker confirm `partition` at once. Return True if a question was sent or is
        queued.

        `asked` is a client's own question: its offset may be in the log, and is used while no HW is
        known. Its epoch is not trusted. `link`: the connection that asks if Forebay's own may not;
        None if there is none.
        """
        leader_state = partition.leader_state
        if not partition.is_followed:
            return False
        if leader_state.asked_epoch < 0:
            self.suggest(partition)
        if leader_state.asked_epoch < 0:
            self._broker.topic_lookup.ask(partition.topic.id, link)
        if partition.back_off.until > self._broker.now():
            return False
        if asked is not None:
            partition.probe(asked.fetch_offset)
        if self._own(partition):
            self._to_prove[partition] = None
            self.pump()
            return True
        return link is not None and self._client_polls.ask(link, partition)

    def prove_next(self, partition: Partition) -> None:
        """Like `ask`, but send the question only after the present response has been learned."""
        if partition.is_followed and self._own(partition):
            self._to_prove[partition] = None

    def doubt(self, partition: Partition) -> None:
        """End the lease and ask anew: the broker's answer contradicts the log that is known here."""
        partition.leader_state.revoke()
        self.ask(partition, None)

    def produced(self, partition: Partition, now: float | None = None) -> None:
        """Note that a Produce of `partition` was acknowledged at `now` (seconds; None: the present
        time).
        """
        if partition.parked and not partition.open_polls:
            for waiter in list(partition.parked)[:1]:
                waiter.wake(partition)
            return
        leader_state = partition.leader_state
        if now is None:
            now = self._broker.now()
        if leader_state.epoch == NO_EPOCH or now - leader_state.proven_at > REFRESH_EPOCH_S:
            self.ask(partition, None)

    def changed(self, partition: Partition) -> None:
        """Have the standing polls plan their question about the partition anew. With news or
        without a lease it goes back to the small poll.
        """
        self._hot.mark(partition)
        for idle in self._idle:
            if partition in idle.members:
                idle.mark(partition)
                if _is_lively(partition, self._broker.now()):
                    idle.discard(partition)
                    self._hot.add(partition)

    def forget(self, partition: Partition) -> None:
        """Remove a partition from all polls: it is not followed any more, or is refused."""
        self._to_prove.pop(partition, None)
        self._join_polls.forget(partition)
        for poll in (self._hot, *self._idle):
            poll.discard(partition)

    def drop_link(self, link: AnyLink) -> None:
        """Forget the polls on the connection of a client that is gone."""
        self._client_polls.drop_link(link)

    # -- choice of the connection ------------------------------------------------------------------

    def _own(self, partition: Partition) -> bool:
        return self._broker.own_connections.usable and not partition.is_refused(self._broker.now())

    # -- polls -------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send all polls that are due."""
        own = self._broker.own_connections
        if not own.usable:
            return
        for poll in (self._hot, *self._idle):
            poll.pump(own)
        if without_poll := self._join_polls.send(own):
            self._prove_at_times(without_poll)
        if self._to_prove and not self._proof.in_flight and (link := own.link("proof")) is not None:
            due = list(islice(self._to_prove, PROOF_MAX))
            for partition in due:
                del self._to_prove[partition]
            now = self._broker.now()
            self._proof.send(link, [p for p in due if p.back_off.until <= now])

    def _may_leave_hot(self, partition: Partition, now: float) -> bool:
        if now - partition.wanted_at > WANTED_S and not partition.parked:
            return True
        if (
            now - partition.news_at <= NEWS_S
            or not partition.leader_state.has_lease(now)
            or partition.leader_state.frozen
        ):
            return False
        for idle in self._idle:
            if partition in idle.members:
                if not idle.holds(partition):
                    idle.claim(partition)
                    return False
                return True
        self._assign_idle(partition)
        return False

    def _assign_idle(self, partition: Partition) -> None:
        for idle in self._idle:
            if len(idle.members) < IDLE_MAX:
                idle.add(partition)
                return
        name = f"idle-{len(self._idle)}"
        # without a session each request names every partition, so the rate is halved
        idle = SessionPoll(self._broker, name, self._long_s, pause_s=2 * self._long_s)
        idle.add(partition)
        self._idle.append(idle)

    def polled(self, poll: object) -> None:
        """Send the next poll after a response."""
        if self._client_polls.watches:
            self._client_polls.polled(poll)
        self.pump()

    def tick(self, now: float) -> None:
        """Ask again about partitions whose back-off is over, assign partitions to polls, count
        lapsed leases. Called periodically.
        """
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._sweep(now)
        for partition in self._broker.partitions:
            if (
                partition.back_off.failures
                and partition.back_off.until <= now
                and (partition.parked or partition in self._hot.members)
            ):
                self._broker.topic_lookup.ask(partition.topic.id)
                self.ask(partition, None)
        self._count_lapses(now)
        self.pump()

    def _sweep(self, now: float) -> None:
        """Drop unwanted partitions, move the others to the small poll or from it, and have a share of
        the questions planned anew.
        """
        for idle in self._idle:
            for partition in list(idle.members):
                if now - partition.wanted_at > WANTED_S and not partition.parked:
                    idle.discard(partition)
                elif _is_lively(partition, now):
                    idle.discard(partition)
                    self._hot.add(partition)
        for partition in list(self._hot.members):
            if self._may_leave_hot(partition, now):
                self._hot.discard(partition)
        self._sweeps += 1
        for poll in (self._hot, *self._idle):
            poll.mark_share(self._sweeps % REPLAN_SWEEPS, REPLAN_SWEEPS)

    def _count_lapses(self, now: float) -> None:
        last, self._ticked_at = self._ticked_at, now
        leases = Counter(map(LEASE, self._hot.members))  # most partitions share one
        lapsed = sum(held for lease, held in leases.items() if last <= lease.until < now)
        if lapsed:
            self._broker.counters.watch.lapse(lapsed)

    # -- leaders -----------------------------------------------------------------------------------

    def learn_node(self) -> None:
        """Re-evaluate the leader of every partition: the node id of this broker has become known."""
        for partition in self._broker.partitions:
            self.suggest(partition)

    def suggest(self, partition: Partition) -> None:
        """Pass the leader that Metadata named last to the leader state. A newer epoch is asked with
        at once: the broker may be back from a restart.
        """
        leader_state, now = partition.leader_state, self._broker.now()
        leader = partition.topic.leaders.get(partition.index, NO_LEADER)
        is_news = leader_state.suggest(leader.epoch, self._broker.node.is_this(leader.node_id))
        if is_news:
            partition.back_off.end(now)
            self.changed(partition)
        if is_news or (partition.parked and not leader_state.has_lease(now)):
            self.prove_next(partition)


def _is_lively(partition: Partition, now: float) -> bool:
    """True if the partition had news in the last NEWS_S seconds, or has no lease."""
    return now - partition.news_at <= NEWS_S or not partition.leader_state.has_lease(now)
