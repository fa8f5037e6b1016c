"""Relay: forwards requests that Forebay does not handle, and their responses, unread.

Owns the opaque path of a request, and APIs that are only inspected: ApiVersions (capped), the
requests that name a consumer group, SaslHandshake and SaslAuthenticate, which are refused where
Forebay has signed in for the client. Tokens without frames follow version 0 of the handshake, so
that connection becomes a raw byte pipe. Also forwards requests whose handling has failed
(`relay_whole`), or that name more than may be read at once (`is_left_unread`). Must not know the
cache, nor of Produce and Fetch more than whether a response comes and as what it counts.
Invariants: bytes are unchanged, except in the ApiVersions response; no frame is read that names
more than `limits.requestPartitions`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from isolation.tickets import Waits
from protocol import api, api_versions, control, header, metadata, produce
from protocol.error_names import peek_error
from protocol.errors import BadFrame
from protocol.groups import find_group
from protocol.sasl import SaslExchange
from protocol.weight import weigh_request
from proxy.net.services import ConnectionServices, Handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.header import RequestHeader
    from protocol.primitives import Frame
    from protocol.sasl import SaslIdentity
    from proxy.advertised import AdvertisedCheck
    from proxy.net.client_connection import AnyLink, ClientConnection
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.response_order import Place
    from proxy.net.splice import SpliceTransfer
    from proxy.scheduling.queued_request import Entry
    from proxy.scheduling.request_scheduler import RequestScheduler


class Rights(Protocol):
    """A client's rights: those of the principal that it signs in as, within its SASL session."""

    @property
    def exchange(self) -> SaslExchange | None:
        """The client's last SASL exchange; None: it has begun none."""

    def begin_exchange(self, exchange: SaslExchange) -> None:
        """Note that the client begins to sign in."""

    def sign_in(self, identity: SaslIdentity | None) -> None:
        """Note that the broker has ended an exchange. None: its principal is not known, or it has refused."""

    def begin_session(self, sent_at: float, now: float, lifetime_s: float) -> None:
        """Note a SASL session; times in seconds, `lifetime_s` 0 without a limit."""


class UnreadFetches(Protocol):
    """Counts the responses to Fetches that were not decoded."""

    def enter_unread(
        self, link: AnyLink, head: RequestHeader, received_at: float, delivered: bool
    ) -> None:
        """Count one; it has left, or never will (`delivered` False)."""


class IdentitySecret(Protocol):
    """Makes identities that this process alone can compare."""

    @property
    def secret(self) -> bytes:
        """The key of digests."""


class RelayServices(ConnectionServices, Protocol):
    """Handed to what relays requests."""

    @property
    def scheduler(self) -> RequestScheduler:
        """The queues toward the broker."""

    @property
    def accounts(self) -> UnreadFetches:
        """The count of responses."""

    @property
    def principals(self) -> IdentitySecret:
        """The rights of all principals."""

    @property
    def advertised(self) -> AdvertisedCheck:
        """The comparison of what the broker tells clients of its address."""


class RelayHandlers(Handlers, Protocol):
    """What is kept for a connection whose requests are relayed."""

    @property
    def authorization(self) -> Rights:
        """The client's rights."""


RelayLink: TypeAlias = "ClientConnection[RelayServices, RelayHandlers]"
"""A client connection as the relay sees it."""
DECODED = {
    key: row.decoded
    for key in (api.PRODUCE, api.FETCH)
    if (row := api.APIS[key]).decoded is not None
}
"""Highest versions that clients are offered of the APIs whose bodies are read on the data path, by
API key.
"""
AFTER_PRODUCES = frozenset({api.PRODUCE, 2, 21, 23, 26, 28})
"""API keys of requests that do not overtake the Produces before them on their connection (design,
"A connection"): ListOffsets, DeleteRecords, OffsetForLeaderEpoch, EndTxn, TxnOffsetCommit, and a
Produce that cannot be read.
"""
ROUNDS = {"SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
"""SaslAuthenticate responses without error until a client has authenticated, by mechanism; 1 for
others (RFC 5802).
"""
HANDSHAKE_ERROR_AT = 8
"""Index of the error code in a SaslHandshake response frame: length, correlation id, error code
(SaslHandshakeResponse.json).
"""


def relay(
    link: RelayLink,
    head: RequestHeader,
    frame: Frame,
    on_sent: Callable[[bool], None] | None = None,
) -> None:
    """Forward a request, and its response unchanged. `on_sent(True)` runs once the response has
    left, `on_sent(False)` if it never will.
    """
    pass_on(link, head, frame, None, on_sent)


def is_left_unread(link: RelayLink, head: RequestHeader, frame: Frame) -> bool:
    """Whether a Produce or Fetch is to be relayed unread. Either it names more than
    `limits.requestPartitions`, and reading it would delay all other clients (counted as wide). Or
    it is malformed, and the broker answers that.
    """
    most = link.broker.config.limits.request_partitions
    weight = weigh_request(head, frame, most)
    if weight > most:
        link.broker.counters.clients.count_wide()
    return weight < 0 or weight > most


def relay_whole(link: RelayLink, frame: Frame, place: Place | None) -> None:
    """Forward a request whose handling has failed (`Broker.fall_back`), and its response unchanged.
    `place`: the place that was reserved for its response; None if none was.
    """
    head, ordinal, on_sent = header.peek_request(frame), link.last_ordinal, None
    if head.api_key == api.FETCH:
        on_sent = partial(link.broker.accounts.enter_unread, link, head, link.broker.now())
    if head.api_key != api.PRODUCE:
        pass_on(link, head, frame, None, on_sent, place or link.replies.reserve())
    elif place is None and _expects_no_answer(head, frame):
        _forward_unanswered(link, head, frame)
    else:

        def settle(answer: Frame) -> Frame:
            link.note_answered(ordinal)
            return answer

        pass_on(link, head, frame, settle, None, place or link.replies.reserve())


def _forward_unanswered(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Forward a Produce that has no response, in the order of arrival on its connection."""
    scheduler = link.broker.scheduler

    def dispatch(entry: Entry) -> None:
        link.forward(head, frame, None)
        scheduler.withdraw(entry)

    scheduler.submit(link, dispatch, is_control=True, size_bytes=len(frame), is_ordered=True)


def _expects_no_answer(head: RequestHeader, frame: Frame) -> bool:
    """Whether the request is a Produce with acks=0. False if it cannot be read."""
    try:
        return produce.peek_acks(frame, head.api_version, head.body_start) == 0
    except BadFrame:
        return False


def relay_addresses(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Relay a request whose response names the cluster's brokers. One of them in a while is compared with Forebay's own
    address (proxy/advertised.py).
    """
    check = link.broker.advertised
    if not check.is_due(link.listener) or not api.APIS[head.api_key].decodes(head.api_version):
        relay(link, head, frame)
        return

    def see(answer: Frame) -> Frame:
        scan = (
            metadata.scan_brokers if head.api_key == api.METADATA else control.scan_cluster_brokers
        )
        try:
            check.note(link.listener, scan(answer, head.api_version))
        except BadFrame:
            link.broker.counters.faults.count_bad_frame()
        return answer

    pass_on(link, head, frame, see)


def relay_share(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Relay a request of a share session. Share sessions end with their connection (KIP-932), so
    the broker connection is never reopened silently.
    """
    link.upstream.open_share_session()
    relay(link, head, frame)


def relay_group(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Relay a request that names its consumer group, which is noted for the access log and `/top`."""
    group = find_group(head, frame)
    if group:
        link.broker.client_groups.learn(link, group)
    relay(link, head, frame)


def relay_api_versions(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Relay ApiVersions. The response is capped to the versions that Forebay decodes."""
    pass_on(
        link,
        head,
        frame,
        lambda answer: api_versions.cut_response(answer, head.api_version, DECODED),
    )


def relay_sasl(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Relay SaslAuthenticate. The broker connection has an identity from now on, and is never
    reopened silently. The catch-up connection repeats an accepted authentication before the client
    gets the response. The client's rights become those of whom the broker has accepted.
    """
    if link.principal is not None:
        _refuse_sasl(link, head, frame)
        return
    link.upstream.authenticate()
    reply, sent_at = link.replies.reserve(), link.broker.now()
    exchange = link.handlers.authorization.exchange or SaslExchange("")
    token = control.scan_sasl_token(frame, head.body_start, head.api_version)
    number, counters = exchange.count(token), link.broker.counters

    def on_answer(answer: Frame | None) -> None:
        if answer is None:
            counters.apis.lose(head.api_key)
            return
        code = peek_error(answer, head.api_key, head.api_version)
        counters.apis.answer(head.api_key, code, link.broker.now() - sent_at)
        release = partial(link.answer, head, reply, (answer,), len(frame), held_bytes=len(answer))
        said = control.find_accepted(answer, head.api_version)
        authorization = link.handlers.authorization
        if said is not None and exchange.is_step(number, said.auth_bytes):
            if exchange.mechanism in ROUNDS:
                link.saw_accepted()
                link.catch_up.saw_accepted(frame, head.api_version, release)
            else:
                release()
            return
        counters.authentications.end(exchange.mechanism, said is not None)
        secret = link.broker.principals.secret
        authorization.sign_in(
            None if said is None else exchange.find_identity(number, token, said.auth_bytes, secret)
        )
        if said is None:
            release()
            return
        lifetime_s = said.session_lifetime_ms / 1000
        authorization.begin_session(sent_at, link.broker.now(), lifetime_s)
        link.saw_accepted()
        link.listener.tend(link)
        link.catch_up.saw_accepted(frame, head.api_version, release)

    link.forward(head, frame, on_answer)


def relay_sasl_handshake(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Relay SaslHandshake, as `relay_sasl`. Tokens without frames follow an accepted handshake of
    version 0: the connection becomes a raw byte pipe.
    """
    if link.principal is not None:
        _refuse_sasl(link, head, frame)
        return
    link.upstream.authenticate()
    link.limit_unsigned()
    mechanism = control.scan_sasl_mechanism(frame, head.body_start) if head.api_version else ""
    exchange = SaslExchange(mechanism)
    link.handlers.authorization.begin_exchange(exchange)
    if head.api_version > 0:
        link.begin_sasl(ROUNDS.get(mechanism, 1))
        link.catch_up.saw_handshake(frame, mechanism)

    def see(answer: Frame) -> Frame:
        if not any(answer[HANDSHAKE_ERROR_AT : HANDSHAKE_ERROR_AT + 2]):
            exchange.begin()
            if not head.api_version:
                _start_pipe(link)
        else:
            link.broker.counters.authentications.end(mechanism, False)
        return answer

    pass_on(link, head, frame, see)


def _refuse_sasl(link: RelayLink, head: RequestHeader, frame: Frame) -> None:
    """Answer as a broker's listener without SASL: the client's certificate is its identity, and the
    broker must see no SASL of the client's on a connection that Forebay has signed in.
    """
    answer = control.build_refusal_of_sasl(head.api_key, head.api_version, head.correlation_id)
    link.answer(head, link.replies.reserve(is_control=True), (answer,), len(frame))


def _start_pipe(link: RelayLink) -> None:
    """Pass raw bytes both ways from now on."""
    link.broker.counters.clients.go_blind()
    client, broker = link.framed, link.upstream.framed
    client.go_blind(lambda chunk: pipe(chunk, broker, client))
    broker.go_blind(lambda chunk: pipe(chunk, client, broker))
    link.upstream.authenticate()


def pipe(chunk: bytes, sink: FramedTransport, source: FramedTransport) -> None:
    """Send raw bytes to `sink`. `source` is not read until they have left."""
    source.hold_reading(sink)
    sink.send((chunk,), lambda _sent: source.release_reading(sink))


def pass_on(
    link: RelayLink,
    head: RequestHeader,
    frame: Frame,
    see: Callable[[Frame], Frame] | None,
    on_sent: Callable[[bool], None] | None = None,
    place: Place | None = None,
) -> None:
    """Forward a request when the request scheduler lets it go. The client gets the frame that `see`
    makes of the response; `see` None: the response unchanged, by a splice if memory has no room.
    `place`: the reserved place of a request whose handling has failed; None reserves one.
    """
    if place is None:
        reply = link.replies.reserve(is_control=True)
        whole = partial(relay_whole, link, frame, reply)
    else:
        reply, whole = link.replies.stand_in(place), None
    scheduler, now = link.broker.scheduler, link.broker.now
    apis, received_at = link.broker.counters.apis, now()

    def count(answer: Frame) -> None:
        code = peek_error(answer, head.api_key, head.api_version)
        apis.answer(head.api_key, code, now() - received_at)

    def dispatch(entry: Entry) -> None:
        def on_answer(answer: Frame | None) -> None:
            if answer is None:
                apis.lose(head.api_key)
            else:
                count(answer)
                scheduler.answered(entry)
                shown = answer if see is None else see(answer)
                link.answer(head, reply, (shown,), len(frame), on_sent, held_bytes=len(answer))

        def on_begun(
            begun: bytes, frame_bytes: int, source: FramedTransport
        ) -> SpliceTransfer | None:
            if link.broker.responses.has_room(frame_bytes) or not link.may_begin_pieces(reply):
                return None
            count(begun)
            on_end = partial(scheduler.answered, entry)
            return link.begin_pieces(
                head, reply, len(frame), on_sent, begun, frame_bytes, source, on_end
            )

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
