"""Miss fetches of one connection: Fetches to the broker of the missed partitions only.

Owns the reads of one connection and their limits. Must not know a waiting Fetch beyond waking it.
Invariants:
* A partition has one read. Another offset, isolation level, epoch or topic id, a new leader epoch,
  or KEPT_S without a Fetch for it drops the read. While a Fetch waits for it, no other one of the
  connection drops it or takes it: clients may send several at once.
* A read joins one that another consumer has sent, or sends while this one waits at the disk
  throttle (fetch/misses/coalescing.py). The client gets its bytes only while its own right to the
  topic holds.
* Arrived bytes are returned once, to this connection's next Fetch of that offset.
* An answer beyond records (diverging epoch, preferred replica, new leader, or nothing) or later
  than PATIENCE_S is never repeated: the Fetch is forwarded whole. Only the waiting Fetch gets a
  plain error.
* A partition with unknown offsets and no records is polled every POLL_MS while a Fetch waits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_request
from proxy.fetch.misses.coalescing import SharingServices, is_mere_error, is_plain
from proxy.fetch.misses.read import Asker, Read, Stage
from proxy.net.services import ConnectionServices, Handlers
from proxy.partitions.leader_state import NO_EPOCH
from proxy.partitions.readable import READ_COMMITTED
from throttle.tickets import DelayRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.primitives import Frame
    from proxy.fetch.authorization import Authorization
    from proxy.fetch.misses.coalescing import SharedRead, SharedReads
    from proxy.fetch.misses.read import MissKey
    from proxy.fetch.wakeups import WaitingFetch
    from proxy.net.broker_connection import BrokerConnection
    from proxy.net.catch_up_connection import CatchUpConnection
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partitions
    from proxy.partitions.topics import Topic, Topics
    from proxy.scheduling.disk_throttle import DiskThrottle
    from proxy.scheduling.queued_request import Entry
    from proxy.scheduling.request_scheduler import RequestScheduler

KEPT_S = 5.0
"""Seconds that a read is kept without a Fetch of this connection that asks for it."""
POLL_MS = 100
"""Milliseconds that the broker may wait for records of a partition with unknown offsets.

The broker thus wakes the Fetch as soon as records exist. A request behind such a poll may have to
wait as long.
"""


class MissServices(ConnectionServices, SharingServices, Protocol):
    """Handed to the miss fetches of a connection."""

    @property
    def topics(self) -> Topics:
        """All topics that are known."""

    @property
    def partitions(self) -> Partitions:
        """All partitions that are followed."""

    @property
    def scheduler(self) -> RequestScheduler:
        """The queues toward the broker."""

    @property
    def disk_throttle(self) -> DiskThrottle:
        """The delay of misses."""

    @property
    def shared_reads(self) -> SharedReads:
        """The reads that consumers share."""


class MissHandlers(Handlers, Protocol):
    """What is kept for a connection that has miss fetches."""

    @property
    def authorization(self) -> Authorization:
        """The client's rights to topics."""


MissLink: TypeAlias = "ClientConnection[MissServices, MissHandlers]"
"""A client connection as miss fetches see it."""


class Reads:
    """Reads of one connection; `by_key` lists them by partition."""

    __slots__ = ("_in_line", "_link", "by_key")

    def __init__(self, link: MissLink) -> None:
        self._link = link
        self._in_line: set[tuple[Read, ...]] = set()  # until the request scheduler sends them
        self.by_key: dict[MissKey, Read] = {}

    def __len__(self) -> int:
        return len(self.by_key)

    @property
    def fetches_separately(self) -> bool:
        """True if history is fetched separately, even if a request asks for nothing else.

        History may have to wait for its disk, or has a catch-up connection.
        """
        return self._link.broker.disk_throttle.active or self._link.catch_up.usable

    def find(self, status: PartitionStatus, isolation_level: int, version: int) -> Read | None:
        """Return the read that `status` asks for; None if there is none. Its stage is FAILED after
        PATIENCE_S.

        Drops a read of the same partition for another offset or log. Also drops a shared read if
        this client's right has lapsed since (`status` has no partition).
        """
        asked = status.asked
        read = self.by_key.get((asked.topic, asked.partition))
        if read is None:
            return None
        is_others = read.is_shared or read.shared_read is not None
        if read.stage is Stage.SAID and status.offsets_known:
            self.drop(read)
            return None
        is_it = read.answers(asked, isolation_level, version) and self._is_of_this_log(read)
        if not is_it or (is_others and status.partition is None):
            self.drop(read)
            return None
        read.touch(self._link.broker.now())
        return read

    def _find_log(self, asked: FetchPartition) -> tuple[Topic | None, int]:
        """Return the topic by name or id, and its leader epoch; None and -1 where they are unknown."""
        broker = self._link.broker
        topic = broker.topics.find(asked.topic)
        partition = None if topic is None else broker.partitions.find(topic, asked.partition)
        return topic, NO_EPOCH if partition is None else partition.leader_state.epoch

    def _is_of_this_log(self, read: Read) -> bool:
        """Return False if the name means another topic by now, or another leader epoch is known.

        In a new epoch the log may have been truncated below the bytes that were read.
        """
        topic, epoch = self._find_log(read.asked)
        return read.topic is topic and (epoch == NO_EPOCH or read.epoch in (NO_EPOCH, epoch))

    def is_awaited(self, asked: FetchPartition, waiter: WaitingFetch) -> bool:
        """Return True if another Fetch than `waiter` waits for the partition's read."""
        read = self.by_key.get((asked.topic, asked.partition))
        return read is not None and read.waiter is not None and read.waiter is not waiter

    def begin(self, asker: Asker, missed: Sequence[PartitionStatus], waiter: WaitingFetch) -> bool:
        """Begin a read of `asker` for each partition of `missed`, at once or when its disk allows.
        Return False at the byte limit.

        `waiter` is woken when a read ends.
        """
        room = self._link.broker.config.limits.connection_response_memory_bytes
        wanted_bytes = sum(status.asked.max_bytes for status in missed)
        if wanted_bytes + sum(read.asked.max_bytes for read in self.by_key.values()) > room:
            return False
        self._link.listener.tend(self._link)
        now = self._link.broker.now()
        at_once: list[Read] = []
        # The disk throttle needs the size of each read before the broker has answered.
        share_bytes = max(asker.max_bytes // len(missed), 1)
        for status in missed:
            topic, epoch = self._find_log(status.asked)
            read = Read(status, asker, share_bytes, now, waiter, topic, epoch)
            if self._may_go(read):
                at_once.append(read)
        self._send(at_once)
        return True

    def ask_again(self, read: Read) -> None:
        """Send `read` again: the broker had no records, and a Fetch waits for them."""
        read.begin_again()
        self._ask((read,), read.asker, False)

    def _may_go(self, read: Read) -> bool:
        """Return True if the read is to be sent now.

        Otherwise it has joined another read, or waits until its disk allows, or was refused at a
        limit and not begun.
        """
        if self._join(read):
            return False
        disk_throttle = self._link.broker.disk_throttle
        read.begin()
        go = partial(self._granted, read)
        ticket = disk_throttle.submit(
            self._link, read.asker.client_id, read.status, read.size_bytes, go
        )
        if isinstance(ticket, DelayRefused):
            return False
        self.by_key[read.key] = read
        read.submit(ticket)
        if not ticket.granted:
            self._link.broker.shared_reads.wait(read.coalescing_key, read, self)
        return ticket.granted

    def _join(self, read: Read) -> bool:
        """Join the same read of another consumer; return False if there is none."""
        shared, now = self._link.broker.shared_reads, self._link.broker.now()
        shared_read = (
            shared.find(read.coalescing_key, read.asked.max_bytes)
            if now < read.join_until
            else None
        )
        if shared_read is None:
            return False
        self.by_key[read.key] = read
        read.join(shared_read, now)
        shared.join(shared_read, read, self)
        return True

    def may_join(self, read: Read, shared_read: SharedRead) -> None:
        """Join `shared_read`, for which `read` waits at the disk throttle. Only the other reader is
        charged.
        """
        if read.stage is Stage.DELAYED and self._join(read):
            assert read.ticket is not None and read.shared_read is shared_read
            self._link.broker.shared_reads.stop_waiting(read.coalescing_key, read)
            self._link.broker.disk_throttle.cancel(read.ticket)

    def landed(self, read: Read, answered: FetchedPartition, frame: Frame) -> None:
        """Take the records that another consumer's read has brought."""
        if read.shared_read is None:
            return  # dropped meanwhile
        read.part(is_shared=True)
        upstream = self._link.upstream
        self._arrive(upstream if upstream.is_connected else None, read, answered, frame)
        self._wake((read,))

    def left_alone(self, read: Read) -> None:
        """Send the read, or join another one in flight: the shared read brought no records."""
        if read.shared_read is None:
            return
        read.part()
        if self._may_go(read):
            self._send((read,))
        elif read.ticket is None and read.shared_read is None:  # refused at the throttle's limit
            self.drop(read)
            self._wake((read,))

    def _granted(self, read: Read) -> None:
        self._link.broker.shared_reads.stop_waiting(read.coalescing_key, read)
        read.grant()
        fail = partial(self.failed, read)
        self._link.broker.attempt(partial(self._send, (read,)), "sending a read beside", fail)

    def _send(self, reads: Sequence[Read]) -> None:
        """Send one Fetch for all reads with the same request fields and the same connection."""
        ways: dict[tuple[Asker, bool], list[Read]] = {}
        for read in reads:
            ways.setdefault((read.asker, read.status.lagging), []).append(read)
        for (asker, lagging), together in ways.items():
            self._ask(together, asker, lagging)

    def _ask(self, reads: Sequence[Read], asker: Asker, lagging: bool) -> None:
        """Submit one Fetch for `reads` to the request scheduler.

        If it is refused, the reads fail, so that their Fetch is refused as a whole.
        """
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
        """Give up the read, for example after an exception. The waiting Fetch is forwarded whole."""
        read.fail()
        self._link.broker.attempt(
            partial(self._account, read, None), "accounting for a read beside"
        )
        self._wake((read,))

    def _dispatch(
        self, together: tuple[Read, ...], asker: Asker, lagging: bool, entry: Entry
    ) -> None:
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
        way = link.catch_up if lagging and link.catch_up.usable else link.upstream
        sent_at = link.broker.now()
        shared, shared_by_read = link.broker.shared_reads, {}
        for read in reads:
            read.send(sent_at)
            shared_by_read[read] = shared.begin(read.coalescing_key, read.asked.max_bytes, way)
        if way is link.upstream:
            link.broker.scheduler.dispatched(entry)

        def on_answer(answer: Frame | None) -> None:
            if answer is None:
                link.broker.scheduler.withdraw(entry)
            else:
                link.broker.scheduler.answered(entry)
            answered = partial(self._answered, way, shared_by_read, asker, sent_at, answer)
            link.broker.attempt(
                answered, "taking what was read beside", partial(self._lost, shared_by_read)
            )

        way.send(frame, 0, on_answer)

    def _lost(self, shared_by_read: dict[Read, SharedRead | None]) -> None:
        """Give up all reads of a request whose response could not be processed, because of an error
        in Forebay.
        """
        for read, shared_read in shared_by_read.items():
            if shared_read is not None:
                self._link.broker.shared_reads.end(shared_read, None, None)
            if read.stage is Stage.READING:
                self.failed(read)
            self._wake((read,))

    def _joins_late(self, read: Read) -> bool:
        """Join a read that another consumer sent while this one waited in the scheduler; return
        False if there is none.
        """
        if self.by_key.get(read.key) is not read or not self._join(read):
            return False
        self._account(read, None)
        return True

    def _answered(
        self,
        way: CatchUpConnection | BrokerConnection,
        shared_by_read: dict[Read, SharedRead | None],
        asker: Asker,
        sent_at: float,
        frame: Frame | None,
    ) -> None:
        link, reads = self._link, list(shared_by_read)
        response = None
        if frame is not None:
            try:
                response = fetch.scan_response(frame, asker.version)
            except BadFrame:
                link.broker.counters.faults.count_bad_frame()
        by_key: dict[MissKey, FetchedPartition] = {}
        if response is not None and response.error_code == ErrorCode.NONE:
            by_key = {(p.topic, p.partition): p for p in response.partitions}
        for read in reads:
            self._account(read, by_key.get(read.key))
            if self.by_key.get(read.key) is read:
                read.pause(response.throttle_time_ms if response is not None else 0)
                self._arrive(way, read, by_key.get(read.key), frame)
        if response is not None:
            link.handlers.authorization.learn_answer(response, sent_at)
        for read, shared_read in shared_by_read.items():
            if shared_read is not None:
                link.broker.shared_reads.end(shared_read, by_key.get(read.key), frame)
        self._wake(reads)

    def _wake(self, reads: Sequence[Read]) -> None:
        waiters = dict.fromkeys(read.waiter for read in reads if read.waiter is not None)
        for waiter in waiters:
            self._link.broker.attempt(waiter.evaluate_again, "waking a fetch")

    def _account(self, read: Read, answered: FetchedPartition | None) -> None:
        """Report to the disk throttle how many bytes the disk has read."""
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
        """Take the answer that came by `way`; None: the client has no broker connection."""
        if answered is None or frame is None or not is_plain(answered):
            self._fail(way, read, answered)
            return
        if answered.end == answered.start:
            committed = read.asker.isolation_level == READ_COMMITTED
            limit = answered.last_stable_offset if committed else answered.high_watermark
            if read.asked.fetch_offset < limit:  # other partitions took the room: ask again later
                self.drop(read)
            elif read.offsets_unknown:
                read.arrive_empty(answered)
            else:
                read.fail()
            return
        epoch = self._find_log(read.asked)[1] if read.epoch == NO_EPOCH else read.epoch
        read.arrive(answered, frame, epoch)
        charged_on = None if way is None else way.framed
        self._link.broker.responses.add(read.charged_bytes, charged_on)

    def _fail(
        self,
        way: CatchUpConnection | BrokerConnection | None,
        read: Read,
        answered: FetchedPartition | None,
    ) -> None:
        """End a read that brought no records.

        A plain error of one partition, on the client's own broker connection, goes to the waiting
        Fetch: it costs the other partitions nothing. Anything else makes the Fetch be forwarded
        whole.
        """
        read.fail()
        if answered is None or way is not self._link.upstream or not is_mere_error(answered):
            return
        if read.waiter is None:
            self.drop(read)
        else:
            read.arrive_as_error(answered)

    def drop(self, read: Read) -> None:
        """Forget the read, and release its ticket, its place among joiners and its charged bytes."""
        if self.by_key.get(read.key) is read:
            del self.by_key[read.key]
        if read.shared_read is not None:
            self._link.broker.shared_reads.leave(read.shared_read, read)
            read.part()
        if read.stage is Stage.DELAYED and read.ticket is not None:
            self._link.broker.shared_reads.stop_waiting(read.coalescing_key, read)
            self._link.broker.disk_throttle.cancel(read.ticket)
        if read.charged_bytes:
            self._link.broker.responses.sub(read.release())

    def drop_asked(
        self, asked: Sequence[FetchPartition], waiter: WaitingFetch | None = None
    ) -> None:
        """Forget the reads of partitions that a Fetch needs none for: memory or the broker answers it.
        `waiter`: that Fetch, if it may wait for them.
        """
        for one in asked:
            read = self.by_key.get((one.topic, one.partition))
            if read is not None and (read.waiter is None or read.waiter is waiter):
                self.drop(read)

    def leave(self, waiter: WaitingFetch) -> None:
        """Detach `waiter`, which has been answered. Its reads continue without it; errors are
        dropped.
        """
        for read in self.by_key.values():
            if read.waiter is waiter:
                read.attach(None)
        for read in [r for r in self.by_key.values() if r.has_error and r.waiter is None]:
            self.drop(read)

    def drop_old(self, now: float) -> None:
        """Periodic: forget reads without a Fetch that asks for them since KEPT_S. `now` is in
        seconds.
        """
        for read in [r for r in self.by_key.values() if now - r.asked_at > KEPT_S]:
            self.drop(read)

    def close(self) -> None:
        """Forget all reads: the connection is closed. Requests that are still in the scheduler will
        not be sent.
        """
        for read in list(self.by_key.values()):
            self.drop(read)
        for together in self._in_line:
            for read in together:
                self._account(read, None)
        self._in_line.clear()
