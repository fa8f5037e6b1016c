"""Handler of Fetch: answer from memory, delay, or forward the request whole.

Owns the choice of a Fetch's way. Must not know how a Fetch waits, or how memory is read.
Invariants:
* Versions 4 to 18 are decoded; any other version is relayed.
* Fetch sessions are Forebay's own (fetch/sessions/context.py). A session completes the request; the
  broker gets the request without a session.
* A Fetch without a session that names the partitions of the one before is evaluated as in a session
  (fetch/sessions/repeated.py).
* The broker sees no request whose partitions memory can all answer.
* Memory is asked first; an object is made only for a Fetch that waits, is forwarded or is refused.
* A request that mixes hits and misses is split (fetch/delayed_fetch.py, fetch/misses/reads.py).
* Any other request is forwarded whole, and Forebay learns from its response.
* Followers' Fetches, and all Fetches where memory does not serve, pass through unchanged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import api, header
from protocol.fetch_build import end_session
from protocol.fetch_rows import scan_request
from proxy.fetch.completion import is_complete
from proxy.fetch.delayed_fetch import DelayedFetch
from proxy.fetch.evaluate import DISABLED, evaluate, evaluate_fetch, skip_memory
from proxy.fetch.forward import forward_fetch
from proxy.fetch.hit_estimate import peek_would_hit
from proxy.fetch.passthrough import CONSUMER, pass_follower
from proxy.fetch.record import FetchRecord
from proxy.fetch.response import answer_error, build_answer, refuse_fetch
from proxy.fetch.services import ClientFetch
from proxy.fetch.sessions.context import FINAL_EPOCH, NO_SESSION, Kind, open_fetch
from proxy.fetch.sessions.idle_partitions import find_idle_partitions
from proxy.partitions.readable import ISOLATION_LEVELS, NEEDS_BROKER, ReadState
from proxy.relay import is_left_unread, relay

if TYPE_CHECKING:
    from protocol.primitives import Frame
    from proxy.fetch.services import FetchLink


def handle_fetch(link: FetchLink, frame: Frame, most: int) -> None:
    """Answer, delay, forward or relay one Fetch from `link`, which stores. Raises BadFrame if its
    header cannot be read.

    `frame` is the whole request. A frame that names more than `most` (`limits.requestPartitions`),
    or that is malformed, is relayed unread. The call never blocks: the response leaves later if the
    Fetch waits.
    """
    repeated = link.handlers.repeated
    ring = repeated.ring
    if ring is not None and not _is_free(link):
        ring = None
    scanned = scan_request(frame, most, ring)
    if scanned is None:
        relay_unread(link, frame)
        return
    head, request = scanned
    link.count_request(api.FETCH, len(frame))
    if link.client_id != head.client_id:
        link.name_client(head.client_id)
    version, authorization = head.api_version, link.handlers.authorization
    if authorization.version != version:
        authorization.note_version(version)
    if request.rack_id and not authorization.has_rack:
        authorization.note_rack(True)
    replica_id, _, _, max_bytes, isolation_level, session_id, session_epoch, *_ = request
    has_session = session_id != NO_SESSION or session_epoch != FINAL_EPOCH
    if ring is not None and (has_session or replica_id != CONSUMER or not request.is_repeated):
        repeated.close()  # the comparison has changed the ring, and `take` does not go on with it
    if replica_id != CONSUMER:
        pass_follower(link, frame, head, request)
        return
    broker, now = link.broker, link.broker.now()
    if max_bytes > broker.node.fetch_max_bytes:  # KafkaApis.handleFetchRequest
        request = request._replace(max_bytes=broker.node.fetch_max_bytes)
    context, remembered, idle_partitions = None, None, None
    if has_session or not request.is_distinct:
        context = open_fetch(broker.sessions, request, version, link.session_owner, now)
    elif request.is_repeated or (len(request.partitions) >= repeated.least and _is_free(link)):
        remembered = repeated.take(request, version, now)
        broker.counters.fetch.repeated += remembered is not None
    fetch = ClientFetch(link, head, request, context, len(frame), now, remembered)
    if (
        (context is not None and context.kind is Kind.ERROR)
        or isolation_level not in ISOLATION_LEVELS
        or max_bytes < 0
        or broker.scheduler.quotas.active
        or link.preferred_replicas
        or not link.use.serves
    ) and _goes_past_memory(fetch, frame):
        return
    asked = request.partitions
    if context is not None or remembered is not None:
        idle_partitions = find_idle_partitions(fetch, now)
        asked = asked if context is None else context.changed
    if idle_partitions is None:
        statuses = evaluate(link, asked, isolation_level, version, now)
    else:
        statuses = idle_partitions.evaluate(now)
    if is_complete(fetch, statuses):
        if link.handlers.reads.by_key:
            link.handlers.reads.drop_asked([status.asked for status in statuses])
        build_answer(fetch, statuses)
    else:
        DelayedFetch(FetchRecord(fetch), frame, idle_partitions).start(statuses)


def relay_unread(link: FetchLink, frame: Frame) -> None:
    """Relay a Fetch that was not read, for the broker to judge. Raises BadFrame if its header cannot
    be read.

    Its version is another, it is malformed, or it names more than may be read, which is counted.
    The access log and metrics count it as one pass.
    """
    head = header.peek_request(frame)
    link.count_request(api.FETCH, len(frame))
    if link.client_id != head.client_id:
        link.name_client(head.client_id)
    if api.APIS[api.FETCH].decodes(head.api_version):
        is_left_unread(link, head, frame)
    if link.stores:
        # The broker must grant no session: fetch sessions are Forebay's own.
        frame = end_session(frame, head.api_version, head.body_start)
    on_sent = partial(link.broker.accounts.enter_unread, link, head, link.broker.now())
    relay(link, head, frame, on_sent)


def _is_free(link: FetchLink) -> bool:
    """Return True if all responses of the connection have left: nothing uses what is remembered of
    its partitions.
    """
    return not link.replies.places and link.framed.is_idle


def _goes_past_memory(fetch: ClientFetch, frame: Frame) -> bool:
    """Refuse or forward a Fetch that memory must not answer. Return False if it may."""
    link, request, context = fetch.link, fetch.request, fetch.context
    if context is not None and context.kind is Kind.ERROR:
        answer_error(FetchRecord(fetch))
    elif (delay_s := _over_quota_s(fetch)) > 0:
        refuse_fetch(FetchRecord(fetch), skip_memory(fetch, ReadState.MISS, "refused"), delay_s)
    elif request.isolation_level not in ISOLATION_LEVELS or request.max_bytes < 0:
        forward_fetch(FetchRecord(fetch), frame, skip_memory(fetch, ReadState.PASS, "version"))
    elif link.preferred_replicas and request.rack_id:
        statuses = skip_memory(fetch, ReadState.PASS, "preferred-replica")
        forward_fetch(FetchRecord(fetch), frame, statuses)
    elif link.use.observes:
        _observe(FetchRecord(fetch), frame)
    elif not link.use.serves:  # the mode has become `off`: the sessions are still Forebay's own
        forward_fetch(FetchRecord(fetch), frame, skip_memory(fetch, ReadState.PASS, DISABLED))
    else:
        return False
    return True


def _observe(record: FetchRecord, frame: Frame) -> None:
    """Forward the Fetch and note how many bytes memory would have served (`cache.mode: observe`).

    The estimate is made before the broker's response adds the same bytes to the index.
    """
    broker = record.link.broker
    statuses = evaluate_fetch(record.fetch, broker.now())
    record.estimate([peek_would_hit(broker.cache, status) for status in statuses])
    for status in statuses:
        if status.partition is not None and status.state not in NEEDS_BROKER:
            broker.replica_fetcher.follow(
                status.partition, status.asked if status.state is ReadState.UNCONFIRMED else None
            )
    forward_fetch(record, frame, statuses)


def _over_quota_s(fetch: ClientFetch) -> float:
    """Return the seconds until the client has paid for the bytes it fetched; 0.0 within its quota.

    Topic quotas are read only while at least one topic is over its quota.
    """
    link = fetch.link
    quotas = link.broker.scheduler.quotas
    if not quotas.active:
        return 0.0
    now, found = link.broker.now(), []
    if quotas.topics.owes(now):
        found = [link.broker.topics.find(topic) for topic in fetch.topics]
    names = [topic.name for topic in found if topic is not None and topic.name]
    return quotas.peek_delay_s(link.client_id or "", names, now)
