"""Rounds with played probes: turns, failures, and opening anew."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar

import pytest

from proxy.canary import rounds
from proxy.canary.outcome import Latency, Step, StepFailed
from proxy.canary.plan import CanaryPlan, LatencyBar, Side
from proxy.canary.rounds import RECORD_BYTES, Canary
from proxy.config.model import ListenerConfig
from proxy.config.units import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from proxy.broker_client import Endpoint

ENTRY = ListenerConfig(listen=Address("", 1), upstream=Address("b", 2))
SIDES = Side("through", Address("f", 1), ENTRY), Side("direct", Address("b", 2), ENTRY)
PLAN = CanaryPlan(*SIDES, "canary", 1.0, 0.05, LatencyBar(2.0, 0.01))
QUICK = Latency(0.001, 0.002)


class PlayedProbe:
    """`made`: all, in order; `calls`: what they were asked; `fails`: the step in which a host's next call fails."""

    made: ClassVar[list[PlayedProbe]] = []
    calls: ClassVar[list[tuple[str, str]]] = []
    records: ClassVar[list[bytes]] = []
    fails: ClassVar[dict[str, Step]] = {}
    hang: ClassVar[set[str]] = set()

    def __init__(self, endpoint: Endpoint, topic: str, timeout_s: float) -> None:
        assert (topic, timeout_s) == ("canary", 0.05)
        self.host = endpoint.address.host
        self.is_closed = False
        self.made.append(self)

    async def open(self, first: bytes) -> None:
        await self._do("open", first)

    async def measure(self, value: bytes) -> Latency:
        await self._do("measure", value)
        return QUICK

    async def close(self) -> None:
        if self.host in self.hang:
            await asyncio.Event().wait()
        self.is_closed = True

    async def _do(self, call: str, record: bytes) -> None:
        self.calls.append((self.host, call))
        self.records.append(record)
        step = self.fails.get(self.host)
        if step is not None and (call == "open") == (step == "connect"):
            raise StepFailed(self.fails.pop(self.host), "as told")


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often the topic was asked for."""
    asked: list[int] = []

    async def find_topic(self: Canary) -> str:
        asked.append(1)
        self._topic = "canary"
        return "canary"

    @contextlib.asynccontextmanager
    async def connect(endpoint: Endpoint, timeout_s: float) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(rounds, "connect", connect)
    monkeypatch.setattr(rounds, "Probe", PlayedProbe)
    monkeypatch.setattr(Canary, "_find_topic", find_topic)
    yield asked
    for kept in (PlayedProbe.made, PlayedProbe.calls, PlayedProbe.records):
        kept.clear()
    PlayedProbe.fails.clear()
    PlayedProbe.hang.clear()


async def test_sides_take_turns_as_the_first() -> None:
    async with Canary(PLAN) as canary:
        for _ in range(3):
            assert await canary.run_round() == (QUICK, QUICK)
    measured = [host for host, call in PlayedProbe.calls if call == "measure"]
    assert measured == ["f", "b", "b", "f", "f", "b"]
    assert len(PlayedProbe.made) == 2 and all(one.is_closed for one in PlayedProbe.made)


async def test_no_record_equals_another() -> None:
    async with Canary(PLAN) as canary, Canary(PLAN) as other:
        for _ in range(3):
            await canary.run_round()
            await other.run_round()
    records = PlayedProbe.records
    assert len(set(records)) == len(records) == 2 * (2 + 6)
    assert {len(one) for one in records} == {RECORD_BYTES}


@pytest.mark.parametrize("step", ["connect", "produce", "consume"])
async def test_a_failed_side_is_opened_anew_and_the_other_stays(
    step: Step, played: list[int]
) -> None:
    async with Canary(PLAN) as canary:
        PlayedProbe.fails["f"] = step
        failed = await canary.run_round()
        assert isinstance(failed.through, StepFailed) and failed.through.step == step
        assert failed.direct == QUICK
        assert await canary.run_round() == (QUICK, QUICK)
        assert [one.host for one in PlayedProbe.made] == ["f", "b", "f"]
        assert [one.is_closed for one in PlayedProbe.made] == [True, False, False]
    assert len(played) == 2, "at first, and after the failure"


async def test_a_side_that_does_not_close_is_not_opened_twice() -> None:
    async with Canary(PLAN) as canary:
        PlayedProbe.fails["f"] = "produce"
        PlayedProbe.hang.add("f")
        for _ in range(4):
            last = await canary.run_round()
        assert isinstance(last.through, StepFailed) and "not closed yet" in f"{last.through}"
        assert last.through.step == "connect" and last.direct == QUICK
        assert [one.host for one in PlayedProbe.made] == ["f", "b"]


async def test_a_secret_that_cannot_be_read_is_a_failure_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(2, "No such file or directory", "/secret")

    monkeypatch.setattr(rounds, "Probe", refuse)
    async with Canary(PLAN) as canary:
        failed = await canary.run_round()
    for one in failed:
        assert isinstance(one, StepFailed) and one.step == "connect" and "/secret" in f"{one}"
