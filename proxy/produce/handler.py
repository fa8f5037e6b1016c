"""Handles Produce: forwards it unchanged, or has it refused before the broker sees it.

Owns the choice of what becomes of a request at its arrival. Must not know sockets or the arena.
Invariants:
* nothing is acknowledged before the broker did, and nothing is changed or retried. A request is cut
  only where some of its topics are refused (`proxy.produce.refusal`).
* a frame that cannot be read is still the broker's to judge: it is relayed, and not stored.
* deliberate omission: acks=0 brings no offsets back, so its batches are not stored here; the
  replica fetcher fetches them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.tickets import DONE
from protocol import api, header
from protocol.errors import BadFrame
from protocol.produce_rows import NO_ROWS, ROUTE_START, scan_request
from proxy.produce import refusal
from proxy.produce.in_flight import InFlightProduce
from proxy.produce.targets import UNKNOWN
from proxy.relay import is_left_unread, relay_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.primitives import Frame
    from protocol.produce_rows import ProduceHead, ProduceRows
    from proxy.produce.services import ProduceLink
    from proxy.produce.targets import Target
    from proxy.scheduling.queued_request import Entry


def handle_produce(link: ProduceLink, frame: Frame, most: int) -> bool:
    """Handle a Produce: it is forwarded when its turn comes, and its batches are stored when the
    response arrives. Return whether it is of one partition and was read.

    A frame that names more than `most` (`limits.requestPartitions`), or that is malformed, is
    relayed unread. Raises BadFrame if its header cannot be read.
    """
    size_bytes, broker = len(frame), link.broker
    scanned = scan_request(frame, size_bytes, most)
    if scanned is None:
        _handle_unread(link, frame)
        return False
    head, rows = scanned
    routes, raw = broker.routes, bytes(frame[ROUTE_START : head.body_start])
    client_id = routes.clients.get(raw, UNKNOWN)
    if client_id is UNKNOWN:
        client_id = routes.find_client(frame, raw)
    if link.client_id != client_id:
        link.name_client(client_id)
    link.count_request(api.PRODUCE, size_bytes)
    try:
        targets = routes.find(link, frame, head.version, rows)
    except BadFrame:
        _relay_unread(link, frame)
        return False
    if not head.acks:
        _forward_unanswered(link, frame, head, rows, targets)
        return False
    if head.null_records:
        # a broker (4.3.1) never answers null records; no topic hangs for it, and nothing is stored
        rows, targets = NO_ROWS, []
    scheduler = broker.scheduler
    request = InFlightProduce(link, frame, size_bytes, head, rows, targets, broker.now())
    request.ordinal = link.last_ordinal = link.last_ordinal + 1
    link.replies.places.append(request)
    if head.null_records:
        request.forward(frame, size_bytes)
    elif link.refused.entries or scheduler.quotas.active or link.upstream.closed:
        refusal.submit(request)
    elif not scheduler.enabled or scheduler.try_dispatch(request):
        try:
            request.forward(frame, size_bytes)
        except Exception:
            scheduler.withdraw(request)
            raise
    elif request.state is DONE:
        refusal.submit(request)
    return rows.count == 1


def _handle_unread(link: ProduceLink, frame: Frame) -> None:
    """Relay a Produce that was not read. Its version is another, it is malformed, or it names more
    than may be read, which is counted.
    """
    head = header.peek_request(frame)
    link.count_request(api.PRODUCE, len(frame))
    link.name_client(head.client_id)
    if api.APIS[api.PRODUCE].decodes(head.api_version):
        is_left_unread(link, head, frame)
    _relay_unread(link, frame)


def _relay_unread(link: ProduceLink, frame: Frame) -> None:
    """Relay a frame for the broker to judge. Behind refused batches it closes the connection
    instead: an undecoded frame may contain a refused producer's batch, out of order.
    """
    if len(link.refused):
        link.close(
            "refusals_full",
            "closing a client with refused batches that sent a Produce which is not read",
        )
        return
    link.last_ordinal += 1
    relay_whole(link, frame, None)


def _forward_unanswered(
    link: ProduceLink,
    frame: Frame,
    head: ProduceHead,
    rows: ProduceRows,
    targets: Sequence[Target],
) -> None:
    """Forward an acks=0 request at its turn. Such a request is never refused, and no response shows
    when the broker is done with it.
    """
    scheduler = link.broker.scheduler

    def dispatch(entry: Entry) -> None:
        _want_fetched(link, frame, head, rows)
        link.send(api.PRODUCE, head.correlation_id, frame, None)
        scheduler.withdraw(entry)

    scheduler.submit(
        link,
        dispatch,
        topics=[target.topic for target in targets],
        size_bytes=len(frame),
        is_ordered=True,
        whole=partial(relay_whole, link, frame, None),
    )


def _want_fetched(link: ProduceLink, frame: Frame, head: ProduceHead, rows: ProduceRows) -> None:
    """Have the replica fetcher fetch these partitions if they have waiters: no response will show
    the offsets.
    """
    broker = link.broker
    targets = broker.routes.find(link, frame, head.version, rows)
    for row, target in zip(rows, targets, strict=True):
        partition, topic = target.partition, broker.topics.find(target.topic)
        if partition is None and topic is not None:
            partition = broker.partitions.find(topic, row.partition)
        if partition is not None:
            broker.replica_fetcher.produced(partition)
