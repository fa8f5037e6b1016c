"""Idle partitions of a session are not evaluated; each change that may concern their response wakes them."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from protocol.fetch import FetchPartition
from proxy.accounting.counters import Counters
from proxy.fetch.purgatory import Purgatory
from proxy.fetch.sessions.cache import CachedPartition, SessionCache, SessionLimits
from proxy.fetch.sessions.context import Kind
from proxy.fetch.sessions.idle_partitions import (
    EVALUATE_ALL_S,
    IdlePartitions,
    ReaderIdentity,
    find_idle_partitions,
)
from proxy.fetch.wakeups import WakeupBatch
from proxy.partitions.readable import PartitionStatus, ReadState
from proxy.partitions.table import Partition
from proxy.partitions.topics import Topic
from tests.proxy.followed_partition import known, stand_in

COUNT = 5
PERIOD_S = 60.0


class Scene:
    """A session of partitions that all stand at their tails, where the client has been told everything."""

    def __init__(self, period_s=PERIOD_S):
        topic = Topic(bytes(16), "t")
        self.partitions = [Partition(topic, index, index, 10) for index in range(COUNT)]
        self.statuses = {}
        self.covered: list[int] = []
        self.used: list[object] = []
        broker = SimpleNamespace(
            keeps=True,
            config=SimpleNamespace(cache=SimpleNamespace(authorize_every_s=period_s)),
            counters=Counters(),
            purgatory=Purgatory(10),
            wakeups=WakeupBatch(),
            attempt=lambda action, _doing: action(),
            replica_fetcher=SimpleNamespace(
                cover=lambda partition, link: self.covered.append(partition.index)
            ),
            own_connections=SimpleNamespace(usable=True),
        )
        self.link: Link = Link(
            broker,
            SimpleNamespace(
                used=lambda *args: self.used.append(args),
                rights=SimpleNamespace(version=0, until={"t": 1e9}),
                ends_at=1e9,
                allows=lambda _topic, now: now < 1e9,
            ),
            Reads(),
        )
        kept: dict[tuple[str | bytes, int], CachedPartition] = {}
        for partition in self.partitions:
            partition.leader_state.learn(1, 10, 10, 0, 99.0)
            partition.open_polls = 1
            kept["t", partition.index] = CachedPartition(
                FetchPartition("t", partition.index, -1, 10, -1, -1, 1000), 10, 0
            )
        self.table = SessionCache(SessionLimits(10, 100, 120.0), Random(1))
        self.session = known(self.table.create("owner", False, kept, 0.0))
        self.idle_partitions = IdlePartitions(
            self.session.partitions, ReaderIdentity(stand_in(self.link), 0, 12), 0.0
        )
        self.session.partitions.track(self.idle_partitions)

    def evaluate(self, link, partitions, isolation_level, version, now):
        link.broker.counters.fetch.looked_partitions += len(partitions)
        return [
            PartitionStatus(
                asked,
                self.partitions[asked.partition],
                self.statuses.get(asked.partition, ReadState.AT_END),
                "",
                10,
            )
            for asked in partitions
        ]

    def look(self, now=0.0):
        """Which are looked at and stay lively, and how many were looked at."""
        before = self.link.broker.counters.fetch.looked_partitions
        dirty = [one.asked.partition for one in self.idle_partitions.evaluate(now)]
        return dirty, self.link.broker.counters.fetch.looked_partitions - before

    def wake(self, index):
        for waiter in list(self.partitions[index].parked):
            waiter.wake(self.partitions[index])

    def marks(self):
        return [len(partition.parked) for partition in self.partitions]


class Link:
    def __init__(self, broker, authorization, reads):
        self.broker, self.authorization, self.reads = broker, authorization, reads
        self.handlers = self


class Reads:
    """One read beside; `drop_asked` notes what for."""

    def __init__(self):
        self.dropped = []

    def __len__(self):
        return 1

    def drop_asked(self, asked, _waiter):
        self.dropped += asked


@pytest.fixture
def scene(monkeypatch):
    found = Scene()
    monkeypatch.setattr(
        "proxy.fetch.sessions.idle_partitions.evaluate", lambda *args: found.evaluate(*args)
    )
    return found


def test_idle_partition_is_not_evaluated_again(scene):
    assert scene.look() == ([], COUNT)
    assert scene.look() == ([], 0)
    assert (scene.idle_partitions.clean_count, scene.marks()) == (COUNT, [1] * COUNT)
    assert len(scene.used) == COUNT, "the client's right is renewed as for a hit"
    assert len(scene.link.reads.dropped) == COUNT, "what was read of it before is of no use"


def test_all_are_evaluated_once_after_a_right_was_taken_back(scene):
    scene.look()
    scene.link.authorization.rights.version += 1
    assert scene.look() == ([], COUNT)
    assert scene.look() == ([], 0)


def test_partition_with_records_that_were_acknowledged_is_evaluated_until_they_are_shown(scene):
    scene.look()
    partition = scene.partitions[2]
    partition.row.acknowledged_end = 11
    for waiter in partition.parked:
        waiter.note_acknowledged(partition)
    assert scene.covered == [], "nobody is woken"
    assert scene.look() == ([2], 1)
    assert scene.look() == ([2], 1)
    partition.row.acknowledged_end = 10
    assert scene.look() == ([], 1)
    assert scene.look() == ([], 0)


def test_woken_partition_is_evaluated_until_idle(scene):
    scene.look()
    scene.statuses[3] = ReadState.READABLE
    scene.wake(3)
    assert scene.marks() == [1, 1, 1, 0, 1]
    assert scene.look() == ([3], 1)
    assert scene.look() == ([3], 1)
    del scene.statuses[3]
    assert scene.look() == ([], 1)
    assert scene.look() == ([], 0)


@pytest.mark.parametrize(
    "what", ["hw", "log-start", "uncovered", "refused", "no-own-link", "not-at-the-tail"]
)
def test_partition_with_news_is_not_idle(scene, what):
    partition = scene.partitions[2]
    if what == "hw":
        scene.session.partitions.by_key["t", 2].high_watermark = 9
    elif what == "log-start":
        scene.session.partitions.by_key["t", 2].log_start_offset = -1
    elif what == "uncovered":
        partition.open_polls = 0
    elif what == "refused":
        partition.back_off.refused_until = float("inf")
    elif what == "no-own-link":
        scene.link.broker.own_connections.usable = False
    else:
        scene.statuses[2] = ReadState.UNCONFIRMED
    assert scene.look()[0] == (list(range(COUNT)) if what == "no-own-link" else [2])


def test_named_or_forgotten_partition_is_not_idle(scene):
    scene.look()
    scene.session.partitions.put([FetchPartition("t", 1, -1, 7, -1, -1, 1000)])
    scene.statuses[1] = ReadState.READABLE
    assert scene.look() == ([1], 1)
    assert scene.session.partitions.forget(("t", 4))
    assert scene.marks() == [1, 0, 1, 1, 0]
    assert scene.session.partitions.forget(("t", 1))
    assert scene.look() == ([], 0)


def test_evaluated_partitions_keep_the_sessions_order(scene):
    scene.statuses = dict.fromkeys((0, 2, 4), ReadState.READABLE)
    assert scene.look()[0] == [0, 2, 4]
    scene.session.partitions.move_to_end([("t", 0)])
    assert scene.look()[0] == [2, 4, 0]


def test_all_are_looked_at_now_and_then(scene):
    scene.look()
    assert scene.look(EVALUATE_ALL_S - 0.1) == ([], 0)
    assert scene.look(EVALUATE_ALL_S) == ([], COUNT)
    assert scene.look(EVALUATE_ALL_S + 0.1) == ([], 0)


def test_rights_that_are_short_are_renewed_in_time(monkeypatch):
    scene = Scene(period_s=4.0)
    monkeypatch.setattr("proxy.fetch.sessions.idle_partitions.evaluate", scene.evaluate)
    scene.look()
    used = len(scene.used)
    assert scene.look(0.4) == ([], 0) and len(scene.used) == used
    assert scene.look(0.5) == ([], 0) and len(scene.used) == used + 1, "the topic, once"
    assert scene.look(0.9) == ([], 0) and len(scene.used) == used + 1
    assert scene.look(1.0) == ([], 0) and len(scene.used) == used + 2


@pytest.mark.parametrize("ends", ["right", "session"])
def test_all_are_evaluated_when_a_right_or_its_session_has_ended(scene, ends):
    """Nothing is woken by that: the client would be told of no error until the next look at all."""
    authorization = scene.link.authorization
    authorization.allows = lambda _topic, now: now < 3.0
    if ends == "right":
        authorization.rights.until["t"] = 3.0
    else:
        authorization.ends_at = 3.0
    scene.look()
    assert scene.look(2.9) == ([], 0)
    assert scene.look(3.0) == ([], COUNT)


def test_news_wakes_the_delayed_fetch_once(scene):
    class Fetch:
        status = 0

        def evaluate_again(self):
            self.status += 1

    async def play():
        scene.look()
        scene.idle_partitions.fetch = Fetch()
        scene.wake(0)
        scene.wake(3)
        await asyncio.sleep(0)
        return scene.idle_partitions.fetch.status

    assert asyncio.run(play()) == 1
    assert scene.covered == []


def test_news_is_evaluated_after_the_whole_response(scene):
    status = []
    scene.look()
    scene.idle_partitions.fetch = SimpleNamespace(
        evaluate_again=lambda: status.append(scene.look()[1])
    )
    broker = scene.link.broker
    broker.wakeups.gather()
    scene.wake(0)
    scene.wake(3)
    assert status == []
    broker.wakeups.look(broker.attempt)
    assert status == [2], "without a turn of the loop"


def test_news_between_polls_keeps_the_partition_followed(scene):
    scene.look()
    scene.wake(3)
    assert scene.covered == [3]


@pytest.mark.parametrize("how", ["removed", "closed"])
def test_ended_session_or_client_leaves_no_mark(scene, how):
    scene.look()
    if how == "removed":
        scene.table.remove(scene.session)
    else:
        scene.idle_partitions.close()
    assert (
        scene.marks(),
        scene.session.partitions.tracker,
        scene.link.broker.purgatory._idle_partitions,
    ) == (
        [0] * COUNT,
        None,
        {},
    )
    assert scene.look() == (list(range(COUNT)), COUNT)
    assert scene.marks() == [0] * COUNT


def test_removed_session_makes_its_fetch_evaluate_all(scene):
    wakeups = []

    async def play():
        scene.look()
        scene.idle_partitions.fetch = SimpleNamespace(
            evaluate_again=lambda: wakeups.append(scene.look()[0])
        )
        scene.table.remove(scene.session)
        await asyncio.sleep(0)

    asyncio.run(play())
    assert wakeups == [list(range(COUNT))]


def record(scene, *, link=None, isolation_level=0, version=12, kind=Kind.INCREMENTAL):
    return SimpleNamespace(
        context=SimpleNamespace(kind=kind, session=scene.session),
        repeated=None,
        link=link or scene.link,
        request=SimpleNamespace(isolation_level=isolation_level),
        head=SimpleNamespace(api_version=version),
    )


def test_session_serves_one_client_version_and_level(scene):
    scene.look()
    assert find_idle_partitions(record(scene), 0.0) is scene.idle_partitions
    assert find_idle_partitions(record(scene, kind=Kind.FULL), 0.0) is None
    for other in ({"isolation_level": 1}, {"version": 13}, {"link": Scene().link}):
        before = known(scene.session.partitions.tracker)
        after = find_idle_partitions(record(scene, **other), 0.0)
        assert before.closed and not known(after).closed
        assert scene.session.partitions.tracker is after
    assert scene.marks() == [0] * COUNT
