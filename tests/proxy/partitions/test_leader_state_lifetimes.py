"""The lease that C reads by a partition's row is the one that its leader state holds, whoever shares or ends it.

Owns random lives of partitions in two fetch sessions. Must not know the polls' rules: `is_answered` asks C alone.
"""

from __future__ import annotations

import gc
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.fetch import FetchPartition
from proxy.partitions.leader_state import LeaderState, Lease
from proxy.partitions.readable import UNREADABLE, find_limits
from proxy.replica_fetcher.session_poll import SessionPoll
from tests.proxy.followed_partition import EPOCH, LEADERS, TOPIC_ID, QuietBroker, learn, stand_in
from tests.proxy.replica_fetcher.poll_connection import PlayedLink, shown

if TYPE_CHECKING:
    from proxy.partitions.table import Partition

END, COUNT = 20, 4


def is_answered(broker: QuietBroker, partition: Partition, now: float) -> bool:
    """Whether C says that its end may be answered at `now`."""
    asked = FetchPartition(TOPIC_ID, partition.index, -1, END, -1, -1, 1)
    return find_limits(broker.cache, [asked], [partition], 0, 13, now) != [UNREADABLE]


def is_held(leader_state: LeaderState) -> bool:
    """Whether the row points to the memory of the lease that the leader state holds."""
    held = leader_state.row.lease == leader_state.lease.row
    return bool(held and leader_state.row.lease.until == leader_state.lease.until)


class Leases:
    """Partitions in two polls that take turns. What was forgotten stays in the hands of a request that waits."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.broker = rng, QuietBroker()
        self.links = [PlayedLink(), PlayedLink()]
        self.polls = [SessionPoll(stand_in(self.broker), name, 0.3) for name in ("watch", "idle-0")]
        self.partitions = [self.follow(index) for index in range(COUNT)]
        self.forgotten: list[Partition] = []
        self.shared = 0

    def follow(self, index: int) -> Partition:
        partition = self.broker.follow(index)
        learn(partition, END)
        partition.leader_state.suggest(EPOCH, True)
        partition.tail = END
        return partition

    @property
    def one(self) -> Partition:
        return self.rng.choice(self.partitions)

    def join(self) -> None:
        self.rng.choice(self.polls).add(self.one)

    def leave(self) -> None:
        self.rng.choice(self.polls).discard(self.one)

    def claim(self) -> None:
        poll = self.rng.choice(self.polls)
        if poll.members:
            poll.claim(self.rng.choice(list(poll.members)))

    def send(self) -> None:
        number = self.rng.randrange(2)
        self.polls[number].send(stand_in(self.links[number]))

    def answer(self) -> None:
        number = self.rng.randrange(2)
        poll, link = self.polls[number], self.links[number]
        if not poll.in_flight:
            return
        named = list(poll._asked)
        if poll._session.is_open:
            named = self.rng.sample(named, self.rng.randint(0, len(named)))
        error = self.rng.choice([0] * 9 + [int(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
        link.answer(*(shown(p.index, END, error_code=error) for p in named))

    def lose(self) -> None:
        number = self.rng.randrange(2)
        if self.polls[number].in_flight:
            self.links[number].on_answer(None)
            self.links[number] = PlayedLink()

    def confirm(self) -> None:
        self.one.leader_state.renew(self.broker.clock_s + self.rng.random() * 2)

    def revoke(self) -> None:
        self.one.leader_state.revoke()

    def detach(self) -> None:
        self.one.leader_state.detach()

    def cut(self) -> None:
        state = self.one.leader_state
        state.forget_offsets()
        state.learn(EPOCH, END, END, 0, self.broker.clock_s + 1)

    def forget(self) -> None:
        partition = self.one
        self.partitions.remove(partition)
        for poll in self.rng.sample(self.polls, 2):
            poll.discard(partition)
        self.broker.partitions.forget(partition)
        self.forgotten.append(partition)
        self.partitions.append(self.follow(partition.index))

    def collect(self) -> None:
        """What is held by nobody is gone."""
        self.forgotten = self.forgotten[-2:]
        gc.collect(0)

    def time_passes(self) -> None:
        self.broker.clock_s += self.rng.choice((0.1, 0.3, 1.5))

    def check(self) -> None:
        now = self.broker.clock_s
        for partition in self.partitions + self.forgotten:
            state = partition.leader_state
            assert is_held(state)
            is_served = state.has_lease(now) and not state.frozen and state.high_watermark == END
            assert is_answered(self.broker, partition, now) == is_served
        for poll in self.polls:
            sharing = [p for p in self.partitions if p.leader_state.lease is poll._lease]
            self.shared += len(sharing) > 1
            assert all(p in poll.members for p in sharing)
        assert not any(p.leader_state.lease.is_shared for p in self.forgotten)
        assert not any(p.leader_state.has_lease(now) for p in self.forgotten)


WEIGHTS = {
    Leases.join: 6,
    Leases.leave: 2,
    Leases.claim: 2,
    Leases.send: 20,
    Leases.answer: 20,
    Leases.lose: 1,
    Leases.confirm: 3,
    Leases.revoke: 1,
    Leases.detach: 1,
    Leases.cut: 1,
    Leases.forget: 1,
    Leases.collect: 1,
    Leases.time_passes: 8,
}


def live(seed: int) -> Leases:
    rng = Random(seed)
    leases = Leases(rng)
    for step in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=150):
        step(leases)
        leases.check()
    return leases


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_c_reads_the_lease_that_the_leader_state_holds(seed: int) -> None:
    live(seed)


def test_leases_are_shared_in_these_lives() -> None:
    assert sum(live(seed).shared for seed in range(20)) > 200


def test_a_shared_lease_is_renewed_for_all_rows_but_a_detached_one() -> None:
    broker, lease = QuietBroker(), Lease(1.0, is_shared=True)
    partitions = [broker.follow(index) for index in range(3)]
    for partition in partitions:
        learn(partition, END)
        partition.leader_state.hold(lease)
    partitions[2].leader_state.detach()
    lease.until = 5.0
    assert [is_answered(broker, p, 3.0) for p in partitions] == [True, True, False]
    partitions[1].leader_state.renew(6.0)
    partitions[2].leader_state.renew(6.0)
    assert [is_answered(broker, p, 5.5) for p in partitions] == [False, True, True]
    assert lease.until == 5.0


def test_a_partition_forgotten_while_its_lease_is_shared_ends_its_own_alone() -> None:
    broker, lease = QuietBroker(), Lease(1.0, is_shared=True)
    kept, gone = broker.follow(0), broker.follow(1)
    for partition in (kept, gone):
        learn(partition, END)
        partition.leader_state.hold(lease)
    broker.partitions.forget(gone)
    assert [is_answered(broker, p, 0.5) for p in (kept, gone)] == [True, False]
    again = broker.follow(1)
    assert len(LEADERS) > 1 and again is not gone
    assert is_held(again.leader_state) and not is_answered(broker, again, 0.5)


def test_a_replaced_lease_is_no_longer_read() -> None:
    """Its memory is taken by another at once."""
    state = LeaderState()
    for until in range(1000):
        state.hold(Lease(float(until)))
        others = [Lease(float("nan")) for _ in range(3)]
        assert is_held(state) and state.row.lease.until == until
        assert all(state.row.lease != other.row for other in others)
