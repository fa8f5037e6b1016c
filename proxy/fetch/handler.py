"""Handler of Fetch: answer from memory, delay, or forward the request whole.

Owns the choice of a Fetch's way. Must not know how a Fetch waits, or how memory is read.
Invariants:
* Versions 4 to 18 are decoded; any other version is relayed.
* Fetch sessions are Forebay's own (fetch/sessions/context.py). A session completes the request; the
  broker gets the request without a session.
* The broker sees no request whose partitions memory can all answer.
* A request that mixes hits and misses is split (fetch/delayed_fetch.py, fetch/misses/reads.py).
* Any other request is forwarded whole, and Forebay learns from its response.
* Followers' Fetches, and all Fetches where memory does not serve, pass through unchanged.
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
    """Answer, delay, forward or relay one Fetch from `link`.

    `frame` is the whole request; `head` is its decoded header. The call never blocks: the response
    leaves later if the Fetch waits.
    """
    request = _scan(link, head, frame)
    if request is None:
        if link.stores:
            # The broker must grant no session: fetch sessions are Forebay's own.
            frame = end_session(frame, head.api_version, head.body_start)
        relay(
            link,
            head,
            frame,
            partial(link.broker.accounts.enter_unread, link, head, link.broker.now()),
        )
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
        refuse_fetch(record, _skip_cache(record, ReadState.MISS, "refused"), delay_s)
    elif request.isolation_level not in ISOLATION_LEVELS or request.max_bytes < 0:
        forward_fetch(record, frame, _skip_cache(record, ReadState.PASS, "version"))
    elif link.preferred_replicas and request.rack_id:
        forward_fetch(record, frame, _skip_cache(record, ReadState.PASS, "preferred-replica"))
    elif link.broker.cache.observes:
        _observe(record, frame)
    else:
        DelayedFetch(record, frame).start()


def _observe(record: FetchRecord, frame: Frame) -> None:
    """Forward the Fetch and note how many bytes memory would have served (`cache.mode: observe`).

    The estimate is made before the broker's response adds the same bytes to the index.
    """
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
    """Return the decoded request, or None if Forebay must not or cannot decode it.

    After None the broker judges the request. The access log and metrics count it as one pass.
    """
    if api.APIS[api.FETCH].decodes(head.api_version) and not is_left_unread(link, head, frame):
        try:
            return link.fetches.scan(frame, head.api_version, head.body_start)
        except BadFrame:
            pass
    return None


def _over_quota_s(record: FetchRecord) -> float:
    """Return the seconds until the client has paid for the bytes it fetched; 0.0 within its quota.

    Topic quotas are read only while at least one topic is over its quota.
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
    """Return the reason to pass the request through unchanged, fetch session included; "" if there
    is none.
    """
    if request.replica_id != CONSUMER:
        return FOLLOWER
    return "" if link.stores else DISABLED


def _skip_cache(record: FetchRecord, state: ReadState, reason: str) -> list[PartitionStatus]:
    """Return one status with this state and reason for each partition, without a lookup in memory."""
    return [PartitionStatus(asked, None, state, reason, -1) for asked in record.partitions]
