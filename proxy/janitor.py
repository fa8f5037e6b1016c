"""Janitor: periodic work of the whole process, on one timer.

Owns the tick. Must not know how the work is done, only when it is due. Invariants: there is one
timer; each part of a tick is short; a part that fails is logged and does not end the others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.broker import Broker
    from proxy.dispatch import Dispatch
    from proxy.net.client_connection import ClientConnection
    from proxy.net.listener import Listener

    Link = ClientConnection[Broker, Dispatch]

log = logging.getLogger("forebay.janitor")

TICK_S = 0.1
FORGET_AFTER_S = 900.0
"""Partitions that nobody has read or written for this long are removed from the tables."""
FORGET_EVERY_TICKS = 600
IDLE_LOOKS = 20
"""Number of checks for idle clients within `limits.idleTimeout`."""
STUCK_S = 10.0
"""How long a client may read nothing of its responses while responses of others wait for memory."""
LINKS_EVERY_TICKS = 10
"""Connections are checked once a second, and only those with a pending timeout."""


class Janitor:
    """Runs the tick from `start` to `stop`."""

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[Listener[Broker, Dispatch]],
        also: Sequence[Callable[[float], object]] = (),
        each_tick: Sequence[Callable[[float], object]] = (),
    ) -> None:
        """`also`: further functions to run once a second, `each_tick`: at each tick, with the time in seconds."""
        self._broker = broker
        self._also = also
        self._each_tick = each_tick
        self._listeners = listeners
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._ticks = 0
        self._begun: dict[Link, tuple[int, float, int]] = {}
        self._unread: dict[Link, tuple[int, float]] = {}
        self._idle_checked_at: float | None = None

    def start(self) -> None:
        """Schedule the next tick, TICK_S from now."""
        self._due_at = self._broker.now() + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Cancel the next tick."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._ticks += 1
        now = self._broker.now()
        self._broker.counters.loop.note(max(0.0, now - self._due_at))
        parts: list[Callable[[float], object]] = [
            self._broker.replica_fetcher.tick,
            self._broker.topic_lookup.tick,
            self._broker.scheduler.tick,
            self._broker.principals.tick,
            self._broker.verifier.tick,
            self._broker.node.tick,
            lambda _now: self._broker.responses.offer(),
            *self._each_tick,
        ]
        if self._broker.stored_runs is not None:
            parts.append(self._broker.stored_runs.tick)
        if self._broker.accounts.lines is not None:
            parts.append(self._broker.accounts.lines.empty.tick)
        if self._broker.counter_lines is not None:
            parts.append(self._broker.counter_lines.tick)
        if self._ticks % LINKS_EVERY_TICKS == 0:
            parts += [
                self.end_idle,
                self.tend_links,
                self.make_room,
                self._broker.purgatory.tick,
                self._broker.readers.tick,
                self._broker.cleanup.tick,
                self._broker.own_connections.tick,
                self._broker.sign_ins.tick,
                *self._also,
            ]
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
        """Check connections with a begun frame, with unanswered requests on the catch-up
        connection, or with miss fetches. Other connections are removed from the list, so that they
        cost nothing.
        """
        begun: dict[Link, tuple[int, float, int]] = {}
        for listener in self._listeners:
            for link in list(listener.tended):
                is_charged = link.framed.charged_bytes > 0
                if link.framed.pending_frame_bytes and (is_charged or not link.framed.reading_held):
                    self._check_frame(link, now, begun)
                link.catch_up.tick(now)
                if len(link.handlers.reads):
                    link.handlers.reads.drop_old(now)
                if not (
                    link.framed.pending_frame_bytes
                    or link.catch_up.unanswered
                    or len(link.handlers.reads)
                ):
                    listener.tended.pop(link, None)
        self._begun = begun

    def _check_frame(
        self,
        link: Link,
        now: float,
        begun: dict[Link, tuple[int, float, int]],
    ) -> None:
        """Close a client whose frame is not complete within `limits.frameTimeout`, even if a byte
        comes each second. Time in which the client is not read does not count. While others wait
        for memory, a charged frame must also grow from check to check at the rate that completes it
        in that time. The rate counts even if the client is not read.
        """
        timeout_s = self._broker.config.limits.frame_timeout_s
        framed = link.framed
        new = framed.frames, now, -1
        frames, since, seen_bytes = self._begun.get(link, new)
        if frames != framed.frames:
            frames, since, seen_bytes = new
        if framed.reading_held:
            since = now
        came_bytes = framed.pending_frame_bytes - seen_bytes
        least_bytes = framed.charged_bytes * min(LINKS_EVERY_TICKS * TICK_S / timeout_s, 1.0)
        if now - since > timeout_s:
            blame = f"closing a client that has not completed a frame in {timeout_s:g} s"
            link.close("frame_timeout", blame)
        elif seen_bytes >= 0 and came_bytes < least_bytes and self._broker.requests.is_crowded:
            blame = "closing a client that is slow to complete a frame while others wait at limits.requestMemory"
            link.close("request_memory", blame, f"{framed.charged_bytes} bytes")
        else:
            begun[link] = frames, since, framed.pending_frame_bytes

    def end_idle(self, now: float) -> None:
        """Close clients that have sent nothing for `limits.idleTimeout` and wait for nothing."""
        timeout_s = self._broker.config.limits.idle_timeout_s
        checked_at = self._idle_checked_at
        if checked_at is not None and now - checked_at < timeout_s / IDLE_LOOKS:
            return
        self._idle_checked_at = now
        if checked_at is None:
            return
        for listener in self._listeners:
            for link in list(listener.links):
                if link.look_idle(now) > timeout_s:
                    link.close("idle")

    def make_room(self, now: float) -> None:
        """While responses wait for memory, close the client with the most bytes among those that
        have read nothing of their responses for STUCK_S.
        """
        unread: dict[Link, tuple[int, float]] = {}
        if self._broker.responses.waiting:
            for listener in self._listeners:
                for link in listener.links:
                    if link.held_bytes and not link.framed.is_idle:
                        pieces, since = self._unread.get(link, (link.framed.pieces, now))
                        unread[link] = (
                            (pieces, since)
                            if pieces == link.framed.pieces
                            else (link.framed.pieces, now)
                        )
        self._unread = unread
        late = [link for link, (_, since) in unread.items() if now - since >= STUCK_S]
        if late:
            max(late, key=lambda link: link.held_bytes).close_for_room()

    def forget_transactions(self, _now: float) -> None:
        """Drop aborted transactions below the evicted offsets: responses from memory do not list
        them.
        """
        for partition in self._broker.partitions:
            if partition.transactions.holds_any:
                evicted_end = self._broker.cache.edges(partition.slot, 0).evicted_end
                partition.transactions.forget_before(evicted_end)

    def _forget_idle(self, now: float) -> None:
        for partition in list(self._broker.partitions):
            leader_state = partition.leader_state
            idle = (
                now - max(partition.wanted_at, partition.news_at, leader_state.proven_at)
                > FORGET_AFTER_S
            )
            if idle and not partition.parked:
                self._broker.forget(partition, "idle")
