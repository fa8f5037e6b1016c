"""A followed partition over a small real cache, and a broker without links: what the core's tests stand on.

Owns the fixtures' values: topic id, epoch 5, a lease until second 1 of a clock that stands still. It must not
know sockets. Invariants: batches have one record each and are real to the cache (`tests.kit.cache_batches`).
"""

from types import SimpleNamespace
from typing import Any, TypeVar

from blockcache.cache import BlockCache
from proxy.accounting.counters import Counters
from proxy.broker import Broker
from proxy.fetch.record import Accounts
from proxy.fetch.sessions.idle_partitions import WakeupBatch
from proxy.partitions.table import Partitions
from proxy.partitions.topics import Leader, Topics
from tests.kit.cache_batches import build_run, insert

TOPIC_ID = bytes(range(16))
EPOCH = 5
LEASE_UNTIL_S = 1.0
NODE = 1
LEADERS = {index: Leader(NODE, EPOCH) for index in range(32)}


Found = TypeVar("Found")


def known(found: Found | None) -> Found:
    """What was looked up and must be there."""
    assert found is not None
    return found


class QuietWatch:
    """Remembers what the watch would have been told."""

    def __init__(self):
        self.polls = []
        self.asked = []
        self.next_proven = []
        self.doubted = []
        self.changes = []

    def changed(self, partition):
        self.changes.append(partition)

    def polled(self, poll, learned):
        self.polls.append(learned)

    def ask(self, partition, _waiter):
        self.asked.append(partition)

    def prove_next(self, partition):
        self.next_proven.append(partition)

    def doubt(self, partition):
        self.doubted.append(partition)

    def produced(self, _partition, _now=None):
        """Nobody waits."""

    def forget(self, _partition):
        """It is in no poll."""

    def back_off_s(self, _partition):
        return 1.0


class QuietBroker:
    """What handlers share, with a clock that the test moves and nobody to send to."""

    def __init__(self, size_bytes=1 << 20, **sections):
        self.cache = BlockCache(size_bytes, **sections)
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
        handlers: Any = self
        self.accounts = Accounts(handlers, None)
        self.wakeups = WakeupBatch()
        self.config: Any = SimpleNamespace(cache=SimpleNamespace(confirm_every_s=LEASE_UNTIL_S))
        self.clock_s = 0.0
        self.answer_bytes = 1 << 30
        self.invalidated = []
        self.forgotten = []
        self.topics.learn("orders", TOPIC_ID, LEADERS)

    def now(self):
        return self.clock_s

    def follow(self, index=0):
        return self.partitions.follow(known(self.topics.find(TOPIC_ID)), index)

    def attempt(self, action, _doing, otherwise=None):
        """What raises in a test ends it."""
        action()

    def is_this(self, node_id):
        return node_id == NODE

    def invalidate(self, partition, from_offset, reason):
        self.invalidated.append((partition, from_offset, reason))

    def distrust(self, topic, reason):
        handlers: Any = self
        Broker.distrust(handlers, topic, reason)

    def forget_topic(self, topic_id):
        self.forgotten.append(topic_id)


def learn(partition, high_watermark, last_stable_offset=None, log_start_offset=0, epoch=EPOCH):
    """The broker answers; without a divergence to check."""
    stable = high_watermark if last_stable_offset is None else last_stable_offset
    partition.leader_state.learn(epoch, high_watermark, stable, log_start_offset, LEASE_UNTIL_S)
    partition.leader_state.frozen = False


def store(broker, partition, first_offset, next_offset):
    """Batches of [first, next) enter, and the tail stands behind them."""
    run = build_run(first_offset, next_offset - first_offset, epoch=EPOCH)
    insert(broker.cache, partition.slot, run)
    partition.tail = max(partition.tail, next_offset)
