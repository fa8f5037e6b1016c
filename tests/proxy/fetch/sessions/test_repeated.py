"""Fetches without a session whose partitions are remembered: the client sees the same bytes as without memory."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from protocol.errors import ErrorCode
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.fetch import delayed_fetch
from proxy.fetch.sessions import repeated
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.sessions.repeated import RepeatedFetches, RepeatedPartitions
from proxy.partitions.store import announce
from tests.kit.cache_batches import build_batch, insert
from tests.proxy.cached_partition import World
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, known, stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITIONS = 8
START = 10
"""Where all partitions end at first."""
NEVER = 1 << 30
VERSION = 13
ROOM = 1 << 20
SEEDS, SCRIPTS, STEPS = 5, 8, 150
ENDLESS_MS = 3_600_000
"""The times that a Fetch may wait are the event loop's: on a busy machine they would end between two scenes."""


class Scene:
    """A world whose client names PARTITIONS partitions without a session, and what it has read."""

    def __init__(self, least: int, limit: int = 100) -> None:
        self.world = world = World(verify_ratio=0.0, sizes=(1_000,), room_bytes=ROOM)
        world.store_others(PARTITIONS)
        cache = world.broker.config.cache.model_copy(update={"hole_wait_s": ENDLESS_MS / 1000})
        world.broker.configure(world.broker.config.model_copy(update={"cache": cache}))
        world.broker.own_connections = stand_in(
            SimpleNamespace(usable=True, link=lambda _purpose: None)
        )
        self.sessions = SessionCache(SessionLimits(10, limit, 120.0), Random(1))
        world.link.handlers.repeated = RepeatedFetches(self.sessions, least)
        self.partitions = [
            known(world.broker.partitions.find(world.topic, index)) for index in range(PARTITIONS)
        ]
        for one in self.partitions:
            one.open_polls = 1
        self.number = 0

    @property
    def repeated(self) -> int:
        """Fetches that were evaluated as in a session."""
        return self.world.broker.counters.fetch.repeated

    @property
    def looked(self) -> int:
        """Partitions evaluated so far."""
        return self.world.broker.counters.fetch.looked_partitions

    async def fetch(self, asked: Sequence[tuple[int, int]], **fields: int) -> list[bytes]:
        """Ask for partitions by (index, offset). Return what has left toward the client by then."""
        before = len(self.world.sent)
        self.number += 1
        values = {
            "max_wait_ms": ENDLESS_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            **fields,
        }
        named = [FetchPartition(TOPIC_ID, *one, -1, -1, 1 << 20) for one in map(place, asked)]
        frame = build_request(
            VERSION, self.number, "client", partitions=named, forgotten=(), rack_id="", **values
        )
        self.world.receive(frame)
        await self.turn()
        return list(self.world.sent[before:])

    async def turn(self) -> None:
        """Let the loop do what is due."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def arrive(self, index: int) -> None:
        """A record comes to a partition."""
        self.world.arrive(1_000, index=index)
        await self.turn()

    @property
    def waits(self) -> bool:
        """Whether a Fetch waits."""
        return bool(self.world.link.replies.places)

    def end(self) -> None:
        """The client goes."""
        self.world.end()


def place(asked: tuple[int, int]) -> tuple[int, int, int]:
    """Index, leader epoch that the client names, offset."""
    return asked[0], -1, asked[1]


def at_ends(scene: Scene) -> list[tuple[int, int]]:
    """All partitions, each at its end."""
    return [(one.index, one.tail) for one in scene.partitions]


async def test_a_fetch_evaluates_partitions_with_news_alone() -> None:
    scene = Scene(PARTITIONS)
    for index in range(4):
        assert await scene.fetch(at_ends(scene)) == []
        await scene.arrive(index)
        assert not scene.waits
    asked, before = at_ends(scene), scene.looked
    assert await scene.fetch(asked[3:] + asked[:3]) == []
    assert scene.looked - before <= 2, "the partition of which something else is asked"
    await scene.arrive(6)
    (response,) = scene.world.sent[-1:]
    assert scene.repeated == 4
    assert scene.looked - before <= 4
    assert len(response) > 1_000 + PARTITIONS * 40, "it names all, and has the record"
    scene.end()


async def test_what_is_remembered_counts_against_the_limit_of_sessions() -> None:
    scene = Scene(PARTITIONS, limit=PARTITIONS)
    await scene.fetch(at_ends(scene))
    assert scene.sessions.statistics().partitions == PARTITIONS
    scene.end()
    assert scene.sessions.statistics().partitions == 0


async def test_without_room_all_are_evaluated_each_time() -> None:
    scene = Scene(PARTITIONS, limit=PARTITIONS - 1)
    for _ in range(3):
        await scene.fetch(at_ends(scene), max_wait_ms=0)
    assert scene.repeated == 0
    assert scene.looked >= 3 * PARTITIONS
    assert scene.sessions.statistics().partitions == 0
    scene.end()


async def test_a_fetch_behind_one_that_waits_is_evaluated_on_its_own() -> None:
    scene = Scene(PARTITIONS)
    await scene.fetch(at_ends(scene), max_wait_ms=0)
    await scene.fetch(at_ends(scene))
    assert scene.waits
    assert scene.repeated == 1
    await scene.fetch(at_ends(scene)[1:], max_wait_ms=0)
    assert scene.repeated == 1
    await scene.arrive(0)
    assert not scene.waits
    scene.end()


class Script:
    """The same random events for two scenes, of which the second remembers nothing."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scenes = Scene(2), Scene(NEVER)
        self.offsets = [START] * PARTITIONS
        self.first = 0

    async def step(self) -> None:
        """One event, in both."""
        choice = self.random.random()
        index = self.random.randrange(PARTITIONS)
        if choice < 0.45:
            await self._fetch()
        elif choice < 0.8:
            for one in self.scenes:
                await one.arrive(index)
        elif choice < 0.86:
            for one in self.scenes:
                one.world.clock_s += 2.0
        elif choice < 0.92:
            for one in self.scenes:
                self._move_log_start(one, index)
                await one.turn()
        elif choice < 0.96:
            for one in self.scenes:
                one.world.leave()
                await one.turn()
        else:
            for one in self.scenes:
                self._begin_transaction(one, index)
                await one.turn()

    async def _fetch(self) -> None:
        draw = self.random
        if draw.random() < 0.9:
            self.first += 1
        order = [(self.first + number) % PARTITIONS for number in range(PARTITIONS)]
        if draw.random() < 0.2:
            order = draw.sample(order, draw.randrange(1, PARTITIONS))
        for index in order:  # a client that has read, mostly to the end, and sometimes asks again
            end = self.scenes[0].partitions[index].tail
            if draw.random() < 0.8:
                self.offsets[index] = end
            elif draw.random() < 0.3:
                self.offsets[index] = draw.randrange(START, end + 1)
        fields = {
            "isolation_level": int(draw.random() < 0.1),
            "max_bytes": draw.choice([1 << 20, 1 << 20, 2_500, 1]),
            "min_bytes": draw.choice([1, 1, 1, 3_000]),
            "max_wait_ms": draw.choice([ENDLESS_MS, ENDLESS_MS, 0]),
        }
        asked = [(index, self.offsets[index]) for index in order]
        for one in self.scenes:
            await one.fetch(asked, **fields)

    @staticmethod
    def _move_log_start(scene: Scene, index: int) -> None:
        """The broker has deleted the first records of a partition, and says so."""
        partition = scene.partitions[index]
        state = partition.leader_state
        lease = scene.world.clock_s + 3600
        state.learn(state.epoch, state.high_watermark, state.high_watermark, START // 2, lease)
        for waiting in list(partition.parked):
            waiting.wake(partition)

    @staticmethod
    def _begin_transaction(scene: Scene, index: int) -> None:
        """A record of an open transaction comes; the next record finds it ended."""
        partition = scene.partitions[index]
        state, end = partition.leader_state, partition.tail + 1
        insert(scene.world.cache, partition.slot, build_batch(end - 1, epoch=EPOCH, size=1_000))
        state.learn(EPOCH, end, end - 1, state.log_start_offset, scene.world.clock_s + 3600)
        partition.row.tail = end
        for waiting in list(partition.parked):
            waiting.wake(partition)


def seen(world: World) -> dict[str, Any]:
    """All that must be the same with memory and without."""
    state = world.state()
    counters = {
        name: value
        for name, value in state["counters"].items()
        if "looked" not in name and "repeated" not in name
    }
    names = ("lines", "empty", "replies", "memory")
    sent = b"".join(state["sent"])  # a read may bring two responses
    return {"sent": sent, "counters": counters, **{name: state[name] for name in names}}


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_client_cannot_tell(seed: int) -> None:
    repeated = 0
    for number in range(SCRIPTS):
        script = Script(seed * SCRIPTS + number)
        for _ in range(STEPS):
            await script.step()
        remembering, plain = script.scenes
        assert plain.repeated == 0
        assert seen(remembering.world) == seen(plain.world)
        repeated += remembering.repeated
        for one in script.scenes:
            one.end()
    assert repeated > SCRIPTS * 10


async def test_a_fetch_that_is_not_remembered_ends_what_is() -> None:
    """It names a partition that the ring does not have, and too few to be remembered itself. Those that the Fetch
    behind it names no more have news, which its response does not carry.
    """
    scenes = Scene(PARTITIONS - 1), Scene(NEVER)
    for scene in scenes:
        asked = at_ends(scene)
        fewer = asked[: PARTITIONS - 1]
        await scene.fetch(fewer, max_wait_ms=0)
        await scene.fetch(fewer, max_wait_ms=0)
        await scene.fetch([asked[-1]], max_wait_ms=0)
        for index in (0, 1):
            await scene.arrive(index)
        await scene.fetch(fewer[2:], max_wait_ms=0)
    remembering, plain = scenes
    assert seen(remembering.world) == seen(plain.world)
    assert remembering.repeated == 1
    assert remembering.sessions.statistics().partitions == 0
    for scene in scenes:
        scene.end()


async def test_a_list_of_aborted_transactions_that_was_null_is_shown_again() -> None:
    """A broker's list is null where the first batch does not fit, and empty at the end of the log
    (ReplicaManager.readFromLog, LocalLog.read). The client goes to the end without having read that batch.
    """
    scenes = Scene(PARTITIONS), Scene(NEVER)
    for scene in scenes:
        await scene.fetch(at_ends(scene), max_wait_ms=0, isolation_level=1)
        behind = [(index, end - (index < 2)) for index, end in at_ends(scene)]
        for asked in (behind, at_ends(scene)):
            await scene.fetch(asked, max_wait_ms=0, isolation_level=1, max_bytes=1_500)
    remembering, plain = scenes
    assert remembering.repeated == 2
    assert seen(remembering.world) == seen(plain.world)
    for scene in scenes:
        scene.end()


async def test_a_right_that_the_broker_has_taken_back_is_asked_for() -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    scenes = Scene(PARTITIONS), Scene(NEVER)
    for scene in scenes:
        for _ in range(3):
            await scene.fetch(at_ends(scene), max_wait_ms=0)
        scene.world.link.handlers.authorization.learn(TOPIC_ID, code, scene.world.clock_s)
        assert await scene.fetch(at_ends(scene), max_wait_ms=0) == []
    remembering, plain = scenes
    assert remembering.repeated == 3
    assert seen(remembering.world) == seen(plain.world)
    for scene in scenes:
        scene.end()


async def test_a_record_that_was_acknowledged_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker has acknowledged it, and its HW has not been shown yet: no response may be empty."""
    monkeypatch.setattr(delayed_fetch, "PROOF_WAIT_S", 3600.0)
    scenes = Scene(PARTITIONS), Scene(NEVER)
    for scene in scenes:
        for _ in range(3):
            await scene.fetch(at_ends(scene), max_wait_ms=0)
        asked = at_ends(scene)
        partition = scene.partitions[3]
        partition.row.acknowledged_end = partition.tail + 1
        announce(stand_in(scene.world.broker), partition, partition.tail, False, 0.0)
        assert await scene.fetch(asked, max_wait_ms=0) == []
        await scene.arrive(3)
        assert not scene.waits
    remembering, plain = scenes
    assert remembering.repeated == 3
    assert seen(remembering.world) == seen(plain.world)
    for scene in scenes:
        scene.end()


@pytest.mark.parametrize("step", ["take_request", "build_heads"])
async def test_an_error_ends_what_is_remembered(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Fetch that raises half way goes to the broker. What it has left half changed serves no other."""
    scene = Scene(PARTITIONS)
    for _ in range(2):
        await scene.fetch(at_ends(scene), max_wait_ms=0)
    await scene.fetch(at_ends(scene)[1:], max_wait_ms=0)
    assert scene.repeated == 2

    def fail(*_args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(RepeatedPartitions, step, fail)
        assert await scene.fetch(at_ends(scene), max_wait_ms=0) == []
    assert scene.waits, "the broker has it"
    assert scene.sessions.statistics().partitions == 0
    assert scene.world.link.handlers.repeated.ring is None
    scene.end()
    assert scene.sessions.statistics().partitions == 0


async def test_room_that_was_reserved_is_given_back_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(PARTITIONS)

    def fail(*_args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(repeated, "FetchRing", fail)
        assert await scene.fetch(at_ends(scene), max_wait_ms=0) == []
    assert scene.sessions.statistics().partitions == 0
    scene.end()
    assert scene.sessions.statistics().partitions == 0


async def test_an_open_transaction_is_shown_where_the_hw_has_gone_back() -> None:
    """The HW comes to where it was shown before, as after an unclean election, or in a topic that was made again
    under its name. This time a transaction is open below it.
    """
    scenes = Scene(PARTITIONS), Scene(NEVER)
    for scene in scenes:
        for _ in range(2):
            await scene.fetch(at_ends(scene), max_wait_ms=0, isolation_level=1)
        partition = scene.partitions[3]
        partition.forget_log(-1, is_stored=False)
        partition.transactions.truncate(0)
        lease_s = scene.world.clock_s + 3600
        partition.leader_state.learn(EPOCH, START, START - 2, 0, lease_s)
        partition.wake_parked()
        behind = [(index, end - 2 * (index == 3)) for index, end in at_ends(scene)]
        for _ in range(2):
            await scene.fetch(behind, max_wait_ms=0, isolation_level=1)
    remembering, plain = scenes
    assert remembering.repeated == 3
    assert seen(remembering.world) == seen(plain.world)
    for scene in scenes:
        scene.end()
