"""Behaviour of Fetch: answered from memory, parked at the tail, or forwarded whole.

Versions 4 to 18 are read; any other is relayed. Fetch sessions are Forebay's own (fetch/sessions/context.py): a
request is what its session makes of it, and goes upstream without one. A request all of whose partitions memory can
speak for never reaches the broker; one that mixes hits and misses is split (fetch/delayed_fetch.py,
fetch/misses/reads.py); any other is forwarded whole, and its answer teaches. Followers pass untouched, and so do all
where memory does not serve.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import api
from protocol.errors import BadFrame
from protocol.fetch_build import end_session
from proxy.fetch.delayed_fetch import DelayedFetch
from proxy.fetch.evaluate import evaluate
from proxy.fetch.forward import forward_fetch
from proxy.fetch.hit_estimate import peek_would_hit
from proxy.fetch.passthrough import CONSUMER, DISABLED, FOLLOWER, pass_fetch
from proxy.fetch.record import FetchRecord
from proxy.fetch.response import answer_error, refuse_fetch
from proxy.fetch.sessions.context import Kind, open_fetch
from proxy.partitions.readable import ISOLATION_LEVELS, NEEDS_BROKER, PartitionStatus, ReadState
from proxy.relay import is_left_unread, relay

if TYPE_CHECKING:
    from protocol.fetch import FetchRequest
    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection


def handle_fetch(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """Answer, park or forward a Fetch."""
    request = _scan(link, head, frame)
    if request is None:
        if link.stores:
            frame = end_session(frame, head.api_version, head.body_start)
        relay(link, head, frame, partial(link.broker.accounts.enter_unread, link, head, link.broker.now()))
        return
    link.authorization.version = head.api_version
    passed = _pass_untouched(link, request)
    if passed:
        pass_fetch(link, head, request, frame, passed)
        return
    if request.max_bytes > link.broker.fetch_max_bytes:  # KafkaApis.handleFetchRequest
        request = request._replace(max_bytes=link.broker.fetch_max_bytes)
    context = open_fetch(
        link.broker.sessions, request, head.api_version, link.session_owner, link.broker.now()
    )
    record = FetchRecord(link, head, request, len(frame), context)
    if context.kind is Kind.ERROR:
        answer_error(record)
    elif (delay_s := _over_quota_s(record)) > 0:
        refuse_fetch(record, _look_past(record, ReadState.MISS, "refused"), delay_s)
    elif request.isolation_level not in ISOLATION_LEVELS or request.max_bytes < 0:
        forward_fetch(record, frame, _look_past(record, ReadState.PASS, "version"))
    elif link.preferred_replicas and request.rack_id:
        forward_fetch(record, frame, _look_past(record, ReadState.PASS, "preferred-replica"))
    elif link.broker.cache.observes:
        _observe(record, frame)
    else:
        DelayedFetch(record, frame).start()


def _observe(record: FetchRecord, frame: Frame) -> None:
    """The broker answers; what memory would have answered is noted before (`cache.mode: observe`)."""
    broker = record.link.broker
    statuses = evaluate(record, broker.now())
    record.would_hit_bytes = [peek_would_hit(broker.cache, status) for status in statuses]
    for status in statuses:
        if status.partition is not None and status.state not in NEEDS_BROKER:
            broker.watch.follow(
                status.partition, status.asked if status.state is ReadState.UNCONFIRMED else None
            )
    forward_fetch(record, frame, statuses)


def _scan(link: ClientConnection, head: RequestHeader, frame: Frame) -> FetchRequest | None:
    """The request, or None where it is not to be read: then the broker judges it, and it is counted as one pass."""
    if api.APIS[api.FETCH].decodes(head.api_version) and not is_left_unread(link, head, frame):
        try:
            return link.fetches.scan(frame, head.api_version, head.body_start)
        except BadFrame:
            pass
    return None


def _over_quota_s(record: FetchRecord) -> float:
    """How long the client has to wait until what it has fetched is paid for. Its topics are looked at while one of
    anybody's has to wait.
    """
    link = record.link
    quotas = link.broker.scheduler.quotas
    if not quotas.active:
        return 0.0
    now, found = link.broker.now(), []
    if record.context is not None and quotas.topics.owes(now):
        found = [link.broker.topics.find(topic) for topic in record.context.topics]
    names = [topic.name for topic in found if topic is not None and topic.name]
    return quotas.peek_delay_s(link.client_id or "", names, now)


def _pass_untouched(link: ClientConnection, request: FetchRequest) -> str:
    """The reason for which a request goes to the broker as it came, fetch session and all, or ""."""
    if request.replica_id != CONSUMER:
        return FOLLOWER
    return "" if link.stores else DISABLED


def _look_past(record: FetchRecord, look: ReadState, reason: str) -> list[PartitionStatus]:
    """The same for every partition, where nothing of them is asked of memory."""
    return [PartitionStatus(asked, None, look, reason, -1) for asked in record.partitions]
