"""What one connection reads from the broker beside its answers: the misses of requests that memory answers in
part.

Owns the reads of one connection: begun, delayed, joined, arrived, collected, and their bounds. It must not
know the waiting Fetch beyond waking it. Invariants (design, "Fetch", split):
* one read a partition and connection; another offset, isolation level or epoch drops it, and so do another topic of
  that name and another leader epoch that become known, and KEPT_S without a Fetch that asks for it.
* a read that another consumer has under way is joined (fetch/misses/coalescing.py), and so is one that goes first while
  this one waits at the throttle; its bytes are this client's only while its own right to the topic holds.
* what has arrived is handed out once, to this connection's next Fetch of that offset.
* an answer that is more than records (a diverging epoch, a preferred replica, another leader, nothing at all),
  or that has not come within PATIENCE_S, is never retold: the Fetch that waits is forwarded whole, and the
  broker speaks for itself. A mere error is retold, to the Fetch that waits for it and to no later one.
* what memory can say nothing of (`is_odd`) and has no records is asked again in polls of POLL_MS, while a Fetch
  waits: the broker wakes it as it would.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_request
from proxy.fetch.misses.coalescing import JOINING_S, is_mere_error, is_plain
from proxy.fetch.misses.read import Asker, Read, Stage
from proxy.partitions.leader_state import NO_EPOCH
from proxy.partitions.readable import READ_COMMITTED
from throttle.tickets import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.wire import Frame
    from proxy.fetch.delayed_fetch import DelayedFetch
    from proxy.fetch.misses.coalescing import Flight
    from proxy.fetch.misses.read import Key
    from proxy.fetch.record import FetchRecord
    from proxy.net.broker_connection import BrokerConnection
    from proxy.net.catch_up_connection import CatchUpConnection
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.topics import Topic
    from proxy.scheduling.queued_request import Entry

KEPT_S = 5.0
"""How long a read is kept that no Fetch of this connection asks for."""
PATIENCE_S = 20.0
"""After which the broker is asked by the client's own Fetch, which it then waits for as for any other."""
POLL_MS = 100
"""How long the broker may wait for records of an odd partition; so long a request behind it may have to wait."""


class Reads:
    """The reads of one connection, by partition."""

    __slots__ = ("_in_line", "_link", "by_key")

    def __init__(self, link: ClientConnection) -> None:
        self._link = link
        self._in_line: set[tuple[Read, ...]] = set()  # until it is their queue's turn
        self.by_key: dict[Key, Read] = {}

    def __len__(self) -> int:
        return len(self.by_key)

    @property
    def go_apart(self) -> bool:
        """Whether history is read beside even where nothing else is asked for: it may have to wait for its disk,
        or has a link of its own.
        """
        return self._link.broker.disk_throttle.active or self._link.lane.usable

    def find(self, status: PartitionStatus, isolation_level: int, version: int) -> Read | None:
        """The read of exactly this; one of the same partition that is of something else is dropped, and so is
        one that another consumer has made where this one's right to it has lapsed since (no partition).
        """
        asked = status.asked
        read = self.by_key.get((asked.topic, asked.partition))
        if read is None:
            return None
        is_others = read.is_shared or read.flight is not None
        if read.stage is Stage.SAID and status.offsets_known:
            self.drop(read)
            return None
        is_it = read.answers(asked, isolation_level, version) and self._is_of_this_log(read)
        if not is_it or (is_others and status.partition is None):
            self.drop(read)
            return None
        read.asked_at = now = self._link.broker.now()
        if read.stage is Stage.READING and now - read.sent_at > PATIENCE_S:
            read.stage = Stage.FAILED
        return read

    def _find_log(self, read: Read) -> tuple[Topic | None, int]:
        """The topic that it asks for, by name or id, and its leader epoch; None, -1 where they are not known."""
        broker, asked = self._link.broker, read.asked
        topic = broker.topics.find(asked.topic)
        partition = None if topic is None else broker.partitions.find(topic, asked.partition)
        return topic, NO_EPOCH if partition is None else partition.leader_state.epoch

    def _is_of_this_log(self, read: Read) -> bool:
        """Whether no other topic has come to have the name since it began, and no other leader epoch is known, in which
        what it has read may have been truncated.
        """
        topic, epoch = self._find_log(read)
        return read.topic is topic and (epoch == NO_EPOCH or read.epoch in (NO_EPOCH, epoch))

    def begin(self, record: FetchRecord, missed: Sequence[PartitionStatus], waiter: DelayedFetch) -> bool:
        """Read what `missed` names, now or when the disk can bear it. False at the bound."""
        room = self._link.broker.config.limits.connection_response_memory_bytes
        wanted_bytes = sum(status.asked.max_bytes for status in missed)
        if wanted_bytes + sum(read.asked.max_bytes for read in self.by_key.values()) > room:
            return False
        self._link.listener.tend(self._link)
        now = self._link.broker.now()
        request = record.request
        asker = Asker(
            record.head.api_version, record.head.client_id, request.max_bytes, request.isolation_level
        )
        at_once: list[Read] = []
        share_bytes = max(request.max_bytes // len(missed), 1)
        for status in missed:
            read = Read(status, asker, share_bytes, now)
            read.waiter = waiter
            read.topic, read.epoch = self._find_log(read)
            if self._may_go(read):
                at_once.append(read)
        self._send(at_once)
        return True

    def ask_again(self, read: Read) -> None:
        """There was nothing to read, and a Fetch waits for it."""
        read.stage = Stage.READING
        read.ticket = None
        self._ask((read,), read.asker, False)

    def _may_go(self, read: Read) -> bool:
        """Whether it is to be sent now. Else it has joined another, or it waits until its disk can bear it,
        or, at a bound, it is not begun.
        """
        if self._join(read):
            return False
        disk_throttle = self._link.broker.disk_throttle
        read.ticket = None
        go = partial(self._granted, read)
        ticket = disk_throttle.submit(self._link, read.asker.client_id, read.status, read.size_bytes, go)
        if isinstance(ticket, Refused):
            return False
        self.by_key[read.key] = read
        read.ticket = ticket
        if not ticket.granted:
            read.stage = Stage.DELAYED
            self._link.broker.shared_reads.wait(read.question, read, self)
        return ticket.granted

    def _join(self, read: Read) -> bool:
        """Have what another consumer reads, if one reads it."""
        shared, now = self._link.broker.shared_reads, self._link.broker.now()
        flight = shared.find(read.question, read.asked.max_bytes) if now < read.join_until else None
        if flight is None:
            return False
        self.by_key[read.key] = read
        read.stage = Stage.READING
        read.sent_at = flight.sent_at
        read.join_until = min(read.join_until, now + JOINING_S)
        read.flight = flight
        shared.join(flight, read, self)
        return True

    def may_join(self, read: Read, flight: Flight) -> None:
        """What `read` waits for at the throttle is being read by another: it is charged once, there."""
        if read.stage is Stage.DELAYED and self._join(read):
            assert read.ticket is not None and read.flight is flight
            self._link.broker.shared_reads.stop_waiting(read.question, read)
            self._link.broker.disk_throttle.cancel(read.ticket)

    def landed(self, read: Read, answered: FetchedPartition, frame: Frame) -> None:
        """Another's read has brought what `read` asks for."""
        if read.flight is None:
            return  # dropped since
        read.flight = None
        read.is_shared = True
        upstream = self._link.upstream
        self._arrive(upstream if upstream.is_connected else None, read, answered, frame)
        self._wake((read,))

    def left_alone(self, read: Read) -> None:
        """Nothing came of the other's read: it is made here, or joins one that is under way by now."""
        if read.flight is None:
            return
        read.flight = None
        if self._may_go(read):
            self._send((read,))
        elif read.ticket is None and read.flight is None:  # at the throttle's bound
            self.drop(read)
            self._wake((read,))

    def _granted(self, read: Read) -> None:
        self._link.broker.shared_reads.stop_waiting(read.question, read)
        read.stage, fail = Stage.READING, partial(self.failed, read)
        self._link.broker.attempt(partial(self._send, (read,)), "sending a read beside", fail)

    def _send(self, reads: Sequence[Read]) -> None:
        """One Fetch of all that go the same way."""
        ways: dict[tuple[Asker, bool], list[Read]] = {}
        for read in reads:
            ways.setdefault((read.asker, read.status.lagging), []).append(read)
        for (asker, lagging), together in ways.items():
            self._ask(together, asker, lagging)

    def _ask(self, reads: Sequence[Read], asker: Asker, lagging: bool) -> None:
        """When it is their queue's turn. Refused, they fail, so that their Fetch is refused as a whole."""
        together = tuple(reads)
        topics = list(dict.fromkeys(read.status.queue_key for read in reads))
        self._in_line.add(together)
        self._link.broker.scheduler.submit(
            self._link,
            partial(self._dispatch, together, asker, lagging),
            partial(self._refused, together),
            topics=topics,
            watched=() if lagging else topics,
            whole=partial(self._refused, together),
        )

    def _refused(self, reads: tuple[Read, ...]) -> None:
        self._in_line.discard(reads)
        for read in reads:
            self.failed(read)

    def failed(self, read: Read) -> None:
        """Nothing comes of it, as after an error of ours: the Fetch that waits is forwarded whole."""
        read.stage = Stage.FAILED
        self._link.broker.attempt(partial(self._account, read, None), "accounting for a read beside")
        self._wake((read,))

    def _dispatch(self, together: tuple[Read, ...], asker: Asker, lagging: bool, entry: Entry) -> None:
        link = self._link
        self._in_line.discard(together)
        reads = [read for read in together if not self._joins_late(read)]
        if not reads:
            link.broker.scheduler.withdraw(entry)
            return
        frame = build_request(
            asker.version,
            0,
            asker.client_id,
            max_wait_ms=POLL_MS if reads[0].said is not None else 0,
            min_bytes=int(reads[0].said is not None),
            max_bytes=asker.max_bytes,
            isolation_level=asker.isolation_level,
            session_id=0,
            session_epoch=-1,
            partitions=[read.asked for read in reads],
        )
        way = link.lane if lagging and link.lane.usable else link.upstream
        sent_at = link.broker.now()
        shared, pipeline = link.broker.shared_reads, {}
        for read in reads:
            read.sent_at = sent_at
            pipeline[read] = shared.begin(read.question, read.asked.max_bytes, way)
        if way is link.upstream:
            link.broker.scheduler.dispatched(entry)

        def on_answer(answer: Frame | None) -> None:
            if answer is None:
                link.broker.scheduler.withdraw(entry)
            else:
                link.broker.scheduler.answered(entry)
            answered = partial(self._answered, way, pipeline, asker, sent_at, answer)
            link.broker.attempt(answered, "taking what was read beside", partial(self._lost, pipeline))

        way.send(frame, 0, on_answer)

    def _lost(self, pipeline: dict[Read, Flight | None]) -> None:
        """What was read cannot be taken: an error of ours."""
        for read, flight in pipeline.items():
            if flight is not None:
                self._link.broker.shared_reads.end(flight, None, None)
            if read.stage is Stage.READING:
                self.failed(read)
            self._wake((read,))

    def _joins_late(self, read: Read) -> bool:
        """Whether another has sent the same while this one waited for its turn toward the broker."""
        if self.by_key.get(read.key) is not read or not self._join(read):
            return False
        self._account(read, None)
        return True

    def _answered(
        self,
        way: CatchUpConnection | BrokerConnection,
        pipeline: dict[Read, Flight | None],
        asker: Asker,
        sent_at: float,
        frame: Frame | None,
    ) -> None:
        link, reads = self._link, list(pipeline)
        response = None
        if frame is not None:
            try:
                response = fetch.scan_response(frame, asker.version)
            except BadFrame:
                link.broker.counters.bad_frames += 1
        by_key: dict[Key, FetchedPartition] = {}
        if response is not None and response.error_code == ErrorCode.NONE:
            by_key = {(p.topic, p.partition): p for p in response.partitions}
        for read in reads:
            self._account(read, by_key.get(read.key))
            if self.by_key.get(read.key) is read:
                read.throttle_time_ms = response.throttle_time_ms if response is not None else 0
                self._arrive(way, read, by_key.get(read.key), frame)
        if response is not None:
            link.authorization.learn_answer(response, sent_at)
        for read, flight in pipeline.items():
            if flight is not None:
                link.broker.shared_reads.end(flight, by_key.get(read.key), frame)
        self._wake(reads)

    def _wake(self, reads: Sequence[Read]) -> None:
        waiters = dict.fromkeys(read.waiter for read in reads if read.waiter is not None)
        for waiter in waiters:
            self._link.broker.attempt(waiter.look_again, "waking a fetch")

    def _account(self, read: Read, answered: FetchedPartition | None) -> None:
        """The disk has done this much for it."""
        size_bytes = answered.end - answered.start if answered is not None else 0
        if read.ticket is not None:
            self._link.broker.disk_throttle.done(read.ticket, size_bytes)

    def _arrive(
        self,
        way: CatchUpConnection | BrokerConnection | None,
        read: Read,
        answered: FetchedPartition | None,
        frame: Frame | None,
    ) -> None:
        """`way` has brought it; None where this client has no link."""
        if answered is None or frame is None or not is_plain(answered):
            self._fail(way, read, answered)
            return
        if answered.end == answered.start:
            committed = read.asker.isolation_level == READ_COMMITTED
            limit = answered.last_stable_offset if committed else answered.high_watermark
            if read.asked.fetch_offset < limit:  # the others' bytes left it no room: it is asked again
                self.drop(read)
            elif read.is_odd:
                read.stage, read.said = Stage.SAID, answered
            else:
                read.stage = Stage.FAILED
            return
        read.stage = Stage.ARRIVED
        if read.epoch == NO_EPOCH:
            _, read.epoch = self._find_log(read)
        read.answered = answered
        read.frame = frame
        read.charged_bytes = read.held_bytes
        if way is None:
            self._link.broker.responses.in_flight_bytes += read.charged_bytes
        else:
            self._link.broker.responses.add(read.charged_bytes, way.wire)

    def _fail(
        self, way: CatchUpConnection | BrokerConnection | None, read: Read, answered: FetchedPartition | None
    ) -> None:
        """It has not brought records. A mere error is told: as one partition's it costs the others nothing."""
        read.stage = Stage.FAILED
        if answered is None or way is not self._link.upstream or not is_mere_error(answered):
            return
        if read.waiter is None:
            self.drop(read)
        else:
            read.stage, read.answered = Stage.ARRIVED, answered

    def drop(self, read: Read) -> None:
        """Nobody wants it any more."""
        if self.by_key.get(read.key) is read:
            del self.by_key[read.key]
        if read.flight is not None:
            self._link.broker.shared_reads.leave(read.flight, read)
            read.flight = None
        if read.stage is Stage.DELAYED and read.ticket is not None:
            self._link.broker.shared_reads.stop_waiting(read.question, read)
            self._link.broker.disk_throttle.cancel(read.ticket)
        if read.charged_bytes:
            self._link.broker.responses.sub(read.charged_bytes)
            read.charged_bytes = 0

    def drop_asked(self, asked: Sequence[FetchPartition]) -> None:
        """These are asked of the broker by a Fetch that is forwarded whole."""
        for one in asked:
            read = self.by_key.get((one.topic, one.partition))
            if read is not None:
                self.drop(read)

    def leave(self, waiter: DelayedFetch) -> None:
        """`waiter` has been answered: its reads go on without it."""
        for read in self.by_key.values():
            if read.waiter is waiter:
                read.waiter = None
        for read in [r for r in self.by_key.values() if r.has_error and r.waiter is None]:
            self.drop(read)

    def drop_old(self, now: float) -> None:
        """Timed: what no Fetch has asked for since KEPT_S."""
        for read in [r for r in self.by_key.values() if now - r.asked_at > KEPT_S]:
            self.drop(read)

    def close(self) -> None:
        """The connection is gone: what is in line for the broker will not have its turn."""
        for read in list(self.by_key.values()):
            self.drop(read)
        for together in self._in_line:
            for read in together:
                self._account(read, None)
        self._in_line.clear()
