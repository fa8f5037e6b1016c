"""A followed partition over a small real cache, and a broker without connections.

Owns the fixtures' values: topic id, epoch 5, a lease until second 1 of a clock that stands still. It must not
know sockets. Invariants: batches have one record each and are real to the cache (`tests.kit.cache_batches`).
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from blockcache.cache import BlockCache
from proxy.accounting.client_groups import ClientGroups
from proxy.accounting.counters import Counters
from proxy.broker import Broker
from proxy.fetch.accounts import Accounts
from proxy.fetch.principals import Principals
from proxy.fetch.readers import ProcessTotals, Readers
from proxy.fetch.wakeups import WakeupBatch
from proxy.partitions.table import Partitions
from proxy.partitions.topics import Leader, Topics
from proxy.replica_fetcher.session_poll import REST_TIMES
from tests.kit.cache_batches import build_run, insert

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.partitions.table import Partition

TOPIC_ID = bytes(range(16))
EPOCH = 5
LEASE_UNTIL_S = 1.0
NODE = 1
PRINCIPALS = 3
READERS = 100
LEADERS = {index: Leader(NODE, EPOCH) for index in range(32)}


Found = TypeVar("Found")


def stand_in(fake: object) -> Any:
    """Return `fake` for a parameter of a product type; `fake` has all members that the subject uses."""
    return fake


def known(found: Found | None) -> Found:
    """Return `found`, which must not be None."""
    assert found is not None
    return found


class QuietWatch:
    """A replica fetcher that records its calls."""

    rest_times: float = REST_TIMES

    def __init__(self):
        self.polls: list[object] = []
        self.asked: list[Partition] = []
        self.next_proven = []
        self.followed: list[Partition] = []
        self.doubted = []
        self.changes: list[Partition] = []
        self.suggested: list[Partition] = []
        self.suggest = self.suggested.append
        self.changed: Callable[[Partition], None] = self.changes.append
        self.forget: Callable[[Partition], None] = lambda _partition: None
        self.polled: Callable[[object], object] = self.polls.append

    def pump(self):
        """Nothing: no question waits."""

    def ask(self, partition, _waiter):
        self.asked.append(partition)

    def follow(self, partition, _asked):
        self.followed.append(partition)

    def prove_next(self, partition):
        self.next_proven.append(partition)

    def doubt(self, partition):
        self.doubted.append(partition)

    def produced(self, _partition, _now=None):
        """Nothing: no Fetch waits."""


class QuietBroker:
    """The services of handlers, with a clock that the test moves and without connections."""

    admit_produced = Broker.admit_produced

    def __init__(self, size_bytes=1 << 20, **sections):
        self.cache = BlockCache(size_bytes, **sections)
        weakref.finalize(
            self, self.cache.close
        )  # it has a descriptor, and some tests make thousands
        self.counters = Counters()
        self.topics = Topics()
        self.partitions = Partitions(self.cache, 100, 100)
        self.replica_fetcher = QuietWatch()
        self.asked_topics: list[str | bytes] = []
        self.topic_lookup = SimpleNamespace(
            ask=lambda topic, _link=None: self.asked_topics.append(topic),
            want=lambda topic, _link: None,
        )
        self.access_log: Any = None
        self.stored_runs: Any = None
        self.own_connections: Any = None
        self.scheduler: Any = None
        self.accounts = Accounts(stand_in(self), None)
        self.principals = Principals(PRINCIPALS)
        self.wakeups = WakeupBatch()
        self.client_groups = ClientGroups(PRINCIPALS)
        self.readers = Readers(
            READERS, 0.0, lambda: ProcessTotals({}, self.cache.peek_admitted_bytes(), 0)
        )
        self.config: Any = SimpleNamespace(cache=SimpleNamespace(confirm_every_s=LEASE_UNTIL_S))
        self.node: Any = SimpleNamespace(is_this=lambda node_id: node_id == NODE)
        self.clock_s = 0.0
        self.answer_bytes = 1 << 30
        self.modes: Any = SimpleNamespace(observes=False)
        self.invalidated = []
        self.forgotten = []
        self.topics.learn("orders", TOPIC_ID, LEADERS)

    def now(self):
        return self.clock_s

    def follow(self, index: int = 0) -> Partition:
        return known(self.partitions.follow(known(self.topics.find(TOPIC_ID)), index))

    def attempt(self, action, _doing, otherwise=None):
        """Run `action`; its error ends the test."""
        action()

    def catch_up(self):
        """Nothing: no other process tells."""

    def invalidate(self, partition, from_offset, reason):
        self.invalidated.append((partition, from_offset, reason))

    keeps = True

    def distrust(self, topic, reason):
        Broker.distrust(stand_in(self), topic, reason)

    def forget_topic(self, topic_id):
        self.forgotten.append(topic_id)


def learn(partition, high_watermark, last_stable_offset=None, log_start_offset=0, epoch=EPOCH):
    """The broker shows offsets, and no divergence is to be checked."""
    stable = high_watermark if last_stable_offset is None else last_stable_offset
    partition.leader_state.learn(epoch, high_watermark, stable, log_start_offset, LEASE_UNTIL_S)
    partition.leader_state.frozen = False


def store(broker, partition, first_offset, next_offset):
    """Store batches of [first, next), and move the tail behind them."""
    run = build_run(first_offset, next_offset - first_offset, epoch=EPOCH)
    insert(broker.cache, partition.slot, run)
    partition.tail = max(partition.tail, next_offset)
