"""The judge of a Fetch in C beside the judge that ran in Python, over random states of partitions and stored runs.

Owns the reference, `judge`, which takes one partition at a time. Must not know rows: it reads what the owners in
Python say. The row's words of a run of transactions are held against `Transactions.listed_end` after each event.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy.partitions._rows import ffi, lib

from protocol.batch import scan_batches
from protocol.fetch import FetchPartition
from proxy.partitions.leader_state import Lease
from proxy.partitions.partition_row import open_row
from proxy.partitions.readable import (
    AT_END_BELOW,
    ROOM,
    UNREADABLE,
    ReadState,
    find_limits,
    plan_partition,
)
from proxy.partitions.recompression import Recompression
from proxy.partitions.transactions import Transactions
from tests.kit.cache_batches import build_run, insert
from tests.protocol.markers import build_control
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker, known, learn, store
from tests.proxy.partitions.test_transactions_model import PATIENCE_S, WEIGHTS, Life

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from proxy.partitions.table import Partition
    from tests.proxy.transactional_log import Log

COMMITTED = 1
GREATEST, LEAST = (1 << 63) - 1, -(1 << 63)
NOW_S, MOST = 10.0, 200
OFFSETS = (-1, -7, LEAST, GREATEST, GREATEST - 1)
TOPICS = tuple(bytes([number] * 16) for number in (1, 2))


def judge(
    cache: BlockCache,
    asked: FetchPartition,
    partition: Partition | None,
    isolation_level: int,
    version: int,
    now: float,
) -> int:
    """The number of one partition, as `find_limits` describes it."""
    if partition is None:
        return UNREADABLE
    _, _, leader_epoch, offset, fetched_epoch, _, max_bytes = asked
    leader_state = partition.leader_state
    epoch = leader_state.epoch
    if (
        epoch == -1
        or now >= leader_state.lease.until
        or leader_state.frozen
        or leader_epoch not in (-1, epoch)
        or fetched_epoch not in (-1, epoch)
        or offset < leader_state.log_start_offset
        or max_bytes < 0
        or partition.old_format
        or (partition.zstd and version < 10)
        or (version < 11 and not leader_state.is_led)
    ):
        return UNREADABLE
    high_watermark = leader_state.high_watermark
    committed = isolation_level == COMMITTED
    limit = partition.last_stable_offset() if committed else high_watermark
    if offset >= limit:
        is_at_end = 0 <= limit < GREATEST and offset <= high_watermark
        return AT_END_BELOW - limit if is_at_end else UNREADABLE
    least_end = offset + 1
    if partition.topic.may_be_compacted:
        least_end = max(least_end, min(limit, partition.tail))
    if offset < 0 or cache.contiguous_end(partition.slot, offset) < least_end:
        return UNREADABLE
    if not committed:
        return limit
    listed_end = list_end(partition.transactions, offset)
    return min(limit, listed_end) if listed_end > offset else UNREADABLE


def list_end(transactions: Transactions, offset: int) -> int:
    """As `Transactions.listed_end` has it, from the transactions themselves."""
    if transactions.known_from == -1 or offset < transactions.known_from:
        return offset
    return max(offset, min([transactions.end, *transactions._open.values()]))


class Scene:
    """Partitions of two topics, one of which is compacted, or not, in random states."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.broker = rng, QuietBroker(1 << 20)
        self.shared = [Lease(rng.choice((NOW_S, NOW_S + 1)), is_shared=True) for _ in range(2)]
        self.partitions: list[Partition] = []
        for topic_id in TOPICS:
            leaders = known(self.broker.topics.find(TOPIC_ID)).leaders
            self.broker.topics.learn(f"topic-{topic_id[0]}", topic_id, leaders)
            topic = known(self.broker.topics.find(topic_id))
            topic.learn_policy(rng.random() < 0.5)
            for index in range(3):
                self.partitions.append(known(self.broker.partitions.follow(topic, index)))
                self._change(self.partitions[-1])

    def _change(self, partition: Partition) -> None:
        rng = self.rng
        life = Life(rng, rng.choice((1, 3, 1000)))
        partition.transactions._limit = life.limit
        life.followed = partition.transactions
        for step in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rng.randrange(100)):
            step(life)
        self._store(partition, life.log.end)
        self._show(partition, life.log)
        self._lease(partition)
        row = partition.row
        row.frozen, row.old_format = rng.random() < 0.06, rng.random() < 0.06
        row.zstd = rng.random() < 0.3
        row.tail = rng.choice((-1, rng.randint(0, life.log.end), life.log.end, GREATEST))

    def _store(self, partition: Partition, end: int) -> None:
        """Runs with holes between them."""
        offset = 0
        while offset < end:
            count = min(self.rng.randint(1, 30), end - offset)
            if self.rng.random() < 0.85:
                insert(self.broker.cache, partition.slot, build_run(offset, count, epoch=EPOCH))
            offset += count

    def _show(self, partition: Partition, log: Log) -> None:
        rng, state = self.rng, partition.leader_state
        if rng.random() < 0.06:
            return
        high_watermark = rng.choice([log.end] * 9 + [log.high_watermark] * 9 + [GREATEST, 0])
        stable = rng.choice(
            (high_watermark, log.last_stable_offset(), min(high_watermark, 99) + 1, 0, -1)
        )
        start = rng.choice((0, 0, log.start, -1))
        state.learn(EPOCH, high_watermark, stable, start, NOW_S + 1)
        state.frozen = False
        if rng.random() < 0.1:
            state.row.last_stable_offset = high_watermark if rng.random() < 0.5 else GREATEST
        state.suggest(rng.choice((EPOCH, EPOCH, EPOCH + 1, EPOCH - 1)), rng.random() < 0.9)

    def _lease(self, partition: Partition) -> None:
        rng, state = self.rng, partition.leader_state
        kind = rng.randrange(20)
        if kind < 8:
            state.hold(rng.choice(self.shared))
        if kind == 8:
            state.revoke()
        if kind in (7, 9):
            state.detach()
        if kind == 10:
            state.hold(Lease(NOW_S))

    def ask(self, partition: Partition) -> FetchPartition:
        rng, row = self.rng, partition.row
        near = (row.high_watermark, row.last_stable_offset, row.tail, row.observed_end)
        offset = rng.choice(
            (*near, *OFFSETS, *[rng.randint(0, max(row.high_watermark, 0) % 99) for _ in range(12)])
        )
        epochs = [-1] * 20 + [EPOCH] * 20 + [EPOCH - 1, EPOCH + 1, -2, (1 << 31) - 1]
        max_bytes = rng.choice([1 << 20] * 30 + [0, -1, -(1 << 31), (1 << 31) - 1])
        epoch, fetched = rng.choice(epochs), rng.choice(epochs)
        return FetchPartition(
            partition.topic.id, partition.index, epoch, offset, fetched, -1, max_bytes
        )

    def judge(self, count: int) -> list[int]:
        """What both judges say of one Fetch of `count` partitions."""
        rng = self.rng
        chosen = rng.choices(self.partitions, k=count)
        asked = [self.ask(partition) for partition in chosen]
        found = [None if rng.random() < 0.1 else one for one in chosen]
        how = rng.randrange(2), rng.choice((rng.randint(4, 10), rng.randint(11, 18))), NOW_S
        expected = [
            judge(self.broker.cache, one, partition, *how)
            for one, partition in zip(asked, found, strict=True)
        ]
        limits = find_limits(self.broker.cache, asked, found, *how)
        assert limits == expected
        for one, partition, limit in zip(asked, found, limits, strict=True):
            if partition is not None:
                status = plan_partition(self.broker.cache, one, partition, *how)
                assert (status.state is ReadState.READABLE) == (limit >= 0)
                assert (status.state is ReadState.AT_END) == (limit <= AT_END_BELOW)
        return limits


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, MOST))
def test_c_judges_as_the_reference(seed: int, count: int) -> None:
    scene = Scene(Random(seed))
    for size in (count, 1, 5):
        scene.judge(size)


def test_each_answer_is_met() -> None:
    limits = [limit for seed in range(40) for limit in Scene(Random(seed)).judge(50)]
    assert min(sum(map(kind, limits)) for kind in KINDS) > 100


KINDS = (
    lambda limit: limit >= 0,
    lambda limit: limit <= AT_END_BELOW,
    lambda limit: limit == UNREADABLE,
)


@pytest.mark.parametrize("isolation_level", [0, COMMITTED])
def test_no_end_is_taken_for_a_limit_at_the_greatest_offset(isolation_level: int) -> None:
    """Its number would be below the least of 64 bits."""
    broker = QuietBroker()
    partition = broker.follow()
    learn(partition, GREATEST)
    asked = FetchPartition(TOPIC_ID, 0, EPOCH, GREATEST, -1, -1, 1)
    how = broker.cache, asked, partition, isolation_level, 13, 0.0
    assert find_limits(broker.cache, [asked], [partition], isolation_level, 13, 0.0) == [UNREADABLE]
    assert plan_partition(*how)[2:] == (ReadState.IN_TRANSIT, "hole", GREATEST)
    learn(partition, GREATEST)
    partition.leader_state.high_watermark = partition.leader_state.last_stable_offset = GREATEST - 1
    asked = asked._replace(fetch_offset=GREATEST - 1)
    how = broker.cache, asked, partition, isolation_level, 13, 0.0
    assert plan_partition(*how)[2:] == (ReadState.AT_END, "", GREATEST - 1)


def test_more_partitions_than_there_was_memory_for() -> None:
    broker = QuietBroker()
    partition = broker.follow()
    store(broker, partition, 10, 20)
    learn(partition, 20)
    asked = [FetchPartition(TOPIC_ID, 0, EPOCH, 10 + n % 11, -1, -1, 1) for n in range(ROOM * 5)]
    limits = find_limits(broker.cache, asked, [partition] * len(asked), 0, 13, 0.0)
    assert limits == [20 if n % 11 < 10 else AT_END_BELOW - 20 for n in range(len(asked))]
    assert find_limits(broker.cache, (), (), COMMITTED, 13, 0.0) == []


# -- the end up to which transactions are listed ---------------------------------------------------------------


class RowLife(Life):
    """A life whose transactions lie in a row that C reads."""

    def __init__(self, rng: Random, limit: int) -> None:
        self.fidelity = Recompression()
        super().__init__(rng, limit)
        self.garbled = 0

    def begin(self) -> Transactions:
        """In another row."""
        self.row = open_row(0, self.fidelity.native)
        return Transactions(self.limit, PATIENCE_S, self.row)

    def garbage(self) -> None:
        """A marker that the log cleaner has emptied is observed at the log's end."""
        start = self.log.end
        control = build_control(start, None, producer=(self.rng.randint(1, 3), 0))
        self.log.end += 1
        self.followed.observed(control, scan_batches(control, 0, len(control)), start, start + 1)
        self.garbled += self.followed.known_from < 0

    def find_end(self, offset: int) -> int:
        """By the row alone; `offset` if there is none."""
        memory = [ffi.new("int64_t[2]") for _ in range(6)]
        fields = ("limits", "numbers", "places", "stored_numbers", "least_ends", "ends")
        judged = ffi.new("pt_judged *", dict(zip(fields, memory, strict=True)))
        asked = ffi.new("pt_asked[1]", [(-1, offset, -1, 1)])
        lib.pt_settle(self.row, asked, 0, GREATEST, judged)
        limit = int(memory[0][0])
        return offset if limit == UNREADABLE else limit

    def check(self) -> bool:
        """Whether any transaction is listed."""
        edges = (self.row.known_from, self.row.observed_end, self.row.first_open)
        offsets = {0, GREATEST - 1, *(max(one + by, 0) for one in edges for by in (-1, 0, 1))}
        for offset in offsets:
            assert self.find_end(offset) == self.followed.listed_end(offset)
            assert self.find_end(offset) == list_end(self.followed, offset)
        return self.row.first_open >= 0


def live(seed: int, limit: int) -> tuple[RowLife, int]:
    """A life, and how often a transaction was open in its run."""
    rng, opened = Random(seed), 0
    life = RowLife(rng, limit)
    steps: list[Any] = [*WEIGHTS, RowLife.garbage]
    for step in rng.choices(steps, [*WEIGHTS.values(), 0.5], k=120):
        step(life)
        opened += life.check()
    return life, opened


@pytest.mark.parametrize("limit", [1, 4, 1000])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_c_knows_how_far_transactions_are_listed(limit: int, seed: int) -> None:
    live(seed, limit)


def test_these_lives_are_not_dull() -> None:
    lives = [live(seed, 1000) for seed in range(20)]
    assert sum(opened for _, opened in lives) > 200
    assert sum(life.garbled for life, _ in lives) > 5
