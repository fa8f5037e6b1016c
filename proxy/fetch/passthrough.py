"""Pass-through Fetch: to the broker as it came, fetch session included, and the response back.

Owns the way of followers' Fetches, and of all Fetches where memory does not serve (`cache.mode:
off`, shared identities). Fields are decoded only when a queue or the accounting asks for them. Must
not know memory, nor why a Fetch passes. Invariants:
* No byte is changed, and nothing is learned from the response.
* A large response of which only records are missing is spliced past this process's memory
  (net/splice.py).
* A response is counted when its last byte has left.

docs/decisions/0017 says why this way is separate.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from isolation.tickets import Waits
from protocol import api, fetch, fetch_ordinary, header
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import build_response
from protocol.fetch_rows import scan_request
from proxy.fetch.evaluate import DISABLED
from proxy.fetch.response import PAUSE_MS, REFUSED
from proxy.fetch.services import ClientFetch
from proxy.net.splice import SpliceTransfer, may_pass
from proxy.partitions.readable import PartitionOutcome, PartitionStatus, ReadState
from proxy.relay import relay_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchRequest, FetchResponse
    from protocol.fetch_rows import FetchHead
    from protocol.primitives import Frame
    from proxy.fetch.services import FetchLink
    from proxy.net.framed_transport import FramedTransport
    from proxy.scheduling.queued_request import Entry
    from proxy.scheduling.request_scheduler import RequestScheduler

PASS: Final = ReadState.PASS.value
FOLLOWER: Final = "follower"
"""Reason of a pass: the request comes from a follower."""
CONSUMER: Final = -1
"""Replica id of a request that does not come from a follower."""
CLIENT_ID_AT: Final = header.CLIENT_ID_START + 2
"""Offset of the client id's first byte in a request frame."""
NO_NAMES: Final = b""
"""Value of `PassthroughFetch.names` if the request's names were not scanned."""


def pass_fetch(link: FetchLink, frame: Frame, head: FetchHead) -> None:
    """Pass a request where memory does not serve. `head` is that of `frame`, the whole request."""
    link.count_request(api.FETCH, len(frame))
    is_null = frame[header.CLIENT_ID_START] > 0x7F
    client_id = (
        None if is_null else str(frame[CLIENT_ID_AT : head.client_id_end], "utf-8", "replace")
    )
    if link.client_id != client_id:
        link.name_client(client_id)
    reason = DISABLED if head.replica_id == CONSUMER else FOLLOWER
    asked = head.partitions
    names = bytes(frame[head.names_start : head.names_end]) if asked == 1 else NO_NAMES
    passed = PassthroughFetch(link, frame, head.version, reason, asked, names=names)
    scheduler = link.broker.scheduler
    if scheduler.enabled:
        passed.enter(scheduler, head.correlation_id)
    else:
        link.send(api.FETCH, head.correlation_id, frame, passed.answered, passed.begun)


def pass_follower(
    link: FetchLink, frame: Frame, head: header.RequestHeader, request: FetchRequest
) -> None:
    """Pass a follower's request where memory serves consumers."""
    asked = len(request.partitions)
    passed = PassthroughFetch(link, frame, head.api_version, FOLLOWER, asked, request=request)
    passed.enter(link.broker.scheduler, head.correlation_id)


class PassthroughFetch:
    """A request on its way; the object is also its place in the response order.

    `asked` is the number of partitions that it names. `names` has the names of topic and partition
    as the request's bytes have them, for one partition; otherwise NO_NAMES.
    """

    __slots__ = (
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
        self,
        link: FetchLink,
        frame: Frame,
        version: int,
        reason: str,
        asked: int,
        *,
        names: bytes = NO_NAMES,
        request: FetchRequest | None = None,
    ) -> None:
        """`request` None: it is decoded when a field of it is asked for."""
        self._link = link
        self._frame = frame
        self._version = version
        self._reason = reason
        self._received_at = link.broker.now()
        link.replies.places.append(self)
        self._entry: Entry | None = None
        self._sizes: Sequence[int] = ()
        self.asked = asked
        self.names = names
        self.request = request

    # -- to the broker -------------------------------------------------------------------------------------

    def enter(self, scheduler: RequestScheduler, correlation_id: int) -> None:
        """Submit the request to the scheduler. A follower's request waits as long as needed and is
        never refused.
        """
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
        """Return the decoded request; decodes it at the first call."""
        if self.request is None:
            scanned = scan_request(self._frame, len(self._frame))
            assert scanned is not None, "its head was read"
            self.request = scanned[1]
        return self.request

    def _refuse(self) -> None:
        """Answer empty, because the queue toward the broker is full; the client asks again.

        The broker has not seen the session that the request names. Session id 0 tells the client
        that the session is over, so that its next Fetch creates another
        (FetchSessionHandler.handleResponse).
        """
        self._link.broker.counters.fetch.refuse()
        fetch = self._build_fetch()
        (frame,) = build_response(
            self._version,
            fetch.head.correlation_id,
            throttle_time_ms=PAUSE_MS,
            error_code=ErrorCode.NONE,
            session_id=0,
            partitions=(),
        )
        outcomes = [PartitionOutcome(status, 0, *REFUSED) for status in self._build_statuses()]
        left = partial(self._link.broker.accounts.enter, fetch, outcomes, True)
        size_bytes = len(self._frame)
        self._link.answer_whole(api.FETCH, self, frame, len(frame), size_bytes, left)

    # -- from the broker -----------------------------------------------------------------------------------

    def begun(
        self, head: bytes, frame_bytes: int, source: FramedTransport
    ) -> SpliceTransfer | None:
        """Return a splice for a large response that has begun; None if it must be received as a
        whole.

        Splicing needs three things. Only record bytes are missing; the response is the next one of
        this connection; and no bytes wait to be sent before it. `head` is the response so far;
        `frame_bytes` is its whole size.
        """
        link = self._link
        if not link.may_begin_pieces(self):
            return None
        end = self._scan_head(head, frame_bytes)
        has_room = link.broker.responses.has_room(frame_bytes)
        if not may_pass(source, link.framed, end - len(head), frame_bytes - end, has_room):
            return None
        return SpliceTransfer(
            source,
            link.framed,
            link.broker.responses,
            head,
            frame_bytes,
            frame_bytes - end,
            partial(self._ended, frame_bytes),
        )

    def _ended(self, frame_bytes: int, last: bytes) -> None:
        """Finish the splice of a frame of `frame_bytes`: `last` has its last bytes; all bytes before
        them are on their way to the client.
        """
        link = self._link
        traffic = link.broker.counters.traffic.responses_out[api.FETCH]
        traffic.add(0, frame_bytes - len(last))
        if self._entry is not None:
            link.broker.scheduler.answered(self._entry)
        link.answer_whole(api.FETCH, self, last, len(last), len(self._frame), self._left)

    def answered(self, answer: Frame | None) -> None:
        """Send the broker's whole response. None: the connection to the broker is lost, and the
        client's with it.
        """
        link = self._link
        if answer is None:
            link.broker.counters.fetch.lose(self.asked)
            return
        if self._entry is not None:
            link.broker.scheduler.answered(self._entry)
        self._scan_whole(answer)
        link.answer_whole(api.FETCH, self, answer, len(answer), len(self._frame), self._left)

    def _scan_head(self, head: bytes, frame_bytes: int) -> int:
        """Return the offset in the frame where the incomplete records end; 0 if more than records
        is missing.

        Notes the record bytes of each partition.
        """
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
        """Return the offset in the frame where the records end, by C; None if the C scanner does
        not cover the response.

        Notes the record bytes.
        """
        if self.asked and not self.names:
            return None
        found = fetch_ordinary.scan_answer(head, frame_bytes, self._version, self.names)
        if found is None:
            return None
        start, end = found
        self._sizes = (end - start,) if self.asked else ()
        return end

    def _scan_whole(self, answer: Frame) -> None:
        """Note the record bytes of each partition; a malformed response is counted, and has none."""
        if self._scan_ordinary(answer, len(answer)) is not None:
            return
        try:
            response = fetch.scan_response(answer, self._version)
        except BadFrame:
            self._link.broker.counters.faults.count_bad_frame()
            self._sizes = (0,) * self.asked
        else:
            self._note_sizes(response)

    def _note_sizes(self, response: FetchResponse) -> None:
        by_key = {(one.topic, one.partition): one.end - one.start for one in response.partitions}
        self._sizes = [
            by_key.get((asked.topic, asked.partition), 0) for asked in self._read().partitions
        ]

    # -- accounting ----------------------------------------------------------------------------------------

    def _left(self, delivered: bool) -> None:
        """Count the response: its last byte has left, or never will (`delivered` is False).

        Without an access log and without quotas, three counters are enough, and no objects are
        made.
        """
        broker = self._link.broker
        if broker.accounts.lines is not None or broker.scheduler.quotas.active or not delivered:
            verdict = PASS, self._reason
            outcomes = [
                PartitionOutcome(*one, *verdict)
                for one in zip(self._build_statuses(), self._sizes, strict=True)
            ]
            broker.accounts.enter(self._build_fetch(), outcomes, False, delivered)
            return
        counts = broker.counters.fetch
        if self._sizes:
            verdict = PASS, self._reason
            counts.partitions[verdict] += self.asked
            counts.record_bytes[verdict] += sum(self._sizes)
        counts.upstream_s.observe(broker.now() - self._received_at)

    def _build_statuses(self) -> list[PartitionStatus]:
        """Return a PASS status for each partition; memory was not asked."""
        return [
            PartitionStatus(asked, None, ReadState.PASS, self._reason, -1)
            for asked in self._read().partitions
        ]

    def _build_fetch(self) -> ClientFetch:
        head, size_bytes = header.peek_request(self._frame), len(self._frame)
        return ClientFetch(self._link, head, self._read(), None, size_bytes, self._received_at)
