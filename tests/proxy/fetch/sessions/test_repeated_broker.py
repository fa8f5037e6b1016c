"""Fetches without a session through a Forebay that remembers them, and through one that does not, before a broker that
answers: transactions, epochs, deleted records, topics made again, rights taken back, and other modes.

Owns the broker's logs, and a random script for both. Must not know which Forebay remembers. Invariant: both clients see
the same bytes, and both count the same.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from protocol import api, header
from protocol.errors import ErrorCode
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from protocol.fetch_build import FetchAnswer, build_request
from protocol.fetch_rows import scan_request
from proxy.config.model import TopicModeConfig
from proxy.fetch import delayed_fetch
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.sessions.repeated import RepeatedFetches
from tests.kit.cache_batches import build_batch, insert
from tests.proxy import answering_broker
from tests.proxy.fetch.sessions.test_repeated import seen
from tests.proxy.followed_partition import EPOCH, LEADERS, TOPIC_ID, known, stand_in
from tests.proxy.transactional_log import Log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.model import CacheMode
    from proxy.partitions.table import Partition

Key = tuple[str, int]
NAMES = ("orders", "bills")
HALF = 0.5
EACH = 5
"""Partitions of each topic; one more is named at times."""
LEAST, NEVER = 4, 1 << 30
SIZE_BYTES = 500
RECORDS = 4
PRODUCERS = (1, 2)
MOST = 1 << 16
LIMITS = SessionLimits(10, 100, 120.0)
SEEDS, SCRIPTS, STEPS = 6, 4, 120
VERSIONS = (4, 6, 7, 10, 11, 12, 13, 16)
FOREVER_S = 3_600.0
ENDLESS_MS = 3_600_000


class Truth:
    """A partition as the broker has it. `epochs`: of each offset's batch."""

    def __init__(self) -> None:
        self.log = Log()
        self.epoch = EPOCH
        self.epochs: list[int] = []
        self.open: set[int] = set()
        for _ in range(RECORDS):
            self.write()

    def write(self, producer: int = -1) -> None:
        if producer < 0:
            self.log.append()
        else:
            self.log.data(producer)
            self.open.add(producer)
        self._replicate()

    def end(self, producer: int, commits: bool) -> None:
        self.open.discard(producer)
        (self.log.commit if commits else self.log.abort)(producer)
        self._replicate()

    def _replicate(self) -> None:
        self.epochs.append(self.epoch)
        self.log.replicate()

    def batch(self, offset: int) -> bytes:
        return build_batch(offset, epoch=self.epochs[offset], size=SIZE_BYTES)

    def read(self, asked: FetchPartition, committed: bool) -> FetchAnswer:
        """The broker's answer, without a bound on the response."""
        log, code = self.log, ErrorCode.NONE
        if asked.current_leader_epoch not in (-1, self.epoch):
            is_old = asked.current_leader_epoch < self.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
        elif not log.start <= asked.fetch_offset <= log.high_watermark:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if code:
            return refusal(asked, code)
        stable = log.last_stable_offset()
        end = stable if committed else log.high_watermark
        most = max(asked.max_bytes // SIZE_BYTES, 1)
        end = max(min(end, asked.fetch_offset + most), asked.fetch_offset)
        records = b"".join(map(self.batch, range(asked.fetch_offset, end)))
        aborted = None
        if committed:
            found = log.aborted(asked.fetch_offset, end)
            aborted = [(one.producer_id, one.first) for one in found]
        views = (records,) if records else ()
        offsets = log.high_watermark, stable, log.start
        return FetchAnswer(*asked[:2], 0, *offsets, aborted, views, len(records))


def refusal(asked: FetchPartition, code: int) -> FetchAnswer:
    return FetchAnswer(*asked[:2], code, -1, -1, -1, (), (), 0)


class Broker:
    """The topics of the broker: id and partitions of each by name."""

    def __init__(self) -> None:
        self.made = 0
        self.ids = {"orders": TOPIC_ID, "bills": b"b" * 16}
        self.logs: dict[Key, Truth] = {}
        for name in NAMES:
            self._fill(name)

    def _fill(self, name: str) -> None:
        for index in range(EACH + 1):
            self.logs[name, index] = Truth()

    def make_again(self, name: str) -> None:
        """Delete a topic, and make it again."""
        self.made += 1
        self.ids[name] = self.made.to_bytes(16)
        self._fill(name)

    def answer(self, frame: bytes) -> tuple[bool, list[FetchAnswer]]:
        """Whether a Fetch may wait, and what the broker says to it now."""
        scanned = scan_request(frame, MOST)
        assert scanned is not None
        head, request = scanned
        names: dict[str | bytes, str] = {name: name for name in NAMES}
        if head.api_version >= TOPIC_IDS_FROM:
            names = {topic_id: name for name, topic_id in self.ids.items()}
        answers = []
        for asked in request.partitions:
            name = names.get(asked.topic)
            truth = None if name is None else self.logs.get((name, asked.partition))
            if truth is None:
                answers.append(refusal(asked, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                answers.append(truth.read(asked, request.isolation_level == 1))
        return request.max_wait_ms > 0, answers


class Scene(answering_broker.Scene):
    """One Forebay with its client. `least`: fewest partitions of a Fetch that is remembered."""

    def __init__(self, truths: Broker, least: int) -> None:
        super().__init__(sizes=(1_000,), room_bytes=1 << 20)
        self.truths = truths
        broker = self.broker
        cache = broker.config.cache.model_copy(update={"hole_wait_s": FOREVER_S})
        broker.configure(broker.config.model_copy(update={"cache": cache}))
        broker.own_connections = stand_in(SimpleNamespace(usable=True, link=lambda _purpose: None))
        broker.sessions = SessionCache(LIMITS, Random(1))
        self.link.handlers.repeated = RepeatedFetches(broker.sessions, least)
        broker.forget_topic(TOPIC_ID)
        for name in NAMES:
            self.learn_topic(name)

    def learn_topic(self, name: str) -> None:
        """Metadata names the topic's id."""
        broker, topic_id = self.broker, self.truths.ids[name]
        replaced = broker.topics.learn(name, topic_id, LEADERS)
        if replaced is not None:
            broker.forget_topic(replaced.id)
        known(broker.topics.find(topic_id)).learn_policy(False)
        for index in range(EACH + 1):
            self.poll((name, index))
        if replaced is None:
            for topic in (name, topic_id):
                self.link.handlers.authorization.learn(topic, 0, self.clock_s)

    def find(self, key: Key) -> Partition:
        topic = known(self.broker.topics.find(self.truths.ids[key[0]]))
        return known(self.broker.partitions.follow(topic, key[1]))

    def poll(self, key: Key) -> None:
        """The replica fetcher learns what the broker has, as `partitions.update` does, and wakes who waits."""
        partition, truth = self.find(key), self.truths.logs[key]
        log, state = truth.log, partition.leader_state
        before = state.epoch
        state.suggest(truth.epoch, True)
        lease_s = self.clock_s + FOREVER_S
        offsets = log.high_watermark, log.last_stable_offset(), log.start
        state.learn(truth.epoch, *offsets, lease_s)
        if before != truth.epoch:
            partition.enter_epoch(before >= 0, partition.has_stored(self.cache))
        partition.confirm_log(is_stored=False)
        if log.start > partition.log_start_offset:
            partition.advance_start(log.start)
            self.cache.advance_start(partition.slot, log.start)
        if 0 <= partition.tail < log.end:
            first = max(partition.tail, log.start)
            for offset in range(first, log.end):
                insert(self.cache, partition.slot, truth.batch(offset))
            partition.transactions.observed(*log.read(first, log.end))
            partition.row.tail = log.end
        partition.transactions.shown(*offsets, self.clock_s)
        partition.settle(False, self.clock_s)
        partition.open_polls = 1
        partition.wake_parked()

    def forget(self, key: Key) -> None:
        """It was idle, or beyond a limit. Another Fetch follows it again."""
        self.broker.forget(self.find(key), "idle")
        self.poll(key)

    async def settle(self, *, is_late: bool = False) -> None:
        """Until the broker has answered all. It waits with a Fetch that may wait, and that finds nothing, until
        `is_late`: then it answers all that it has been asked so far.
        """
        await self.turn()
        late = len(self.asked) if is_late else 0
        while self.asked:
            assert header.peek_request(self.asked[0]).api_key == api.FETCH
            may_wait, answers = self.truths.answer(self.asked[0])
            if may_wait and not late and not any(map(is_news, answers)):
                break
            self.answer_fetch(*answers)
            await self.turn()
            late = max(0, late - 1)


def is_news(one: FetchAnswer) -> bool:
    return one.records_bytes > 0 or one.error_code != ErrorCode.NONE


class Script:
    """The same random events for two scenes, of which the second remembers nothing."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        self.truths = Broker()
        self.scenes = Scene(self.truths, LEAST), Scene(self.truths, NEVER)
        self.version = draw.choice(VERSIONS)
        self.isolation = draw.randrange(2)
        self.names_epochs = draw.random() < 0.5
        self.keys: list[Key] = [(name, index) for name in NAMES for index in range(EACH)]
        if draw.random() < 0.5:
            draw.shuffle(self.keys)
        self.offsets = dict.fromkeys(self.truths.logs, RECORDS)
        self.ids = dict(self.truths.ids)
        self.number = self.first = 0

    async def step(self) -> None:
        """One event, in both."""
        draw = self.draw
        steps = [
            (self.fetch, 45),
            (self.write, 25),
            (self.poll_all, 4),
            (self.delete_records, 4),
            (self.elect, 2),
            (self.forget, 3),
            (self.make_again, 1),
            (self.withdraw, 2),
            (self.switch, 2),
            (self.leave, 6),
            (self.wait, 3),
            (self.limit, 1),
        ]
        (step,) = draw.choices([one for one, _ in steps], [weight for _, weight in steps])
        step()
        for scene in self.scenes:
            await scene.settle(is_late=step == self.wait)

    def key(self) -> Key:
        return self.draw.choice(list(self.truths.logs))

    def write(self) -> None:
        """Records, transactional ones, or a marker, which a poll shows."""
        key, draw = self.key(), self.draw
        truth = self.truths.logs[key]
        producer = draw.choice((-1, -1, *PRODUCERS))
        if producer in truth.open and draw.random() < 0.6:
            truth.end(producer, draw.random() < 0.4)
        else:
            truth.write(producer)
        for scene in self.scenes:
            scene.poll(key)

    def poll_all(self) -> None:
        for key in self.truths.logs:
            for scene in self.scenes:
                scene.poll(key)

    def delete_records(self) -> None:
        """DeleteRecords, or retention."""
        key = self.key()
        log = self.truths.logs[key].log
        log.start = self.draw.randint(log.start, log.last_stable_offset())
        for scene in self.scenes:
            scene.poll(key)

    def elect(self) -> None:
        key = self.key()
        self.truths.logs[key].epoch += 1
        for scene in self.scenes:
            scene.poll(key)

    def forget(self) -> None:
        key = self.key()
        for scene in self.scenes:
            scene.forget(key)

    def make_again(self) -> None:
        name = self.draw.choice(NAMES)
        self.truths.make_again(name)
        for scene in self.scenes:
            scene.learn_topic(name)

    def withdraw(self) -> None:
        """The broker takes back a right, and grants it again when it is asked."""
        name = self.draw.choice(NAMES)
        topic = name if self.version < TOPIC_IDS_FROM else self.truths.ids[name]
        for scene in self.scenes:
            rights = scene.link.handlers.authorization
            rights.learn(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED, scene.clock_s)

    def switch(self) -> None:
        """Another `cache.mode`, or another mode of one topic."""
        modes: tuple[CacheMode, ...] = "serve", "serve", "observe", "off"
        changed: dict[str, object] = {"mode": self.draw.choice(modes), "topic_modes": ()}
        if self.draw.random() < HALF and not self.is_waiting:
            entry = TopicModeConfig(pattern=self.draw.choice(NAMES), mode=self.draw.choice(modes))
            changed = {"mode": "serve", "topic_modes": (entry,)}
        for scene in self.scenes:
            config = scene.broker.config
            cache = config.cache.model_copy(update=changed)
            scene.broker.configure(config.model_copy(update={"cache": cache}))
            scene.link.adopt_mode()
            scene.broker.purgatory.evaluate_all()

    @property
    def is_waiting(self) -> bool:
        return any(scene.link.replies.places for scene in self.scenes)

    def leave(self) -> None:
        for scene in self.scenes:
            scene.leave()

    def wait(self) -> None:
        seconds = self.draw.choice([1.0, 11.0])
        for scene in self.scenes:
            scene.clock_s += seconds
            scene.broker.purgatory.tick(scene.clock_s)
            rights = scene.link.handlers.authorization  # a renewal is the clock's
            for topic in (*NAMES, *self.truths.ids.values()):
                if rights.allows(topic, scene.clock_s):
                    rights.learn(topic, 0, scene.clock_s)

    def limit(self) -> None:
        limits = LIMITS._replace(partitions=self.draw.choice([EACH, 100, 100]))
        for scene in self.scenes:
            scene.broker.sessions.set_limits(limits)

    def fetch(self) -> None:
        """One Fetch, if none waits: two share the miss fetch of a partition, and the loop decides whose it is."""
        if any(scene.link.replies.places for scene in self.scenes):
            self.leave()
            return
        frame = self.build()
        for scene in self.scenes:
            scene.receive(frame)

    def build(self) -> bytes:
        draw = self.draw
        self.first += draw.random() < 0.9
        at = self.first % len(self.keys)
        keys = self.keys[at:] + self.keys[:at]
        kind = draw.random()
        if kind < 0.2:
            keys = keys[: draw.randrange(len(keys))]
        elif kind < 0.25:
            keys = [*keys[: draw.randrange(len(keys))], (draw.choice(NAMES), EACH)]
        elif kind < 0.27:
            keys = [*keys, keys[0]]
        elif kind < 0.29:
            keys = draw.sample(keys, len(keys))
        if draw.random() < 0.8:
            self.ids = dict(self.truths.ids)
        for key in self.truths.logs:
            self.move(key)
        named = list(map(self.ask, keys))
        self.number += 1
        return build_request(
            self.version,
            self.number,
            "client",
            max_wait_ms=draw.choice([ENDLESS_MS, ENDLESS_MS, 0]),
            min_bytes=draw.choice([1, 1, 1, 1_200]),
            max_bytes=draw.choice([MOST, MOST, 1_300, 700, 1]),
            isolation_level=self.isolation ^ (draw.random() < 0.03),
            session_id=0,
            session_epoch=0 if draw.random() < 0.02 else -1,
            partitions=named,
            forgotten=(),
            rack_id="",
        )

    def move(self, key: Key) -> None:
        """The client has mostly read to the end, and reads again at times."""
        draw, log = self.draw, self.truths.logs[key].log
        if draw.random() < 0.85:
            self.offsets[key] = log.high_watermark
        elif draw.random() < 0.5:
            self.offsets[key] = draw.randint(log.start, log.high_watermark)

    def ask(self, key: Key) -> FetchPartition:
        draw, truth = self.draw, self.truths.logs[key]
        epoch = truth.epoch - (draw.random() < 0.01) if self.names_epochs else -1
        topic = key[0] if self.version < TOPIC_IDS_FROM else self.ids[key[0]]
        fetched = truth.epoch if self.names_epochs and draw.random() < 0.3 else -1
        most = draw.choice([MOST, MOST, MOST, 1_000])
        return FetchPartition(topic, key[1], epoch, self.offsets[key], fetched, -1, most)


def shown(scene: Scene) -> dict[str, object]:
    """All that must be the same. A miss fetch of a partition that has come to its end is dropped sooner where
    partitions are remembered, so that its bytes are not compared, nor the broker's errors to such reads.
    """
    found = seen(scene)
    del found["memory"]
    counters = found["counters"]
    return found | {"counters": {k: v for k, v in counters.items() if not k.endswith(".errors")}}


def list_waiters(scenes: Sequence[Scene]) -> list[object]:
    return [waiter for scene in scenes for one in scene.broker.partitions for waiter in one.parked]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_client_cannot_tell(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_fetch, "PROOF_WAIT_S", FOREVER_S)
    repeated = 0
    for number in range(SCRIPTS):
        script = Script(seed * SCRIPTS + number)
        remembering, plain = script.scenes
        for _ in range(STEPS):
            await script.step()
            assert shown(remembering) == shown(plain)
        assert plain.broker.counters.fetch.repeated == 0
        repeated += remembering.broker.counters.fetch.repeated
        for scene in script.scenes:
            scene.end()
            await scene.turn()
        assert remembering.broker.sessions.statistics() == plain.broker.sessions.statistics()
        assert not list_waiters(script.scenes)
    assert repeated > SCRIPTS * 5
