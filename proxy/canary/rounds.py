"""Rounds: one record on each side, in turns.

Owns the probes of both sides, which of them goes first, and opening a side anew after a failure. Must not know what is
counted or written. Invariants:
* one side is measured at a time, and they take turns as the first.
* a side that has failed is closed, and opened anew in the next round: a failure is never carried over.
* a round ends within seven times `timeout_s` a side, whatever the broker does.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Self

from proxy.broker_client import FAILURES, connect, explain
from proxy.canary.outcome import Round, StepFailed
from proxy.canary.probe import Closing, Probe
from proxy.canary.topic import TopicUnusable, find_topic

if TYPE_CHECKING:
    from proxy.canary.outcome import RecordOutcome
    from proxy.canary.plan import CanaryPlan, Side, SideName

RECORD_BYTES = 1024


class Canary:
    """The probes of a plan. Use as a context manager; call `run_round` again and again."""

    def __init__(self, plan: CanaryPlan) -> None:
        self._plan = plan
        self._topic: str | None = None
        self._probes: dict[SideName, Probe] = {}
        self._closing: dict[SideName, Closing] = {side.name: Closing() for side in plan.sides}
        self._rounds = 0
        self._run = os.urandom(8).hex()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name, probe in self._probes.items():
            self._closing[name].begin(probe)
        self._probes = {}
        ends = (one.end(self._plan.timeout_s) for one in self._closing.values())
        await asyncio.gather(*ends)

    async def run_round(self) -> Round:
        """One record on each side."""
        self._rounds += 1
        order = self._plan.sides if self._rounds % 2 else self._plan.sides[::-1]
        outcomes = {side.name: await self._try(side) for side in order}
        return Round(outcomes["through"], outcomes["direct"])

    async def _try(self, side: Side) -> RecordOutcome:
        try:
            probe = self._probes.get(side.name) or await self._open(side)
            return await probe.measure(self._build_record(side.name, "measured"))
        except StepFailed as failure:
            self._topic = None  # it may be gone
            probe_failed = self._probes.pop(side.name, None)
            if probe_failed is not None:
                self._closing[side.name].begin(probe_failed)
            return failure

    async def _open(self, side: Side) -> Probe:
        """A side's probe, whose first record has passed. Raises StepFailed."""
        if not await self._closing[side.name].wait(self._plan.timeout_s):
            raise StepFailed("connect", "the clients of an earlier round are not closed yet")
        topic, timeout_s = self._topic or await self._find_topic(), self._plan.timeout_s
        try:
            endpoint = side.build_endpoint()
            async with connect(endpoint, timeout_s):
                pass  # aiokafka does not say why it cannot
            probe = Probe(endpoint, topic, timeout_s)
        except (*FAILURES, ValueError) as error:
            reason = f"{side.address}: {explain(error, timeout_s)}"
            raise StepFailed("connect", reason) from error
        self._probes[side.name] = probe
        await probe.open(self._build_record(side.name, "first"))
        return probe

    async def _find_topic(self) -> str:
        """The canary's topic, asked for and perhaps created directly at the broker. Raises StepFailed."""
        plan = self._plan
        try:
            async with (
                asyncio.timeout(plan.timeout_s),
                connect(plan.direct.build_endpoint(), plan.timeout_s) as client,
            ):
                self._topic = await find_topic(client, plan.topic, plan.timeout_s)
        except (*FAILURES, TopicUnusable, ValueError) as error:
            reason = f"direct, the canary's topic: {explain(error, plan.timeout_s)}"
            raise StepFailed("connect", reason) from error
        return self._topic

    def _build_record(self, side: SideName, kind: str) -> bytes:
        """A record that no other has ever equalled."""
        return f"{self._run} {self._rounds} {side} {kind} ".encode().ljust(RECORD_BYTES, b".")
