"""Budgets of the Python functions that each Fetch calls.

Owns the budgets, which are the calls of today: a path that grows by one call is seen. Must not know how calls are
counted (`tests.proxy.tracing`).
"""

import pytest

from tests.proxy.cached_partition import END, World, build_fetch
from tests.proxy.tracing import count_calls

MANY = 32
WARM = 3


@pytest.fixture
async def world():
    world = World(verify_ratio=0.0, room_bytes=1 << 20)
    world.store_others(MANY)
    yield world
    world.end()


@pytest.mark.parametrize(("partitions", "most"), [(1, 28), (16, 88), (32, 152)])
async def test_a_fetch_that_memory_answers(world, partitions, most):
    for number in range(WARM):
        world.receive(build_fetch(0, partitions=partitions, correlation_id=number))
    before, frame = len(world.sent), build_fetch(0, partitions=partitions, correlation_id=WARM)
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before, "it was answered"
    assert calls <= most


@pytest.mark.parametrize(("partitions", "most"), [(1, 40), (16, 101), (32, 165)])
async def test_a_fetch_in_a_session(world, partitions, most):
    world.receive(build_fetch(0, partitions=partitions, correlation_id=0, session=(0, 0)))
    (number,) = world.broker.sessions._sessions
    for epoch in range(1, WARM):
        world.receive(
            build_fetch(0, partitions=partitions, correlation_id=epoch, session=(number, epoch))
        )
    before, frame = (
        len(world.sent),
        build_fetch(0, partitions=partitions, correlation_id=WARM, session=(number, WARM)),
    )
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


async def test_fetch_that_waits_and_is_woken(world):
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
