"""Pass-through of a large Produce: spliced to the broker while it arrives, without copying.

Owns this path for connections whose Produces are neither stored nor scheduled (`isolation.enabled`
false). Must not know more of the request than its form. Invariants:
* until the whole request is on its way, nothing is counted and no response is owed.
* meanwhile nothing else is sent to the broker on this connection.
* any request that is no single-batch Produce is received whole, for `proxy.produce.handler`.

Why: docs/decisions/0017.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import api, header
from protocol.produce_rows import scan_single
from proxy.net.splice import SpliceTransfer, may_pass

if TYPE_CHECKING:
    from protocol.primitives import Frame
    from proxy.net.response_order import Reply
    from proxy.produce.services import ProduceLink


def let_produces_pass(link: ProduceLink) -> None:
    """Allow pass-through on this connection if its Produces are neither stored nor scheduled."""
    if not (link.stores or link.broker.scheduler.enabled):
        link.framed.pass_large(partial(_begin, link), SpliceTransfer.end)


def _begin(link: ProduceLink, begun: bytes, frame_bytes: int) -> SpliceTransfer | None:
    """Splice a large request that has begun. Return None if it is no single-batch Produce, or an
    earlier request waits.
    """
    scanned = scan_single(begun, frame_bytes)
    upstream, limits = link.upstream, link.broker.config.limits
    if scanned is None or upstream.closed or not upstream.is_connected:
        return None
    flying = len(link.pipeline) if link.pipeline is not None else 0
    if len(link.replies.places) + flying + 1 >= limits.pipelined_requests:
        return None
    end = scanned[1].end
    if not may_pass(link.framed, upstream.framed, end - len(begun), frame_bytes - end):
        return None
    if link.pipeline is not None:
        link.pipeline.materialize()
    upstream.begin_taking()
    ended = partial(_ended, link, header.peek_request(begun), frame_bytes)
    return SpliceTransfer(
        link.framed,
        upstream.framed,
        link.broker.requests,
        begun,
        frame_bytes,
        frame_bytes - end,
        ended,
    )


def _ended(link: ProduceLink, head: header.RequestHeader, frame_bytes: int, last: bytes) -> None:
    """Finish a spliced request: its last bytes are here, and all bytes before are on their way to
    the broker.
    """
    traffic = link.broker.counters.traffic
    link.name_client(head.client_id)
    traffic.requests_in[api.PRODUCE].add(1, frame_bytes)
    traffic.requests_out[api.PRODUCE].add(0, frame_bytes - len(last))
    link.upstream.end_taking()
    reply, started_at = link.replies.reserve(), link.broker.now()
    link.send(api.PRODUCE, head.correlation_id, last, partial(_answered, link, reply, started_at))


def _answered(link: ProduceLink, reply: Reply, started_at: float, answer: Frame | None) -> None:
    if answer is not None:
        link.broker.counters.produce.took_s.observe(link.broker.now() - started_at)
        link.answer_whole(api.PRODUCE, reply, answer, len(answer), 0)
