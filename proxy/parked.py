"""A Fetch that memory speaks for: answered at once, or parked until there is enough, or given up and
forwarded.

Owns the waiting of one Fetch and the answer from memory. It must not know how news arrives: it is woken, and
looks again. Invariants (ReplicaManager.fetchMessages, DelayedFetch):
* it is answered when the readable bytes of all its partitions reach min_bytes, or at max_wait with what there
  is.
* it registers as a waiter before it looks for the last time; there is no moment at which news can be missed.
* a partition whose bytes are on their way, or that no lease covers, is waited for at most `cache.holeWait`;
  then it is a miss.
* a lease that lapses while the broker does not answer sends nobody away: what stands at the tail leaves empty
  at max_wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer, build_response
from proxy import fetch
from proxy.fetch_plan import READ_COMMITTED, Look, Looked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.arena import Hit
    from protocol.wire import Frame
    from proxy.fetch_record import FetchRecord
    from proxy.partitions import Partition

SOFT = (Look.GAP, Look.ASK)


class ParkedFetch:
    """One Fetch that has not been answered."""

    __slots__ = ("_deadline", "_frame", "_timer", "_urgent", "_urgent_timer", "done", "held", "record")

    def __init__(self, record: FetchRecord, frame: Frame) -> None:
        self.record = record
        self._frame = frame
        self._deadline = record.received_at + max(record.request.max_wait_ms, 0) / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._urgent_timer: asyncio.TimerHandle | None = None
        self._urgent = False
        self.held: list[Partition] = []
        self.done = False

    def start(self) -> None:
        """Look for the first time."""
        self._look()

    def wake(self, _partition: Partition) -> None:
        """Something changed: look again."""
        if not self.done:
            self._look()

    def leave(self) -> None:
        """Answer with what there is, now: the process is stopping, or the client has finished sending."""
        if not self.done:
            self._finish(fetch.look_at(self.record, self._now()))

    def drop(self) -> None:
        """The client is gone."""
        if not self.done:
            self._end()
            self.record.abandoned()

    # -- deciding ------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.record.link.broker.now()

    def _look(self) -> None:
        now = self._now()
        looks = fetch.look_at(self.record, now)
        if not looks or any(looked.look in (Look.MISS, Look.PASS) for looked in looks):
            self._forward(looks)
            return
        asking = [looked for looked in looks if looked.look is Look.ASK and not self._waits_at_tail(looked)]
        if not asking and self._is_enough(looks):
            self._answer(looks)
        elif now >= self._deadline and not asking:
            self._finish(looks)
        elif self._hold(looks, asking):
            soft = asking or not any(looked.look is Look.READY for looked in looks)
            self._hurry(bool(soft and (asking or any(looked.look is Look.GAP for looked in looks))))
        else:
            self._forward(looks)

    def _waits_at_tail(self, looked: Looked) -> bool:
        """No lease, but it stands where the watch already stands, unanswered: it may wait there."""
        partition = looked.partition
        return (
            partition is not None
            and partition.covered > 0
            and not partition.truth.unchecked
            and looked.asked.fetch_offset == partition.truth.high_watermark
        )

    def _is_enough(self, looks: Sequence[Looked]) -> bool:
        request = self.record.request
        if request.max_wait_ms <= 0 or request.min_bytes <= 0:
            return True
        ready = [looked for looked in looks if looked.look is Look.READY]
        if request.min_bytes == 1:
            return bool(ready)
        total = 0
        cache = self.record.link.broker.cache
        for looked in ready:
            assert looked.partition is not None
            asked = looked.asked
            hit = cache.lookup(
                looked.partition.slot, asked.fetch_offset, looked.limit_offset, asked.max_bytes, True
            )
            if hit is not None:
                total += min(hit.size_bytes, asked.max_bytes)
                hit.release()
        return total >= request.min_bytes

    # -- waiting -------------------------------------------------------------------------------------------

    def _hold(self, looks: Sequence[Looked], asking: Sequence[Looked]) -> bool:
        """Wait on every partition. False where that cannot be: nobody can ask for us, or too many wait."""
        link = self.record.link
        broker = link.broker
        if not self.held:
            if not broker.park(link, self):
                return False
            self.record.parked_at = self._now()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._deadline - self._now(), 0), self._expired)
        self._register([looked.partition for looked in looks if looked.partition is not None])
        for looked in asking:
            assert looked.partition is not None
            if not broker.watch.ask(looked.partition, link, looked.asked):
                return False
        return all(broker.watch.cover(p, link) for p in self.held)

    def _register(self, partitions: list[Partition]) -> None:
        """Wait on exactly these: one that was forgotten and is followed again is another."""
        if partitions == self.held:
            return
        for partition in self.held:
            partition.parked.pop(self, None)
        self.held = partitions
        for partition in partitions:
            partition.parked[self] = None

    def _hurry(self, soft: bool) -> None:
        """Something is on its way that is not waited for longer than `cache.holeWait`."""
        if soft and not self._urgent:
            self._urgent = True
            hole_wait_s = self.record.link.broker.config.cache.hole_wait_s
            self._urgent_timer = asyncio.get_running_loop().call_later(hole_wait_s, self._given_up)
        elif not soft and self._urgent:
            self._urgent = False
            if self._urgent_timer is not None:
                self._urgent_timer.cancel()

    def _given_up(self) -> None:
        if not self.done:
            self._forward(fetch.look_at(self.record, self._now()))

    def _expired(self) -> None:
        if not self.done:
            self._finish(fetch.look_at(self.record, self._now()))

    def _end(self) -> None:
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._urgent_timer is not None:
            self._urgent_timer.cancel()
        for partition in self.held:
            partition.parked.pop(self, None)
        if self.held:
            self.record.waited_s = self._now() - self.record.parked_at
            self.record.link.broker.unpark(self.record.link, self)
        self.held = []

    # -- leaving -------------------------------------------------------------------------------------------

    def _forward(self, looks: list[Looked]) -> None:
        self._end()
        fetch.forward_fetch(self.record, self._frame, looks)

    def _finish(self, looks: list[Looked]) -> None:
        """max_wait is over: what is readable leaves, the rest is named empty; a partition nothing is known of
        is the broker's.
        """
        unknown = any(looked.look in (Look.MISS, Look.PASS) for looked in looks)
        unserved = any(
            looked.look is Look.ASK
            and (
                looked.partition is None or looked.asked.fetch_offset != looked.partition.truth.high_watermark
            )
            for looked in looks
        )
        if unknown or unserved:
            self._forward(looks)
        else:
            self._answer(looks)

    def _answer(self, looks: list[Looked]) -> None:
        self._end()
        record = self.record
        link, version = record.link, record.head.api_version
        answers, hits = _read(record, looks)
        buffers = build_response(
            version,
            record.head.correlation_id,
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            session_id=0,
            partitions=answers,
        )
        now = self._now()
        for looked in looks:
            if looked.partition is not None:
                link.authorization.used(looked.asked.topic, looked.partition, now)
        for hit in hits:
            hit.on_reclaim = lambda _hit: _copy_out(record, hits)
        record.served(looks, [a.records_bytes for a in answers], buffers, hits)


def _copy_out(record: FetchRecord, hits: Sequence[Hit]) -> None:
    """The arena wants a block that an unsent answer shows: copy what is left of the answer and let go."""
    if record.reply.copy_out():
        for hit in hits:
            hit.release()


def _read(record: FetchRecord, looks: Sequence[Looked]) -> tuple[list[FetchAnswer], list[Hit]]:
    """Whole batches in partition order, within the request's and each partition's bytes; the first may be
    oversized, once (KIP-74).
    """
    cache, request = record.link.broker.cache, record.request
    aborted: tuple[()] | None = () if request.isolation_level == READ_COMMITTED else None
    room = request.max_bytes
    answers: list[FetchAnswer] = []
    hits: list[Hit] = []
    for looked in looks:
        partition, asked = looked.partition, looked.asked
        assert partition is not None
        hit = None
        if looked.look is Look.READY and (room > 0 or not hits):
            most = max(min(asked.max_bytes, room), 0)
            hit = cache.lookup(partition.slot, asked.fetch_offset, looked.limit_offset, most, not hits)
        truth = partition.truth
        views: Sequence[Frame] = ()
        size_bytes = 0
        if hit is not None and hit.size_bytes:
            views, size_bytes = hit.views, hit.size_bytes
            hits.append(hit)
            room -= size_bytes
        answers.append(
            FetchAnswer(
                asked.topic,
                asked.partition,
                ErrorCode.NONE,
                truth.high_watermark,
                truth.last_stable_offset,
                truth.log_start_offset,
                aborted,
                views,
                size_bytes,
            )
        )
    return answers, hits
