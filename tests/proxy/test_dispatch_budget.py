"""How many of the product's Python functions each request calls: a figure that no other work on the machine changes.

Owns the count and the budgets: today's calls, so that a way which grows is seen when it does. It must not know how long
a call takes (bench/). Calls into C and the standard library are not counted.
"""

import sys
from pathlib import Path

import pytest

from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from tests.proxy.followed import LEADERS, TOPIC_ID, known
from tests.proxy.hitting import END, IDS, World, build_fetch

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(
    f"{ROOT / one}/"
    for one in ("proxy", "protocol", "blockcache", "isolation", "throttle", "metrics")
)
WARM = 3


def count_calls(action) -> int:
    """Calls of the product's Python functions while `action` runs."""
    calls = 0

    def note(frame, event, _argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PRODUCT)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def build(offset, partitions, correlation_id, session=(0, -1)):
    """A Fetch of the first `partitions` partitions."""
    asked = [FetchPartition(TOPIC_ID, i, -1, offset, -1, -1, 1 << 20) for i in range(partitions)]
    return build_request(
        IDS,
        correlation_id,
        "c",
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        partitions=asked,
    )


def store_many(world):
    """All partitions of the topic are in memory."""
    for index in range(1, len(LEADERS)):
        first, world.partition = (
            world.partition,
            world.broker.partitions.follow(known(world.topic), index),
        )
        world.store((1_000,))
        world.partition = first


@pytest.fixture
async def world():
    world = World(verify_ratio=0.0, room_bytes=1 << 20)
    store_many(world)
    yield world
    world.end()


@pytest.mark.parametrize(("partitions", "most"), [(1, 28), (16, 88), (32, 152)])
async def test_a_fetch_that_memory_answers(world, partitions, most):
    for number in range(WARM):
        world.receive(build(0, partitions, number))
    before, frame = len(world.sent), build(0, partitions, WARM)
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before, "it was answered"
    assert calls <= most


@pytest.mark.parametrize(("partitions", "most"), [(1, 40), (16, 101), (32, 165)])
async def test_a_fetch_in_a_session(world, partitions, most):
    world.receive(build(0, partitions, 0, (0, 0)))
    (number,) = world.broker.sessions._sessions
    for epoch in range(1, WARM):
        world.receive(build(0, partitions, epoch, (number, epoch)))
    before, frame = len(world.sent), build(0, partitions, WARM, (number, WARM))
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before
    assert calls <= most


@pytest.mark.parametrize(("version", "most"), [(12, 31), (4, 32)])
async def test_a_fetch_that_names_its_topic(world, version, most):
    for number in range(WARM):
        world.receive(build_fetch(0, correlation_id=number, version=version))
    before, frame = len(world.sent), build_fetch(0, correlation_id=WARM, version=version)
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before
    assert calls <= most


async def test_a_fetch_that_waits_at_the_tail_and_is_woken(world):
    for number in range(WARM):
        world.receive(build_fetch(END + number, correlation_id=number))
        world.arrive(1000)
    before, frame = len(world.sent), build_fetch(END + WARM, correlation_id=WARM)
    parked = count_calls(lambda: world.receive(frame))
    assert len(world.sent) == before, "it waits"
    woken = count_calls(lambda: world.arrive(1000))
    assert len(world.sent) > before
    assert parked <= 43
    assert woken <= 46
