"""What workers may serve while the keeper learns and drops: they read its rows at any moment, also within a call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from blockcache.arena_file import ArenaMemory
from blockcache.cache import NO_EDGES, BlockCache
from protocol.errors import ErrorCode
from protocol.fetch import FetchPartition
from proxy.keeper.broker import KeeperBroker, ShowingFetcher
from proxy.keeper.keeper_link import is_current
from proxy.keeper.seen import SeenPartition
from proxy.keeper.segment import attach_segment
from proxy.keeper.shown import find_place
from proxy.partitions import readable
from proxy.partitions.readable import PartitionStatus, ReadState
from proxy.replica_fetcher.session_poll import SessionPoll
from tests.kit.cache_batches import build_run, insert
from tests.proxy.followed_partition import EPOCH, known, learn, stand_in
from tests.proxy.replica_fetcher.poll_connection import PlayedLink, shown
from tests.proxy.told_pair import Keeper, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

STORED, END = 10, 20
"""Offsets of the batch in the arena, and HW."""


class Group:
    """A keeper whose partitions 0 to 2 have [STORED, END) in the arena, and a worker that reads partition 0."""

    def __init__(self) -> None:
        self.keeper: Any = Keeper()
        self.keeper.cache.share()
        self.segment = attach_segment(os.dup(self.keeper.shown.segment.fd))
        self.cache = BlockCache.attach(ArenaMemory(os.dup(self.keeper.cache.memory_fd)), 1)
        self.partitions = [self.keeper.follow(index) for index in range(3)]
        for partition in self.partitions:
            learn(partition, END)
            insert(self.keeper.cache, partition.slot, build_run(STORED, END - STORED))
            partition.tail = END
            partition.topic.learn_policy(False)
            partition.leader_state.suggest(EPOCH, True)
            partition.leader_state.await_check(False)
            self.keeper.shown.show(partition)
        first = self.partitions[0]
        topic = known(Worker().topics.find("orders"))
        self.seen = SeenPartition(self.segment, topic, 0, first.slot, find_place(first.slot))

    def plan(self, offset: int) -> PartitionStatus:
        """What the worker makes of a Fetch of partition 0."""
        asked = FetchPartition(self.partitions[0].topic.id, 0, -1, offset, -1, -1, 10_000)
        now = self.keeper.clock_s
        return readable.plan_partition(self.cache, asked, self.seen, 0, 13, now)

    def serves(self, offset: int) -> bool:
        return bool(self.plan(offset).state is ReadState.READABLE)


@pytest.fixture
def group() -> Group:
    return Group()


def build_fetcher(keeper: Any, poll: SessionPoll) -> ShowingFetcher:
    """A keeper's, of this poll alone."""
    fetcher = ShowingFetcher.__new__(ShowingFetcher)
    fetcher._broker, fetcher._shown, fetcher._hot, fetcher._idle = keeper, keeper.shown, poll, []
    return fetcher


async def test_a_refused_partition_is_served_by_nobody_while_the_answer_renews_the_others(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader has moved. Its row names the shared lease, which had lapsed, until it is shown."""
    monkeypatch.setattr(SessionPoll, "_pause", lambda _: None)
    keeper, link = group.keeper, PlayedLink()
    poll = SessionPoll(stand_in(keeper), "watch", 0.3, 0.7)
    keeper.replica_fetcher.changed = build_fetcher(keeper, poll).changed
    for partition in group.partitions:
        poll.add(partition)

    def answer(*named: Any) -> None:
        assert poll.send(stand_in(link))
        link.answer(*named)

    answer(*(shown(partition.index, END) for partition in group.partitions))
    answer()
    for partition in group.partitions:
        keeper.shown.show(partition)
    assert group.partitions[0].leader_state.lease.is_shared
    assert group.serves(STORED)
    keeper.clock_s = 10.0
    assert not group.serves(STORED), "the lease has lapsed"
    looks: list[bool] = []

    class Waiter:
        """Of another partition: it is woken within the same call."""

        def wake(self, *_partitions: object) -> None:
            looks.append(group.serves(STORED))

        def note_acknowledged(self, _partition: object) -> None:
            pass

    group.partitions[1].parked[Waiter()] = None
    answer(shown(0, -1, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    assert group.partitions[1].leader_state.has_lease(keeper.clock_s)
    assert looks == [False]
    assert not group.serves(STORED)


def invalidate_between(group: Group, look: Callable[[], None]) -> None:
    """Drop all of partition 0, with a worker's turn after the first step."""
    real = group.keeper.cache.truncate

    def truncate(slot: int, offset: int) -> None:
        look()
        real(slot, offset)

    group.keeper.cache.truncate = truncate
    broker = KeeperBroker.__new__(KeeperBroker)
    vars(broker).update(vars(group.keeper))
    broker.invalidate(group.partitions[0], 0, "mismatch")


def test_what_is_found_while_it_is_dropped_is_not_sent(group: Group) -> None:
    """The bytes were just found not to be the broker's."""
    found: list[Any] = []

    def look() -> None:
        status = group.plan(STORED)
        slots = [group.seen.slot, STORED, status.limit_offset, 10_000]
        found.extend(group.cache.sender.find_all(slots, 10_000, False).sizes)

    assert group.serves(STORED) and is_current([group.seen])
    invalidate_between(group, look)
    assert any(found), "the worker's turn came before the bytes went"
    assert not is_current([group.seen])


def test_a_log_that_is_truncated_in_its_epoch_takes_back_what_was_acknowledged(
    group: Group,
) -> None:
    """Else a Fetch at its end waits for records that are gone."""
    keeper, partition = group.keeper, group.partitions[0]
    partition.row.acknowledged_end = END + 30
    keeper.shown.show(partition)
    group.seen.look(0.0)
    assert group.seen.has_unseen(END)
    partition.forget_log(END, is_stored=False)
    learn(partition, END)
    keeper.shown.show(partition)
    group.seen.look(0.0)
    assert partition.leader_state.epoch == group.seen.leader_state.epoch == EPOCH
    assert not group.seen.has_unseen(END)


def test_a_partition_that_the_keeper_drops_is_a_miss_to_a_worker_that_has_not_heard_of_it(
    group: Group,
) -> None:
    """A topic is deleted: the worker is told in the keeper's next turn."""
    group.keeper.partitions.forget(group.partitions[0])
    assert not group.serves(STORED)
    assert group.cache.contiguous_end(group.seen.slot, STORED) == STORED
    assert group.cache.span(group.seen.slot, STORED, END, 10_000) is None
    assert group.cache.peek_head(group.seen.slot, STORED) is None
    assert group.cache.edges(group.seen.slot, STORED) == NO_EDGES
    assert group.cache.age_bytes(group.seen.slot, STORED) is None
