"""Budgets of the Python functions that each Fetch calls.

Owns the budgets, which are the calls of today: a path that grows by one call is seen. Must not know how calls are
counted (`tests.proxy.tracing`).
"""

from functools import partial

import pytest

from tests.proxy.cached_partition import World, build_fetch
from tests.proxy.tracing import count_calls

MANY = 32
WARM = 3
SHORT_SIZES = (1_000,)
SHORT_END = 10
"""Where all partitions of a world of `SHORT_SIZES` end."""


@pytest.fixture
async def world():
    world = World(verify_ratio=0.0, room_bytes=1 << 20)
    world.store_others(MANY)
    yield world
    world.end()


@pytest.mark.parametrize(("partitions", "most"), [(1, 27), (16, 27), (32, 27)])
async def test_a_fetch_that_memory_answers(world, partitions, most):
    for number in range(WARM):
        world.receive(build_fetch(0, partitions=partitions, correlation_id=number))
    before, frame = len(world.sent), build_fetch(0, partitions=partitions, correlation_id=WARM)
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before, "it was answered"
    assert calls <= most


@pytest.mark.parametrize(("partitions", "most"), [(1, 35), (16, 36), (29, 36)])
async def test_a_fetch_that_names_other_partitions_than_the_last(world, partitions, most):
    """As librdkafka's, which begin with another partition each time."""
    for number in range(WARM):
        world.receive(build_fetch(0, index=number, partitions=partitions, correlation_id=number))
    frame = build_fetch(0, index=WARM, partitions=partitions, correlation_id=WARM)
    before = len(world.sent)
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before
    assert calls <= most


@pytest.mark.parametrize(("partitions", "most"), [(1, 39), (16, 40), (32, 40)])
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


@pytest.mark.parametrize(("version", "most"), [(12, 29), (4, 29)])
async def test_a_fetch_that_names_its_topic(world, version, most):
    for number in range(WARM):
        world.receive(build_fetch(0, correlation_id=number, version=version))
    before, frame = len(world.sent), build_fetch(0, correlation_id=WARM, version=version)
    calls = count_calls(lambda: world.receive(frame))
    assert len(world.sent) > before
    assert calls <= most


def wait_at_tails(partitions, has_session, counting):
    """Calls of the last of several Fetches that wait at all tails, and calls of a record that one of the tails gets."""
    world = World(verify_ratio=0.0, room_bytes=1 << 20, sizes=SHORT_SIZES)
    world.store_others(partitions)
    session, parked, woken = (0, 0) if has_session else (0, -1), None, None
    for number in range(WARM + 1):
        frame = build_fetch(
            SHORT_END + number, partitions=partitions, correlation_id=number, session=session
        )
        before = len(world.sent)
        parked = counting(partial(world.receive, frame))
        assert len(world.sent) == before, "it waits"
        woken = counting(partial(world.arrive, 1000))
        assert len(world.sent) > before
        for index in range(1, partitions):
            world.arrive(1000, index=index)
        if has_session:
            (session_id,) = world.broker.sessions._sessions
            session = session_id, number + 1
    world.end()
    return parked, woken


@pytest.mark.parametrize(
    ("partitions", "has_session", "most"),
    [
        (1, False, (35, 45)),
        (16, False, (35, 52)),
        (32, False, (35, 52)),
        (1, True, (50, 47)),
        (16, True, (65, 70)),
        (32, True, (81, 86)),
    ],
)
async def test_a_fetch_that_waits_and_is_woken(partitions, has_session, most):
    calls = wait_at_tails(partitions, has_session, count_calls)
    assert all(one <= bound for one, bound in zip(calls, most, strict=True)), calls
