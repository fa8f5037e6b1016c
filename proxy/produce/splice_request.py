"""A large Produce that passes: to the broker while it comes, past this process's memory.

Owns that way, where nothing is asked of a Produce but that it goes on: memory does not store it, and no queue says when
it may go (`isolation.enabled` false). It must not know what is in it beyond its form. Invariants: until all of it is on
its way nothing is counted and no answer is owed; nothing else goes to the broker on its connection meanwhile; whatever
is not of the ordinary form is received whole, for `proxy.produce.handler`. Why: docs/decisions/0017.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import api, header, ordinary
from proxy.net.splice import SpliceTransfer, may_pass

if TYPE_CHECKING:
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.net.response_order import Reply

END = 5
"""Place of the batch's end among what was scanned."""


def let_produces_pass(link: ClientConnection) -> None:
    """On this connection, if it is one where they may."""
    if not (link.stores or link.broker.scheduler.enabled):
        link.wire.on_large = partial(_begin, link)
        link.wire.on_passed = SpliceTransfer.end


def _begin(link: ClientConnection, begun: bytes, frame_bytes: int) -> SpliceTransfer | None:
    """A large request has begun: it passes, if it is an ordinary Produce, and nothing waits before it."""
    scanned = ordinary.scan_begun(begun, frame_bytes)
    upstream, limits = link.upstream, link.broker.config.limits
    if scanned is None or upstream.closed or not upstream.is_connected:
        return None
    flying = len(link.pipeline) if link.pipeline is not None else 0
    if len(link.replies.line) + flying + 1 >= limits.pipelined_requests:
        return None
    end = scanned[END]
    if not may_pass(link.wire, upstream.wire, end - len(begun), frame_bytes - end):
        return None
    if link.pipeline is not None:
        link.pipeline.materialize()
    upstream.is_taking = True
    ended = partial(_ended, link, header.peek_request(begun), frame_bytes)
    return SpliceTransfer(
        link.wire, upstream.wire, link.broker.requests, begun, frame_bytes, frame_bytes - end, ended
    )


def _ended(link: ClientConnection, head: header.RequestHeader, frame_bytes: int, last: bytes) -> None:
    """Its last bytes are here, all before them on their way to the broker."""
    counters = link.broker.counters
    link.client_id = head.client_id
    traffic = counters.requests_in[api.PRODUCE]
    traffic.frames += 1
    traffic.size_bytes += frame_bytes
    counters.requests_out[api.PRODUCE].size_bytes += frame_bytes - len(last)
    link.upstream.is_taking = False
    reply, started_at = link.replies.reserve(), link.broker.now()
    link.send(api.PRODUCE, head.correlation_id, last, partial(_answered, link, reply, started_at))


def _answered(link: ClientConnection, reply: Reply, started_at: float, answer: Frame | None) -> None:
    if answer is not None:
        link.broker.counters.produce_s.observe(link.broker.now() - started_at)
        link.answer_whole(api.PRODUCE, reply, answer, len(answer), 0)
