"""What one connection reads from the broker beside its answers: the misses of requests that memory answers in
part.

Owns the reads of one connection: begun, delayed, arrived, collected, and their bounds. It must not know the
waiting Fetch beyond waking it. Invariants (design, "Fetch", split):
* one read a partition and connection; another offset, isolation level or epoch drops it, and so does a lapse
  of KEPT_S without a Fetch that asks for it.
* what has arrived is handed out once, to this connection's next Fetch of that offset.
* an answer that is more than records (an error, a diverging epoch, a preferred replica, nothing at all), or
  that has not come within PATIENCE_S, is never retold: the Fetch that waits is forwarded whole, and the
  broker speaks for itself.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch, fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_request
from proxy.fetch_plan import READ_COMMITTED
from proxy.learn import learn_answer
from throttle.tickets import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.wire import Frame
    from proxy.client_link import ClientLink
    from proxy.fetch_plan import Looked
    from proxy.fetch_record import FetchRecord
    from proxy.gate import Entry
    from proxy.lane import Lane
    from proxy.parked import ParkedFetch
    from proxy.upstream_link import UpstreamLink
    from throttle.tickets import Ticket

KEPT_S = 5.0
"""How long a read is kept that no Fetch of this connection asks for."""
PATIENCE_S = 20.0
"""After which the broker is asked by the client's own Fetch, which it then waits for as for any other."""

Key = tuple[str | bytes, int]


class Stage(Enum):
    """How far a read is."""

    DELAYED = "delayed"
    """It waits in the delayed queue."""
    READING = "reading"
    ARRIVED = "arrived"
    FAILED = "failed"
    """The broker had more to say than records, or the link was lost."""


class Asker(NamedTuple):
    """What of the request goes into the read: everything that shapes the broker's answer."""

    version: int
    client_id: str | None
    max_bytes: int
    isolation_level: int


class Read:
    """One partition's read. `charged_bytes` are held against the process's bound until it is collected."""

    __slots__ = (
        "answered",
        "asked",
        "asked_at",
        "asker",
        "charged_bytes",
        "frame",
        "lagging",
        "queue_key",
        "sent_at",
        "stage",
        "throttle_time_ms",
        "ticket",
        "waiter",
    )

    def __init__(self, looked: Looked, asker: Asker, now: float) -> None:
        self.asked = looked.asked
        self.queue_key = looked.queue_key
        self.asker = asker
        self.lagging = looked.lagging
        self.stage = Stage.READING
        self.sent_at = now
        self.asked_at = now
        self.answered: FetchedPartition | None = None
        self.frame: Frame = b""
        self.charged_bytes = 0
        self.throttle_time_ms = 0
        self.ticket: Ticket | None = None
        self.waiter: ParkedFetch | None = None

    @property
    def key(self) -> Key:
        """Topic as the client names it, and partition."""
        return self.asked.topic, self.asked.partition

    @property
    def held_bytes(self) -> int:
        """Record bytes that have arrived."""
        return 0 if self.answered is None else self.answered.end - self.answered.start

    @property
    def delay_s(self) -> float:
        """How long it waited until the disk could bear it."""
        return 0.0 if self.ticket is None else self.ticket.delay_s

    def answers(self, asked: FetchPartition, isolation_level: int) -> bool:
        """Whether this is the read that `asked` wants: sizes may differ."""
        return self.asker.isolation_level == isolation_level and self.asked[:5] == asked[:5]

    def records(self, room: int, at_least_one: bool) -> memoryview:
        """The whole batches that fit into `room`, the first one regardless if `at_least_one`."""
        assert self.answered is not None
        start, end = self.answered.start, self.answered.end
        if end - start > room:
            fits = start
            for one in batch.scan_batches(self.frame, start, end):
                if one.end - start > room and not (at_least_one and fits == start):
                    break
                fits = one.end
            end = fits
        return memoryview(self.frame)[start:end]


class Reads:
    """The reads of one connection, by partition."""

    __slots__ = ("_by_key", "_link")

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self._by_key: dict[Key, Read] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, asked: FetchPartition, isolation_level: int) -> Read | None:
        """The read of exactly this; one of the same partition that is of something else is dropped."""
        read = self._by_key.get((asked.topic, asked.partition))
        if read is None:
            return None
        if not read.answers(asked, isolation_level):
            self.drop(read)
            return None
        read.asked_at = now = self._link.broker.now()
        if read.stage is Stage.READING and now - read.sent_at > PATIENCE_S:
            read.stage = Stage.FAILED
        return read

    def begin(self, record: FetchRecord, missed: Sequence[Looked], waiter: ParkedFetch) -> bool:
        """Read what `missed` names, now or when the disk can bear it. False at the bound."""
        room = self._link.broker.config.limits.connection_response_memory_bytes
        wanted_bytes = sum(looked.asked.max_bytes for looked in missed)
        if wanted_bytes + sum(read.asked.max_bytes for read in self._by_key.values()) > room:
            return False
        now = self._link.broker.now()
        request = record.request
        asker = Asker(
            record.head.api_version, record.head.client_id, request.max_bytes, request.isolation_level
        )
        at_once: list[Read] = []
        share = max(request.max_bytes // len(missed), 1)
        for looked in missed:
            read = Read(looked, asker, now)
            read.waiter = waiter
            if self._may_go(read, looked, min(looked.asked.max_bytes, share)):
                at_once.append(read)
        self._send(at_once)
        return True

    def _may_go(self, read: Read, looked: Looked, size_bytes: int) -> bool:
        """Whether the disk can bear it now; else it waits its turn, or, at a bound, is not begun."""
        go = partial(self._granted, read)
        ticket = self._link.broker.pacer.submit(self._link, read.asker.client_id, looked, size_bytes, go)
        if isinstance(ticket, Refused):
            return False
        self._by_key[read.key] = read
        read.ticket = ticket
        if not ticket.granted:
            read.stage = Stage.DELAYED
        return ticket.granted

    def _granted(self, read: Read) -> None:
        read.stage = Stage.READING
        self._send([read])

    def _send(self, reads: Sequence[Read]) -> None:
        """One Fetch of all that go the same way."""
        ways: dict[tuple[Asker, bool], list[Read]] = {}
        for read in reads:
            ways.setdefault((read.asker, read.lagging), []).append(read)
        for (asker, lagging), together in ways.items():
            self._ask(together, asker, lagging)

    def _ask(self, reads: Sequence[Read], asker: Asker, lagging: bool) -> None:
        """When it is their queue's turn. Refused, they fail, so that their Fetch is refused as a whole."""
        topics = list(dict.fromkeys(read.queue_key for read in reads))
        self._link.broker.gate.enter(
            self._link,
            partial(self._go, reads, asker, lagging),
            partial(self._refused, reads),
            topics=topics,
            watched=() if lagging else topics,
        )

    def _refused(self, reads: Sequence[Read]) -> None:
        for read in reads:
            self._account(read, None)
            read.stage = Stage.FAILED
        self._wake(reads)

    def _go(self, reads: Sequence[Read], asker: Asker, lagging: bool, entry: Entry) -> None:
        link = self._link
        frame = build_request(
            asker.version,
            0,
            asker.client_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=asker.max_bytes,
            isolation_level=asker.isolation_level,
            session_id=0,
            session_epoch=-1,
            partitions=[read.asked for read in reads],
        )
        way = link.lane if lagging and link.lane.usable else link.upstream
        sent_at = link.broker.now()
        for read in reads:
            read.sent_at = sent_at
        if way is link.upstream:
            link.broker.gate.sent(entry)

        def on_answer(answer: Frame | None) -> None:
            if answer is None:
                link.broker.gate.leave(entry)
            else:
                link.broker.gate.answered(entry)
            self._answered(way, reads, asker, sent_at, answer)

        way.send(frame, 0, on_answer)

    def _answered(
        self,
        way: Lane | UpstreamLink,
        reads: Sequence[Read],
        asker: Asker,
        sent_at: float,
        frame: Frame | None,
    ) -> None:
        link = self._link
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
            if self._by_key.get(read.key) is read:
                read.throttle_time_ms = response.throttle_time_ms if response is not None else 0
                self._arrive(way, read, by_key.get(read.key), frame)
        if response is not None and frame is not None:
            learn = partial(learn_answer, link, [read.asked for read in reads], response, frame, sent_at)
            link.broker.attempt(learn, "learning from a read beside")
        self._wake(reads)

    def _wake(self, reads: Sequence[Read]) -> None:
        waiters = dict.fromkeys(read.waiter for read in reads if read.waiter is not None)
        for waiter in waiters:
            self._link.broker.attempt(waiter.look_again, "waking a fetch")

    def _account(self, read: Read, answered: FetchedPartition | None) -> None:
        """The disk has done this much for it."""
        size_bytes = answered.end - answered.start if answered is not None else 0
        if read.ticket is not None:
            self._link.broker.pacer.done(read.ticket, size_bytes)

    def _arrive(
        self,
        way: Lane | UpstreamLink,
        read: Read,
        answered: FetchedPartition | None,
        frame: Frame | None,
    ) -> None:
        if answered is None or frame is None or not _is_plain(answered):
            read.stage = Stage.FAILED
            return
        if answered.end == answered.start:
            committed = read.asker.isolation_level == READ_COMMITTED
            limit = answered.last_stable_offset if committed else answered.high_watermark
            if read.asked.fetch_offset < limit:  # the others' bytes left it no room: it is asked again
                self.drop(read)
            else:
                read.stage = Stage.FAILED
            return
        read.stage = Stage.ARRIVED
        read.answered = answered
        read.frame = frame
        read.charged_bytes = read.held_bytes
        self._link.broker.responses.add(read.charged_bytes, way.wire)

    def drop(self, read: Read) -> None:
        """Nobody wants it any more."""
        if self._by_key.get(read.key) is read:
            del self._by_key[read.key]
        if read.stage is Stage.DELAYED and read.ticket is not None:
            self._link.broker.pacer.cancel(read.ticket)
        if read.charged_bytes:
            self._link.broker.responses.sub(read.charged_bytes)
            read.charged_bytes = 0

    def drop_asked(self, asked: Sequence[FetchPartition]) -> None:
        """These are asked of the broker by a Fetch that is forwarded whole."""
        for one in asked:
            read = self._by_key.get((one.topic, one.partition))
            if read is not None:
                self.drop(read)

    def leave(self, waiter: ParkedFetch) -> None:
        """`waiter` has been answered: its reads go on without it."""
        for read in self._by_key.values():
            if read.waiter is waiter:
                read.waiter = None

    def drop_old(self, now: float) -> None:
        """Timed: what no Fetch has asked for since KEPT_S."""
        for read in [r for r in self._by_key.values() if now - r.asked_at > KEPT_S]:
            self.drop(read)

    def close(self) -> None:
        """The connection is gone."""
        for read in list(self._by_key.values()):
            self.drop(read)


def _is_plain(answered: FetchedPartition) -> bool:
    """Records and offsets only: nothing that a split answer could not retell."""
    return (
        answered.error_code == ErrorCode.NONE
        and answered.diverging is None
        and answered.preferred_read_replica < 0
    )
