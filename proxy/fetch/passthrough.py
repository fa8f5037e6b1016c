"""A Fetch that passes: to the broker as it came, fetch session and all, and its answer back; neither teaches anything.

Owns the way of followers' Fetches, and of all where memory does not serve (`cache.mode: off`, shared identities). What
is looked at of one is what its queue and the accounts ask for, when they ask. It must not know memory, nor why a Fetch
passes. Invariants: not a byte is changed; a large answer of which only records lack leaves past this process's memory
(net/splice.py); an answer is counted when its last byte has left. Why it is apart: docs/decisions/0017.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from isolation.tickets import Waits
from protocol import api, fetch, fetch_ordinary, header
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_response
from proxy.fetch.record import FetchRecord
from proxy.fetch.response import PAUSE_MS, REFUSED
from proxy.net.splice import SpliceTransfer, may_pass
from proxy.partitions.readable import PartitionOutcome, PartitionStatus, ReadState
from proxy.relay import relay_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchRequest, FetchResponse
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.net.framed_transport import FramedTransport
    from proxy.scheduling.queued_request import Entry
    from proxy.scheduling.request_scheduler import RequestScheduler

PASS: Final = ReadState.PASS.value
DISABLED: Final = "disabled"
FOLLOWER: Final = "follower"
"""Reasons for which a request passes."""
CONSUMER: Final = -1
"""The replica id of who is no follower."""
CLIENT_ID_AT: Final = header.CLIENT_ID_START + 2
NO_NAMES: Final = b""


def pass_single_fetch(link: ClientConnection, frame: Frame, scanned: list[int]) -> None:
    """Pass a request of the ordinary form (`fetch_ordinary.scan_request`) where memory does not serve."""
    version, correlation_id, client_id_end, body_start, replica_id, asked, names_start, names_end = scanned
    is_null = frame[header.CLIENT_ID_START] > 0x7F
    link.client_id = None if is_null else str(frame[CLIENT_ID_AT:client_id_end], "utf-8", "replace")
    passed = PassthroughFetch(
        link, frame, version, body_start, DISABLED if replica_id == CONSUMER else FOLLOWER, asked
    )
    if asked:
        passed.names = bytes(frame[names_start:names_end])
    scheduler = link.broker.scheduler
    if scheduler.enabled:
        passed.enter(scheduler, correlation_id)
    else:
        link.send(api.FETCH, correlation_id, frame, passed.answered, passed.begun)


def pass_fetch(
    link: ClientConnection, head: header.RequestHeader, request: FetchRequest, frame: Frame, reason: str
) -> None:
    """Pass any other."""
    passed = PassthroughFetch(link, frame, head.api_version, head.body_start, reason, len(request.partitions))
    passed.request = request
    passed.enter(link.broker.scheduler, head.correlation_id)


class PassthroughFetch:
    """One on its way, itself its place among the replies. `asked`: how many partitions it names; `names`: the one, as
    its bytes name it.
    """

    __slots__ = (
        "_answer_bytes",
        "_body_start",
        "_entry",
        "_frame",
        "_link",
        "_reason",
        "_received_at",
        "_sizes",
        "_version",
        "asked",
        "names",
        "request",
    )

    is_control = False

    def __init__(
        self, link: ClientConnection, frame: Frame, version: int, body_start: int, reason: str, asked: int
    ) -> None:
        self._link = link
        self._frame = frame
        self._version = version
        self._body_start = body_start
        self._reason = reason
        self._received_at = link.broker.now()
        link.replies.line.append(self)
        self._entry: Entry | None = None
        self._answer_bytes = 0
        self._sizes: Sequence[int] = ()
        self.asked = asked
        self.names = NO_NAMES
        self.request: FetchRequest | None = None

    # -- to the broker -------------------------------------------------------------------------------------

    def enter(self, scheduler: RequestScheduler, correlation_id: int) -> None:
        """Go when it is its turn: a follower's waits for as long as it takes."""
        link, frame = self._link, self._frame

        def dispatch(entry: Entry) -> None:
            self._entry = entry
            scheduler.dispatched(entry)
            link.send(api.FETCH, correlation_id, frame, self.answered, self.begun)

        is_control = self._reason == FOLLOWER
        scheduler.submit(
            link,
            dispatch,
            None if is_control else self._refuse,
            is_control=is_control,
            topics=[asked.topic for asked in self._read().partitions],
            size_bytes=len(frame),
            waits=Waits.POLL,
            whole=partial(relay_whole, link, frame, self),
        )

    def _read(self) -> FetchRequest:
        """What it asks, read when somebody wants to know."""
        if self.request is None:
            self.request = fetch.scan_request(self._frame, self._version, self._body_start)
        return self.request

    def _refuse(self) -> None:
        """Its queue toward the broker is full: answered empty, it asks again. A session of the broker's that it names
        has not been asked, and is said to be over: the next Fetch makes another (FetchSessionHandler.handleResponse).
        """
        self._link.broker.counters.fetch_refused += 1
        record = self._record()
        record.reply = self._link.replies.stand_in(self)
        buffers = build_response(
            self._version,
            record.head.correlation_id,
            throttle_time_ms=PAUSE_MS,
            error_code=ErrorCode.NONE,
            session_id=0,
            partitions=(),
        )
        record.served([PartitionOutcome(status, 0, *REFUSED) for status in self._looks()], buffers, (), 0)

    # -- and back ------------------------------------------------------------------------------------------

    def begun(self, head: bytes, frame_bytes: int, source: FramedTransport) -> SpliceTransfer | None:
        """A large answer has begun: it passes by, if all that is to be known of it is there, it is its turn, and
        nothing waits before it.
        """
        link = self._link
        line = link.replies.line
        if not line or line[0] is not self:
            return None
        end = self._scan_head(head, frame_bytes)
        has_room = link.broker.responses.has_room(frame_bytes)
        if not may_pass(source, link.wire, end - len(head), frame_bytes - end, has_room):
            return None
        self._answer_bytes = frame_bytes
        return SpliceTransfer(
            source, link.wire, link.broker.responses, head, frame_bytes, frame_bytes - end, self._ended
        )

    def _ended(self, last: bytes) -> None:
        """Its last bytes are here, all before them on their way to the client."""
        link = self._link
        link.broker.counters.responses_out[api.FETCH].size_bytes += self._answer_bytes - len(last)
        if self._entry is not None:
            link.broker.scheduler.answered(self._entry)
        link.answer_whole(api.FETCH, self, last, len(last), len(self._frame), self._left)

    def answered(self, answer: Frame | None) -> None:
        """The broker's answer, whole; None: its link is lost, and with it the client's."""
        link = self._link
        if answer is None:
            link.broker.counters.undelivered_partitions += self.asked
            return
        if self._entry is not None:
            link.broker.scheduler.answered(self._entry)
        self._scan_whole(answer)
        link.answer_whole(api.FETCH, self, answer, len(answer), len(self._frame), self._left)

    def _scan_head(self, head: bytes, frame_bytes: int) -> int:
        """Where the records end of which some lack; 0 where that is not all that lacks. Notes the sizes."""
        end = self._scan_ordinary(head, frame_bytes)
        if end is not None:
            return end
        try:
            response = fetch.scan_response_head(head, self._version, frame_bytes)
        except BadFrame:
            return 0
        if response is None:
            return 0
        self._note_sizes(response)
        return response.partitions[-1].end

    def _scan_ordinary(self, head: Frame, frame_bytes: int) -> int | None:
        """Where the records end, by C; None where the answer is not of the ordinary form. Notes the sizes."""
        if self.asked and not self.names:
            return None
        found = fetch_ordinary.scan_answer(head, frame_bytes, self._version, self.names)
        if found is None:
            return None
        start, end = found
        self._sizes = (end - start,) if self.asked else ()
        return end

    def _scan_whole(self, answer: Frame) -> None:
        if self._scan_ordinary(answer, len(answer)) is not None:
            return
        try:
            response = fetch.scan_response(answer, self._version)
        except BadFrame:
            self._link.broker.counters.bad_frames += 1
            self._sizes = (0,) * self.asked
        else:
            self._note_sizes(response)

    def _note_sizes(self, response: FetchResponse) -> None:
        by_key = {(one.topic, one.partition): one.end - one.start for one in response.partitions}
        self._sizes = [by_key.get((asked.topic, asked.partition), 0) for asked in self._read().partitions]

    # -- the accounts --------------------------------------------------------------------------------------

    def _left(self, delivered: bool) -> None:
        """The answer's last byte has left, or never will. Where nobody wants lines or pays, three numbers say all."""
        broker = self._link.broker
        if broker.accounts.lines is not None or broker.scheduler.quotas.active or not delivered:
            verdict = PASS, self._reason
            told = [PartitionOutcome(*one, *verdict) for one in zip(self._looks(), self._sizes, strict=True)]
            broker.accounts.enter(self._record(), told, delivered, is_ours=False)
            return
        counters = broker.counters
        if self._sizes:
            verdict = PASS, self._reason
            counters.fetch_partitions[verdict] += self.asked
            counters.fetch_bytes[verdict] += sum(self._sizes)
        counters.fetch_upstream_s.observe(broker.now() - self._received_at)

    def _looks(self) -> list[PartitionStatus]:
        """Of each partition, which memory was not asked about."""
        return [
            PartitionStatus(asked, None, ReadState.PASS, self._reason, -1)
            for asked in self._read().partitions
        ]

    def _record(self) -> FetchRecord:
        head = header.peek_request(self._frame)
        return FetchRecord(self._link, head, self._read(), len(self._frame), received_at=self._received_at)
