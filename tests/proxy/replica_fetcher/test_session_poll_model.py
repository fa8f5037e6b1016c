"""Random scripts of a poll in a session, against a broker with sessions as Kafka's (FetchSession.scala).

Owns the model of the broker: partitions with epoch, HW and log start, sessions with what they last showed. It must not
know how the poll decides. Invariant that every script checks: a lease until second t rests on a response that the
broker made after t - LEASE_UNTIL_S. It has been in the known epoch since then. The known HW and log start offset are at
least those of that second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer
from proxy.partitions.update import observe
from proxy.replica_fetcher.poll import plan_question, scan_poll
from proxy.replica_fetcher.session_poll import SessionPoll
from tests.kit.examples import examples
from tests.proxy.followed_partition import (
    EPOCH,
    LEASE_UNTIL_S,
    TOPIC_ID,
    QuietBroker,
    known,
    stand_in,
)
from tests.proxy.replica_fetcher.poll_connection import PlayedLink, build_answer

if TYPE_CHECKING:
    from protocol.fetch import FetchPartition, FetchRequest
    from proxy.partitions.table import Partition

PARTITIONS = 4
STEPS = 120
SCRIPTS = examples(120)
PORTION = 20
ROUNDING_S = 1e-6


@dataclass
class Truth:
    """A partition at the broker; `past`: the same at earlier times, oldest first."""

    epoch: int = EPOCH
    high_watermark: int = 20
    log_start: int = 0
    is_failing: bool = False
    past: list[tuple[float, int, int, int, bool]] = field(default_factory=list)

    def note(self, now: float) -> None:
        """Remember what holds from now on."""
        state = self.epoch, self.high_watermark, self.log_start, self.is_failing
        self.past.append((now, *state))

    def since(self, second: float) -> list[tuple[float, int, int, int, bool]]:
        """All that has held at that second or later."""
        second += ROUNDING_S
        earlier = [one for one in self.past if one[0] <= second]
        return earlier[-1:] + [one for one in self.past if one[0] > second]


@dataclass
class Kept:
    """A partition in a session (CachedPartition)."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start: int = -1


class ModelBroker:
    """Reads every partition of a session for each response, and leaves out those without news."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.truths = [Truth() for _ in range(PARTITIONS)]
        self.sessions: dict[int, dict[int, Kept]] = {}
        self.epochs: dict[int, int] = {}
        self.has_room = True

    def evict(self) -> None:
        """It has lost all sessions."""
        self.sessions, self.epochs = {}, {}

    def read(self, asked: FetchPartition) -> FetchAnswer:
        """What a read says of one partition."""
        truth, error_code = self.truths[asked.partition], ErrorCode.NONE
        if truth.is_failing:
            error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked.current_leader_epoch < truth.epoch:
            error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.current_leader_epoch > truth.epoch:
            error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
        if error_code:
            return FetchAnswer(TOPIC_ID, asked.partition, error_code, -1, -1, -1, None, (), 0)
        end, start = truth.high_watermark, truth.log_start
        return FetchAnswer(TOPIC_ID, asked.partition, 0, end, end, start, None, (), 0)

    def answer(self, request: FetchRequest) -> bytes:
        """FetchManager.newContext, and the response of its context."""
        number, epoch = request.session_id, request.session_epoch
        if epoch == 0:
            return self._answer_full(request)
        if number not in self.sessions:
            return build_answer(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
        if self.epochs[number] != epoch:
            return build_answer(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=0)
        kept = self.sessions[number]
        for asked in request.partitions:
            before = kept.get(asked.partition, Kept(asked))
            kept[asked.partition] = Kept(asked, before.high_watermark, before.log_start)
        for _topic, index in request.forgotten:
            kept.pop(index, None)
        assert kept, "the broker would end the session"
        self.epochs[number] += 1
        if self.rng.random() < 0.1:
            return build_answer(session_id=number, throttle_time_ms=5)
        said = [one for one in kept.values() if self._has_news(one)]
        return build_answer(*(self.read(one.asked) for one in said), session_id=number)

    def _answer_full(self, request: FetchRequest) -> bytes:
        self.sessions.pop(request.session_id, None)
        answers = [self.read(asked) for asked in request.partitions]
        if self.rng.random() < 0.1:
            return build_answer(session_id=0, throttle_time_ms=5)
        if not self.has_room:
            return build_answer(*answers, session_id=0)
        number = self.rng.randrange(1, 1 << 31)
        self.sessions[number] = {
            asked.partition: Kept(asked, said.high_watermark, said.log_start_offset)
            for asked, said in zip(request.partitions, answers, strict=True)
        }
        self.epochs[number] = 1
        return build_answer(*answers, session_id=number)

    def _has_news(self, kept: Kept) -> bool:
        """CachedPartition.maybeUpdateResponseData."""
        said = self.read(kept.asked)
        has_news = bool(said.error_code) or (kept.high_watermark, kept.log_start) != (
            said.high_watermark,
            said.log_start_offset,
        )
        kept.high_watermark, kept.log_start = said.high_watermark, said.log_start_offset
        if said.error_code:
            kept.high_watermark = -1
        return has_news


class Script:
    """A poll over partitions that come and go, the broker, and another of Forebay's polls (`proofs`)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = ModelBroker(self.rng)
        self.broker = QuietBroker()
        self.link = PlayedLink()
        self.poll = SessionPoll(stand_in(self.broker), "watch", 0.3)
        self.broker.replica_fetcher.changed = self.poll.mark
        self.broker.replica_fetcher.forget = self.poll.discard
        self.response: bytes | None = None
        self.proofs: list[tuple[Partition, FetchPartition, bytes, float]] = []
        self.leases = 0
        self.actions = [self.send] * 6 + [self.read] * 6 + [self.deliver] * 6
        self.actions += [self.grow] * 4 + [self.prove] * 2 + [self.learn_proof] * 3
        self.actions += [self.delete, self.elect, self.fail, self.revoke, self.leave, self.sweep]
        self.actions += [self.replace, self.lose, self.evict, self.fill]
        for index in range(PARTITIONS):
            self.model.truths[index].note(0.0)
            self.follow(index)

    def follow(self, index: int) -> None:
        """The poll gets a partition whose epoch Metadata has named."""
        partition = self.broker.follow(index)
        partition.leader_state.suggest(self.model.truths[index].epoch, self.rng.random() < 0.8)
        partition.probe_offset = 20
        self.poll.add(partition)

    def any(self) -> Partition:
        return self.rng.choice(list(self.broker.partitions))

    # -- what happens --------------------------------------------------------------------------------------

    def send(self) -> None:
        if self.poll.send(stand_in(self.link)):
            self.response = None

    def read(self) -> None:
        """The broker makes its response now; it arrives later."""
        if self.poll.in_flight and self.response is None:
            self.response = self.model.answer(self.link.requests[-1])

    def deliver(self) -> None:
        if self.poll.in_flight and self.response is not None:
            answer, self.response = self.response, None
            self.link.on_answer(answer)

    def lose(self) -> None:
        if self.poll.in_flight:
            self.response = None
            self.link.on_answer(None)
            self.link = PlayedLink()

    def prove(self) -> None:
        """Another poll asks, and the broker reads at once."""
        partition = self.any()
        asked = plan_question(stand_in(self.broker), partition, True)
        if asked is not None:
            answer = build_answer(self.model.read(asked), session_id=0)
            self.proofs.append((partition, asked, answer, self.broker.clock_s))

    def learn_proof(self) -> None:
        """Answers of several connections cross."""
        if self.proofs:
            partition, asked, answer, at = self.proofs.pop(self.rng.randrange(len(self.proofs)))
            response = scan_poll(answer)
            assert response is not None
            observe(stand_in(self.broker), {partition: asked}, response, answer, at, "proof")

    def grow(self) -> None:
        self.rng.choice(self.model.truths).high_watermark += 1

    def delete(self) -> None:
        truth = self.rng.choice(self.model.truths)
        truth.log_start = min(truth.log_start + 1, truth.high_watermark)

    def elect(self) -> None:
        """A new epoch, which Metadata names sooner, later or never; the log may be as it was."""
        index = self.rng.randrange(PARTITIONS)
        self.model.truths[index].epoch += 1
        partition = self.broker.partitions.find(known(self.broker.topics.find(TOPIC_ID)), index)
        if partition is not None and self.rng.random() < 0.7:
            partition.leader_state.suggest(self.model.truths[index].epoch, True)
            self.poll.mark(partition)

    def fail(self) -> None:
        for truth in self.model.truths:
            truth.is_failing = not truth.is_failing and self.rng.random() < 0.3

    def revoke(self) -> None:
        self.any().leader_state.revoke()

    def leave(self) -> None:
        """A partition leaves the poll, or returns."""
        partition = self.any()
        (self.poll.discard if partition in self.poll.members else self.poll.add)(partition)

    def replace(self) -> None:
        """A partition is forgotten, and followed anew."""
        partition = self.any()
        self.poll.discard(partition)
        self.broker.partitions.forget(partition)
        self.follow(partition.index)

    def sweep(self) -> None:
        for partition in self.broker.partitions:
            epoch = self.model.truths[partition.index].epoch
            partition.leader_state.suggest(epoch, True)
        self.poll.mark_all()

    def evict(self) -> None:
        self.model.evict()

    def fill(self) -> None:
        self.model.has_room = not self.model.has_room

    # -- what must hold ------------------------------------------------------------------------------------

    def step(self) -> None:
        self.rng.choice(self.actions)()
        for truth in self.model.truths:
            truth.note(self.broker.clock_s)
        self.check()
        self.broker.clock_s += self.rng.choice((0.01, 0.01, 0.1, 0.3))

    def check(self) -> None:
        for partition in self.broker.partitions:
            leader_state = partition.leader_state
            if not leader_state.has_lease(self.broker.clock_s):
                continue
            self.leases += 1
            sent_at = leader_state.lease.until - LEASE_UNTIL_S
            held = self.model.truths[partition.index].since(sent_at)
            assert any(
                epoch == leader_state.epoch and not is_failing
                for _, epoch, _, _, is_failing in held
            ), (partition, sent_at, held)
            if leader_state.high_watermark >= 0:
                assert leader_state.high_watermark >= held[0][2], (partition, sent_at, held)
                assert leader_state.log_start_offset >= held[0][3], (partition, sent_at, held)


@pytest.mark.parametrize("first", range(0, SCRIPTS, PORTION))
def test_lease_matches_the_brokers_state_in_time(first: int) -> None:
    leases = 0
    for seed in range(first, first + PORTION):
        script = Script(seed)
        for _ in range(STEPS):
            script.step()
        leases += script.leases
    assert leases > PORTION * STEPS / 10
