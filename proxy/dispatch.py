"""Dispatch: the handler of each request, by its API key. Requests of other keys are relayed.

Owns the table from Kafka's API keys to handlers, and the choice between the fast paths and the
general ones. Makes the objects that handlers keep for a connection. Must not know a handler's work.
Invariant: an exception in a handler costs its request a miss, not its connection
(`Broker.fall_back`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from protocol import api, fetch_rows, header
from protocol.errors import BadFrame
from protocol.fetch_build import KeptLayout
from protocol.groups import NAMING_GROUPS
from proxy.fetch.authorization import Authorization
from proxy.fetch.handler import handle_fetch, relay_unread
from proxy.fetch.misses.reads import Reads
from proxy.fetch.passthrough import pass_fetch
from proxy.fetch.sessions.repeated import RepeatedFetches
from proxy.produce.handler import handle_produce
from proxy.produce.pipeline import start_pipeline
from proxy.produce.receive_in_arena import find_lender
from proxy.produce.splice_request import let_produces_pass
from proxy.relay import (
    relay,
    relay_addresses,
    relay_api_versions,
    relay_group,
    relay_sasl,
    relay_sasl_handshake,
    relay_share,
    relay_whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.header import RequestHeader
    from protocol.primitives import Frame
    from proxy.broker import Broker
    from proxy.config.model import Limits
    from proxy.net.client_connection import ClientConnection
    from proxy.net.response_order import Place
    from proxy.relay import RelayLink

    Handler = Callable[[RelayLink, RequestHeader, Frame], None]
    Link = ClientConnection[Broker, "Dispatch"]

SHARE_FETCH: Final = 78
"""ShareFetch (KIP-932)."""
SHARE_ACKNOWLEDGE: Final = 79
"""ShareAcknowledge (KIP-932)."""

ROUTES: Final[dict[int, Handler]] = {
    api.API_VERSIONS: relay_api_versions,
    api.SASL_HANDSHAKE: relay_sasl_handshake,
    api.SASL_AUTHENTICATE: relay_sasl,
    **dict.fromkeys(NAMING_GROUPS, relay_group),
    api.METADATA: relay_addresses,
    api.DESCRIBE_CLUSTER: relay_addresses,
    SHARE_FETCH: relay_share,
    SHARE_ACKNOWLEDGE: relay_share,
}

KEY_START, KEY_END = header.FIXED_START, header.FIXED_START + 2
"""Position of the API key (int16) in a request frame."""
PRODUCE_KEY, FETCH_KEY = api.PRODUCE.to_bytes(2, "big"), api.FETCH.to_bytes(2, "big")


class Dispatch:
    """Handles the requests of one client connection, and owns what handlers keep for it
    (`net.services.Handlers`).
    """

    __slots__ = ("_has_pipeline", "_link", "_most", "authorization", "kept", "reads", "repeated")

    _most: int
    authorization: Authorization
    kept: KeptLayout
    reads: Reads
    repeated: RepeatedFetches

    def __init__(self, link: Link, has_pipeline: bool = True) -> None:
        """`has_pipeline`: Produces may use the pipeline (proxy/produce/pipeline.py)."""
        self._link = link
        self._has_pipeline = has_pipeline

    def open(self) -> None:
        """Make the objects that handlers keep for the connection."""
        link = self._link
        self.set_limits(link.broker.config.limits)
        self.authorization = Authorization(link)
        self.kept, self.repeated = KeptLayout(), RepeatedFetches(link.broker.sessions)
        self.reads = Reads(link)
        link.framed.framer.borrow_from(find_lender(link.broker, link.stores))
        if not link.is_unread:
            let_produces_pass(link)

    def set_limits(self, limits: Limits) -> None:
        """Take other limits for the requests that arrive from now on."""
        self._most = limits.request_partitions

    @property
    def is_idle(self) -> bool:
        """Return True if no miss fetch is open."""
        return not self.reads.by_key

    def begin_session(self, sent_at: float, lifetime_s: float) -> None:
        """Note that Forebay has signed in for the client, by a request of `sent_at`."""
        self.authorization.begin_session(sent_at, self._link.broker.now(), lifetime_s)

    def complete_delayed(self, place: Place | None = None) -> None:
        """Answer the delayed Fetch that holds `place` with the bytes readable now; None: all of the
        connection.
        """
        purgatory = self._link.broker.purgatory
        if place is None:
            purgatory.leave(self._link)
        else:
            purgatory.leave_one(self._link, place)

    def close(self) -> None:
        """Release all that is kept for the connection, which has ended."""
        link, broker = self._link, self._link.broker
        broker.purgatory.drop(link)
        broker.replica_fetcher.drop_link(link)
        broker.scheduler.drop_link(link)
        self.authorization.close()
        self.reads.close()
        self.repeated.close()
        broker.sessions.remove_owned(link)

    def receive(self, frame: Frame) -> None:
        """Handle one whole request frame. Closes the client if the frame's header cannot be read.
        Any other exception makes the request fall back to `relay_whole`.
        """
        link = self._link
        if link.pipeline is not None:
            link.pipeline.materialize()
        key, line, sent_count = frame[KEY_START:KEY_END], link.replies.places, link.sent_count
        newest = line[-1] if line else None
        try:
            if link.is_unread and key in (PRODUCE_KEY, FETCH_KEY):
                self._relay_unread(frame)
            elif key == PRODUCE_KEY:
                is_single = handle_produce(link, frame, self._most)
                if is_single and self._has_pipeline and link.pipeline is None:
                    start_pipeline(link)
            elif key == FETCH_KEY and link.stores:
                handle_fetch(link, frame, self._most)
            else:
                self._handle(frame, key == FETCH_KEY)
        except BadFrame as error:
            link.on_bad(error)
            return
        except Exception:
            if key == FETCH_KEY:
                self.repeated.close()  # the Fetch may have left it half changed
            # a new last place was reserved by this request, before its handler failed
            place = line[-1] if line and line[-1] is not newest else None
            whole = partial(relay_whole, link, frame, place)
            link.broker.fall_back(link, sent_count, "handling a request", whole)
        if line or link.request_bytes:
            link.hold_at_bounds()

    def _relay_unread(self, frame: Frame) -> None:
        """Relay a Produce or Fetch of a bypassed listener: of it only the header is read."""
        link, head = self._link, header.peek_request(frame)
        link.count_request(head.api_key, len(frame))
        if link.client_id != head.client_id:
            link.name_client(head.client_id)
        if head.api_key == api.PRODUCE:
            link.last_ordinal += 1
        relay_whole(link, frame, None)

    def _handle(self, frame: Frame, is_fetch: bool) -> None:
        link = self._link
        if is_fetch:
            scanned = fetch_rows.scan_head(frame, self._most)
            if scanned is None:
                relay_unread(link, frame)
            else:
                pass_fetch(link, frame, scanned)
            return
        head = header.peek_request(frame)
        link.count_request(head.api_key, len(frame))
        if link.client_id != head.client_id:
            link.name_client(head.client_id)
        ROUTES.get(head.api_key, relay)(link, head, frame)
