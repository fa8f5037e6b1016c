"""Budgets of the Python functions that a Produce calls, there and back. Storing and isolation are on.

Owns the budgets, which are the calls of today: a path that grows by one call is seen. Must not know how calls are
counted (`tests.proxy.tracing`).
"""

import asyncio
import struct

import pytest

from isolation.classify import queue_of_topic
from protocol.produce_build import Refused, build_refusal
from tests.kit.frames import PRODUCE_VERSION, build_batch, build_produce
from tests.kit.played import ON
from tests.proxy.followed_partition import known
from tests.proxy.pipeline_pair import START_S, World
from tests.proxy.test_dispatch_budget import MANY
from tests.proxy.tracing import count_calls

WARM = 6
BATCH = build_batch(100)


def build_answer(partitions, correlation_id, offset):
    """All of it was stored at `offset`."""
    done = [Refused("orders", index, 0) for index in range(partitions)]
    answer = build_refusal(PRODUCE_VERSION, correlation_id, done)
    return answer.replace(struct.pack(">hq", 0, -1), struct.pack(">hq", 0, offset))


class Budget:
    """One client; `count` has the calls of one Produce, to the broker and back, as `counting` counts them."""

    def __init__(self, directory, has_pipeline, counting=count_calls, settings=ON):
        self._count = counting
        clock = [START_S]
        self.world = World(directory, clock, settings, has_pipeline)
        topic = known(self.world.broker.topics.find("orders"))
        for index in range(MANY):
            partition = known(self.world.broker.partitions.follow(topic, index))
            partition.leader_state.learn(0, 0, 0, 0, START_S + 3600.0)
            partition.leader_state.await_check(False)
            partition.tail = 0
            partition.transactions.shown(0, 0, 0, START_S)
        self.offset = 0
        self.number = 0

    async def connect(self, partitions):
        """All that a connection does once, or a partition."""
        self.world.feed(build_produce("orders", BATCH, partitions=partitions, correlation_id=0))
        for _ in range(5):
            await asyncio.sleep(0)
        self._answer(partitions, build_answer(partitions, 0, 0))
        for _ in range(WARM):
            self.count(partitions)

    def _answer(self, partitions, answer):
        self.world.read()
        self.world.back.framed = self.world.link.upstream.framed
        calls = self._count(lambda: self.world.back.framed.data_received(answer))
        self.world.read()
        self.offset += 1
        return calls

    def send(self, partitions):
        self.number += 1
        frame = build_produce("orders", BATCH, partitions=partitions, correlation_id=self.number)
        return self._count(lambda: self.world.link.framed.data_received(frame))

    def answer(self, partitions, number):
        return self._answer(partitions, build_answer(partitions, number, self.offset))

    def count(self, partitions):
        there = self.send(partitions)
        return there, self.answer(partitions, self.number)


@pytest.mark.parametrize(
    ("partitions", "has_pipeline", "most"),
    [(1, True, 14), (1, False, 29), (8, False, 30), (16, False, 30), (MANY, False, 30)],
)
async def test_a_produce_there_and_back(tmp_path, partitions, has_pipeline, most):
    budget = Budget(tmp_path, has_pipeline)
    try:
        await budget.connect(partitions)
        there, back = budget.count(partitions)
        stored = budget.world.broker.counters.produce.batches
        assert dict(stored) == {"store": partitions * (WARM + 2)}
        assert len(budget.world.to_client) > 0
        assert there + back <= most, (there, back)
    finally:
        budget.world.close()


async def test_a_produce_that_waits_for_a_slot(tmp_path):
    """Two Produces and one slot: the answer to the first one sends the second."""
    one_slot = {**ON, "isolation": {"dataSlots": {"floor": 1, "initial": 1, "ceiling": 1}}}
    budget = Budget(tmp_path, has_pipeline=False, settings=one_slot)
    try:
        await budget.connect(1)
        alone = sum(budget.count(1))
        calls = budget.send(1) + budget.send(1)
        assert budget.world.broker.scheduler.queues.load_of(queue_of_topic("orders", 16)) == 2
        calls += budget.answer(1, budget.number - 1) + budget.answer(1, budget.number)
        stored = budget.world.broker.counters.produce.batches
        assert dict(stored) == {"store": WARM + 4}
        assert alone <= 29
        assert calls - alone <= 44
    finally:
        budget.world.close()
