"""What is not understood, or need not be, is passed on as it came.

Owns the opaque path of a request and its answer, and the three APIs that are only looked at: ApiVersions
(capped), SaslHandshake and SaslAuthenticate (passed through; version 0 of the handshake is followed by
unframed tokens, so the connection goes blind); and the way of any request for which Forebay's own handling has failed
(`relay_whole`), or that names more than may be read at once (`is_left_unread`). It must not know the cache, nor of
Produce and Fetch more than whether an answer comes, and as what it counts. Invariants: bytes are not changed, but for
the ApiVersions answer; no frame is read whose reading takes longer than what `limits.requestPartitions` allows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.tickets import Waits
from protocol import api, api_versions, control, header, produce
from protocol.errors import BadFrame
from protocol.weight import weigh_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.response_order import Place
    from proxy.net.splice import SpliceTransfer
    from proxy.scheduling.queued_request import Entry

DECODED = {key: row.decoded for key in (api.PRODUCE, api.FETCH) if (row := api.APIS[key]).decoded is not None}
"""What clients may be offered of the APIs whose bodies are read on the data path."""
AFTER_PRODUCES = frozenset({api.PRODUCE, 2, 21, 23, 26, 28})
"""ListOffsets, DeleteRecords, OffsetForLeaderEpoch, EndTxn, TxnOffsetCommit, and a Produce that cannot be
read: they do not overtake the Produces before them on their connection (design, "A connection").
"""
ROUNDS = {"SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
"""Answers without an error that a client needs to be signed in, where one is not enough (RFC 5802)."""
HANDSHAKE_ERROR_AT = 8
"""Index of the error code in a SaslHandshake response frame: length, correlation id, error code
(SaslHandshakeResponse.json).
"""


def relay(
    link: ClientConnection, head: RequestHeader, frame: Frame, on_sent: Callable[[bool], None] | None = None
) -> None:
    """Forward a request, and its answer as it comes. `on_sent`: once that has left, or never will (False)."""
    pass_on(link, head, frame, None, on_sent)


def is_left_unread(link: ClientConnection, head: RequestHeader, frame: Frame) -> bool:
    """Whether a Produce or Fetch names more than `limits.requestPartitions` (counted), or is garbled: reading it would
    hold up all other clients, or is the broker's.
    """
    most = link.broker.config.limits.request_partitions
    weight = weigh_request(head, frame, most)
    link.broker.counters.wide_requests += weight > most
    return weight < 0 or weight > most


def relay_whole(link: ClientConnection, frame: Frame, place: Place | None) -> None:
    """Forward a request whose handling has failed (`Broker.fall_back`), and its answer as it comes, in the place that
    was reserved for it, if one was.
    """
    head, ordinal, on_sent = header.peek_request(frame), link.last_ordinal, None
    if head.api_key == api.FETCH:
        on_sent = partial(link.broker.accounts.enter_unread, link, head, link.broker.now())
    if head.api_key != api.PRODUCE:
        pass_on(link, head, frame, None, on_sent, place or link.replies.reserve())
    elif place is None and _expects_no_answer(head, frame):
        _hand_over(link, head, frame)
    else:

        def settle(answer: Frame) -> Frame:
            link.answered_ordinal = max(link.answered_ordinal, ordinal)
            return answer

        pass_on(link, head, frame, settle, None, place or link.replies.reserve())


def _hand_over(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """Forward what will not be answered, in its order."""
    scheduler = link.broker.scheduler

    def dispatch(entry: Entry) -> None:
        link.forward(head, frame, None)
        scheduler.withdraw(entry)

    scheduler.submit(link, dispatch, is_control=True, size_bytes=len(frame), is_ordered=True)


def _expects_no_answer(head: RequestHeader, frame: Frame) -> bool:
    """Whether it is a Produce without acks."""
    try:
        return produce.peek_acks(frame, head.api_version, head.body_start) == 0
    except BadFrame:
        return False


def relay_share(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """Share sessions live and die with their connection (KIP-932): such a link is never reopened."""
    link.upstream.share_session = True
    relay(link, head, frame)


def relay_api_versions(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """The broker's versions, capped to what Forebay decodes."""
    pass_on(link, head, frame, lambda answer: api_versions.cut_response(answer, head.api_version, DECODED))


def relay_sasl(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """A client authenticates: passed through. From here on the link to the broker has an identity and is
    never reopened. What was accepted is shown on the client's second link too, before the client hears of it.
    """
    link.upstream.authenticated = True
    reply, sent_at = link.replies.reserve(), link.broker.now()

    def on_answer(answer: Frame | None) -> None:
        if answer is None:
            return
        release = partial(link.answer, head, reply, (answer,), len(frame), held_bytes=len(answer))
        lifetime_ms = control.find_session_lifetime_ms(answer, head.api_version)
        if lifetime_ms is not None:
            link.authorization.begin_session(sent_at, link.broker.now(), lifetime_ms / 1000)
            link.saw_accepted()
            link.listener.tend(link)
            link.lane.saw_accepted(frame, head.api_version, release)
        else:
            release()

    link.forward(head, frame, on_answer)


def relay_sasl_handshake(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """As `relay_sasl`; after an accepted handshake of version 0 the tokens are unframed and the connection is
    a blind pipe.
    """
    link.upstream.authenticated = True
    link.limit_unsigned()
    if head.api_version > 0:
        mechanism = control.scan_sasl_mechanism(frame, head.body_start)
        link.sasl_rounds = ROUNDS.get(mechanism, 1)
        link.lane.saw_handshake(frame, mechanism)
        relay(link, head, frame)
        return

    def see(answer: Frame) -> Frame:
        if not any(answer[HANDSHAKE_ERROR_AT : HANDSHAKE_ERROR_AT + 2]):
            _go_blind(link)
        return answer

    pass_on(link, head, frame, see)


def _go_blind(link: ClientConnection) -> None:
    """Nothing of this connection is understood from here on: bytes pass both ways."""
    link.broker.counters.blind_connections += 1
    client, broker = link.wire, link.upstream.wire
    client.go_blind(lambda chunk: pipe(chunk, broker, client))
    broker.go_blind(lambda chunk: pipe(chunk, client, broker))
    link.upstream.authenticated = True


def pipe(chunk: bytes, sink: FramedTransport, source: FramedTransport) -> None:
    """Pass raw bytes on; the source is not read until they have left."""
    source.hold_reading(sink)
    sink.send((chunk,), lambda _sent: source.release_reading(sink))


def pass_on(
    link: ClientConnection,
    head: RequestHeader,
    frame: Frame,
    see: Callable[[Frame], Frame] | None,
    on_sent: Callable[[bool], None] | None = None,
    place: Place | None = None,
) -> None:
    """Forward a request when it is its turn; what `see` makes of the answer goes to the client, None: as it comes.
    `place`: its handling has failed, and this is where its answer belongs.
    """
    if place is None:
        reply = link.replies.reserve(is_control=True)
        whole = partial(relay_whole, link, frame, reply)
    else:
        reply, whole = link.replies.stand_in(place), None
    scheduler = link.broker.scheduler

    def dispatch(entry: Entry) -> None:
        def on_answer(answer: Frame | None) -> None:
            if answer is not None:
                scheduler.answered(entry)
                shown = answer if see is None else see(answer)
                link.answer(head, reply, (shown,), len(frame), on_sent, held_bytes=len(answer))

        def on_begun(begun: bytes, frame_bytes: int, source: FramedTransport) -> SpliceTransfer | None:
            on_end = partial(scheduler.answered, entry)
            return link.begin_pieces(head, reply, len(frame), on_sent, begun, frame_bytes, source, on_end)

        scheduler.dispatched(entry)
        link.forward(head, frame, on_answer, on_begun if see is None else None)

    scheduler.submit(
        link,
        dispatch,
        is_control=True,
        size_bytes=len(frame),
        waits=Waits.POLL,
        is_ordered=head.api_key in AFTER_PRODUCES,
        whole=whole,
    )
