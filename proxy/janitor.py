"""The one place for timed work: what has to happen once in a while, on one clock.

Owns the tick. It must not know how things are done, only that they are due. Invariants: one timer; each part
of a tick is short, and one that fails is logged and does not end the others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.broker import Broker
    from proxy.client_link import ClientLink
    from proxy.listener import Listener

log = logging.getLogger("forebay.janitor")

TICK_S = 0.1
FORGET_AFTER_S = 900.0
"""A partition that nobody has read or written for this long is forgotten, with its place in the tables."""
FORGET_EVERY_TICKS = 600
LINKS_EVERY_TICKS = 10
"""Connections are looked after once a second, and only those with something that time may end."""


class Janitor:
    """Runs the tick while the process is up."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        self._listeners = listeners
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._begun: dict[ClientLink, tuple[int, float]] = {}

    def start(self) -> None:
        """Begin ticking."""
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._ticks += 1
        now = self._broker.now()
        parts: list[Callable[[float], object]] = [
            self._broker.watch.tick,
            self._broker.topic_questions.tick,
            self._broker.gate.tick,
            self._broker.verifier.tick,
            self._broker.node.tick,
        ]
        if self._broker.block_lines is not None:
            parts.append(self._broker.block_lines.tick)
        if self._ticks % LINKS_EVERY_TICKS == 0:
            parts += [self.tend_links, self._broker.rest_standings, self._broker.cleanup.tick]
        if self._ticks % FORGET_EVERY_TICKS == 0:
            parts += [self._forget_idle, self.forget_transactions]
        for part in parts:
            try:
                part(now)
            except Exception:
                log.exception("timed work failed; it is tried again at the next tick")
        self._broker.cache.eliminate()
        self._broker.age_clock.mark(self._broker.cache.peek_admitted_bytes(), now)
        self.start()

    def tend_links(self, now: float) -> None:
        """Connections with a frame that has begun, a second link that owes an answer, or reads beside; idle ones cost
        nothing.
        """
        begun: dict[ClientLink, tuple[int, float]] = {}
        for listener in self._listeners:
            for link in list(listener.tended):
                if link.wire.pending_frame_bytes and not link.wire.reading_held:
                    self._look_at_frame(link, now, begun)
                link.lane.tick(now)
                if len(link.reads):
                    link.reads.drop_old(now)
                if not (link.wire.pending_frame_bytes or link.lane.unanswered or len(link.reads)):
                    listener.tended.pop(link, None)
        self._begun = begun

    def _look_at_frame(
        self, link: ClientLink, now: float, begun: dict[ClientLink, tuple[int, float]]
    ) -> None:
        """A frame that has begun must be complete within `limits.frameTimeout` (one byte a second)."""
        timeout_s = self._broker.config.limits.frame_timeout_s
        frames, since = self._begun.get(link, (link.wire.frames, now))
        if frames != link.wire.frames:
            frames, since = link.wire.frames, now
        if now - since > timeout_s:
            blame = f"closing a client that has not completed a frame in {timeout_s:g} s"
            link.close("frame_timeout", blame)
        else:
            begun[link] = frames, since

    def forget_transactions(self, _now: float) -> None:
        """Nobody is told of aborted transactions below what memory holds."""
        for partition in self._broker.partitions:
            if partition.transactions.holds_any:
                evicted_end = self._broker.cache.edges(partition.slot, 0).evicted_end
                partition.transactions.forget_before(evicted_end)

    def _forget_idle(self, now: float) -> None:
        for partition in list(self._broker.partitions):
            truth = partition.truth
            idle = now - max(partition.wanted_at, partition.news_at, truth.proven_at) > FORGET_AFTER_S
            if idle and not partition.parked:
                self._broker.forget(partition, "idle")
