"""The decision about an arena that an earlier process left, and the identity that this process notes."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from blockcache.arena_file import ArenaMemory, open_file
from blockcache.cache import IDENTITY_BYTES, BlockCache
from proxy import takeover
from proxy.takeover import IDENTIFY_S, UNCLAIMED_S, Identity, Takeover, unpack
from tests.kit.cache_batches import build_run, insert
from tests.proxy.followed_partition import TOPIC_ID, QuietBroker, stand_in

SIZE = 256 * 1024
LEFT_AT_S = 10.0


class Started(QuietBroker):
    """A process that keeps its arena at `path`. The broker behind it is known once `learn` was called."""

    def __init__(self, path=None, memory=None):
        super().__init__(SIZE, memory=memory or open_file(path))
        self.config = SimpleNamespace(cache=SimpleNamespace(confirm_every_s=1.0))
        self.node = SimpleNamespace(node_id=-1, cluster_id="")
        self.own_connections = SimpleNamespace(reachable=False)
        self.routes = SimpleNamespace(clear=lambda: None)
        self.takeover = Takeover(stand_in(self), self.end_torn)

    def end_torn(self, reason, _detail):
        raise AssertionError(f"{reason}, but nobody else reads the arena")

    def learn(self, cluster="one", node=1):
        self.node.node_id, self.node.cluster_id = node, cluster

    async def look(self):
        """Walk over what was left."""
        self.takeover.start()
        await self.takeover.stop()

    @property
    def outcomes(self):
        return dict(self.counters.stored.takeovers)


@pytest.fixture
def left(tmp_path):
    """The file of a process that has ended."""
    broker = Started(tmp_path / "arena")
    broker.learn()
    insert(broker.cache, broker.cache.open(TOPIC_ID, 0), build_run(0, 4))
    broker.takeover.tick(LEFT_AT_S)
    broker.cache.close()
    return tmp_path / "arena"


def test_the_same_broker_s_arena_is_taken_over_and_its_topics_are_asked_about(left):
    async def scenario():
        broker = Started(left)
        await broker.look()
        broker.takeover.tick(LEFT_AT_S + 1)
        assert broker.cache.is_pending and not broker.outcomes
        broker.learn()
        broker.takeover.tick(LEFT_AT_S + 2)
        assert broker.outcomes == {"taken-over": 1}
        assert broker.asked_topics == [TOPIC_ID]
        assert broker.partitions.unclaimed == 1
        broker.takeover.tick(LEFT_AT_S + 2 + UNCLAIMED_S - 1)
        assert broker.partitions.unclaimed == 1
        broker.takeover.tick(LEFT_AT_S + 2 + UNCLAIMED_S)
        assert broker.partitions.unclaimed == broker.cache.statistics().entries == 0
        broker.cache.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("cluster", "node"), [("two", 1), ("one", 2)])
def test_another_broker_s_arena_is_dropped(left, cluster, node):
    async def scenario():
        broker = Started(left)
        await broker.look()
        broker.learn(cluster, node)
        broker.takeover.tick(LEFT_AT_S + 1)
        await broker.takeover.stop()
        assert broker.outcomes == {"broker": 1}
        assert not broker.cache.is_pending and broker.cache.statistics().entries == 0
        broker.cache.close()

    asyncio.run(scenario())


def test_a_broker_that_does_not_say_who_it_is_gets_an_empty_cache(left):
    """Time in which it does not answer at all does not count: nobody is served anyway."""

    async def scenario():
        broker = Started(left)
        await broker.look()
        broker.takeover.tick(LEFT_AT_S + 1000)
        broker.own_connections.reachable = True
        for after_s in (0.0, IDENTIFY_S - 1):
            broker.takeover.tick(LEFT_AT_S + 2000 + after_s)
            assert broker.cache.is_pending
        broker.takeover.tick(LEFT_AT_S + 2000 + IDENTIFY_S)
        await broker.takeover.stop()
        assert broker.outcomes == {"unidentified": 1}
        broker.cache.close()

    asyncio.run(scenario())


def test_an_arena_from_before_the_machine_was_started_is_dropped(left, monkeypatch, tmp_path):
    other = tmp_path / "boot_id"
    other.write_text("another\n")
    monkeypatch.setattr(takeover, "KERNEL", other)

    async def scenario():
        broker = Started(left)
        await broker.look()
        assert broker.outcomes == {"kernel": 1}
        broker.cache.close()

    asyncio.run(scenario())


def test_an_identity_counts_as_a_whole():
    identity = Identity("cluster", 3, "kernel")
    packed = identity.pack()
    assert unpack(packed.ljust(IDENTITY_BYTES, b"\0")) == identity
    assert unpack(bytes(IDENTITY_BYTES)) is None
    assert unpack((packed[:-3] + b"\0\0\0").ljust(IDENTITY_BYTES, b"\0")) is None
    assert Identity("c" * IDENTITY_BYTES, 3, "kernel").pack() == b""


def test_memory_of_its_own_is_not_pending():
    assert not BlockCache(SIZE).is_pending


WRITER = """
import sys
from pathlib import Path
from blockcache.arena_file import ArenaMemory
assert ArenaMemory(int(sys.argv[1])).try_lock()
print(flush=True)
sys.stdin.read()
"""


def start_writer(memory):
    command = [sys.executable, "-c", WRITER, str(memory.fd)]
    writer = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[memory.fd]
    )
    assert writer.stdout is not None and writer.stdout.readline()
    return writer


def test_it_waits_for_the_process_that_still_writes(left):
    async def scenario():
        memory = open_file(left)
        with start_writer(memory) as writer:
            stopped, waiting = (Started(memory=ArenaMemory(os.dup(memory.fd))) for _ in range(2))
            stopped.takeover.start()
            await stopped.takeover.stop()
            waiting.takeover.start()
            waiting.learn()
            await asyncio.sleep(0)
            waiting.takeover.tick(LEFT_AT_S + 1)
            assert waiting.cache.is_pending and not waiting.outcomes
            writer.kill()
            writer.wait()
            while not waiting.outcomes:
                await asyncio.sleep(0.01)
                waiting.takeover.tick(LEFT_AT_S + 2)
            assert waiting.outcomes == {"taken-over": 1}
        for broker in (stopped, waiting):
            broker.cache.close()
        memory.close()

    asyncio.run(scenario())
