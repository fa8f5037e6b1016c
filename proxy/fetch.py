"""Behaviour of Fetch: answered from memory, parked at the tail, or forwarded whole.

Versions 4 to 18 are read; any other is relayed. A request all of whose partitions memory can speak for never
reaches the broker; any other is forwarded as it came, with its fetch session declined (id 0, epoch -1), and
its answer teaches; a request that mixes hits and misses is split (parked.py, reads.py). Followers, and sessions
that the broker has granted somebody, pass untouched.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.queues import Waits
from protocol import api, fetch
from protocol.errors import BadFrame
from protocol.fetch_build import stamp_max_wait, stamp_session
from proxy.answer import refuse_fetch
from proxy.fetch_plan import Look, Looked, plan_partition
from proxy.fetch_record import FetchRecord
from proxy.learn import learn_answer
from proxy.parked import ParkedFetch
from proxy.relay import relay

if TYPE_CHECKING:
    from protocol.fetch import FetchPartition, FetchRequest, FetchResponse
    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.client_link import ClientLink
    from proxy.gate import Entry

FULL_SESSION = (0, 0)
SESSIONLESS = (0, -1)
CONSUMER = -1


def handle_fetch(link: ClientLink, head: RequestHeader, frame: Frame) -> None:
    """Answer, park or forward a Fetch."""
    request = _scan(link, head, frame)
    if request is None:
        relay(link, head, frame)
        return
    record = FetchRecord(link, head, request, len(frame))
    if (delay_s := _over_quota_s(link, request)) > 0:
        looks = [Looked(asked, None, Look.MISS, "refused", -1) for asked in request.partitions]
        refuse_fetch(record, looks, delay_s)
        return
    link.authorization.version = head.api_version
    whole = _pass_whole(link, head, request)
    if whole:
        looks = [Looked(asked, None, Look.PASS, whole, -1) for asked in request.partitions]
        forward_fetch(record, frame, looks)
        return
    ParkedFetch(record, frame).start()


def _scan(link: ClientLink, head: RequestHeader, frame: Frame) -> FetchRequest | None:
    """The request, or None where it cannot be read: then the broker judges it, and it is counted as one pass."""
    if api.APIS[api.FETCH].decodes(head.api_version):
        try:
            return fetch.scan_request(frame, head.api_version, head.body_start)
        except BadFrame:
            pass
    link.broker.counters.fetch_partitions["pass", "version"] += 1
    return None


def _over_quota_s(link: ClientLink, request: FetchRequest) -> float:
    """How long the client has to wait until what it has fetched is paid for; a follower never."""
    quotas = link.broker.gate.quotas
    if not quotas.active or request.replica_id != CONSUMER:
        return 0.0
    found = [link.broker.topics.find(asked.topic) for asked in request.partitions]
    names = [topic.name for topic in found if topic is not None and topic.name]
    return quotas.peek_delay_s(link.client_id or "", names, link.broker.now())


def _pass_whole(link: ClientLink, head: RequestHeader, request: FetchRequest) -> str:
    """The reason for which a request is forwarded without a look at its partitions, or ""."""
    if request.replica_id != CONSUMER:
        return "follower"
    if not link.broker.stores_on(link.listener):
        return "disabled"
    if (request.session_id, request.session_epoch) not in (FULL_SESSION, SESSIONLESS):
        return "session"
    if link.preferred_replicas and request.rack_id:
        return "preferred-replica"
    return ""


def look_at(record: FetchRecord, now: float) -> list[Looked]:
    """One look at each partition, in the request's order."""
    link, request = record.link, record.request
    isolation, version = request.isolation_level, record.head.api_version
    return [_look(link, asked, isolation, version, now) for asked in request.partitions]


def _look(link: ClientLink, asked: FetchPartition, isolation_level: int, version: int, now: float) -> Looked:
    broker = link.broker
    if not link.authorization.allows(asked.topic, now):
        return Looked(asked, None, Look.MISS, "unauthorized-yet", -1)
    topic = broker.topics.find(asked.topic)
    if topic is None:
        broker.watch.ask_metadata(asked.topic, link)
        return Looked(asked, None, Look.PASS, "unknown-topic", -1)
    partition = broker.partitions.follow(topic, asked.partition)
    if partition is None:
        return Looked(asked, None, Look.MISS, "unproven", -1)
    looked = plan_partition(broker.cache, asked, partition, isolation_level, version, now)
    if looked.look is not Look.MISS:
        partition.wanted_at = now
    return looked


def forward_fetch(
    record: FetchRecord, frame: Frame, looks: list[Looked], max_wait_ms: int | None = None
) -> None:
    """Send the request to the broker; its answer goes to the client as it comes, and teaches. `max_wait_ms`: what
    is left of the request's own after it has waited here.
    """
    link, head, request = record.link, record.head, record.request
    if max_wait_ms is not None:
        frame = bytearray(frame)
        stamp_max_wait(frame, head.api_version, head.body_start, max_wait_ms)
    is_consumer = request.replica_id == CONSUMER
    if is_consumer:
        link.reads.drop_asked(request.partitions)
        link.authorization.has_rack = bool(request.rack_id)
        if request.session_at >= 0:
            frame = _decline_session(request, frame)
    gate = link.broker.gate

    def go(entry: Entry) -> None:
        gate.sent(entry)
        link.forward(head, frame, partial(on_answer, entry, link.broker.now()))

    def on_answer(entry: Entry, sent_at: float, answer: Frame | None) -> None:
        if answer is None:
            record.abandoned()
            return
        gate.answered(entry)
        response = _scan_answer(link, head, answer)
        if response is not None and is_consumer:
            learn = partial(learn_answer, link, request.partitions, response, answer, sent_at)
            link.broker.attempt(learn, "learning from a Fetch answer")
        record.forwarded(looks, response, answer)

    gate.enter(
        link,
        go,
        partial(refuse_fetch, record, looks) if is_consumer else None,
        is_control=not is_consumer,
        topics=[looked.queue_key for looked in looks],
        size_bytes=len(frame),
        waits=Waits.POLL,
    )


def _decline_session(request: FetchRequest, frame: Frame) -> Frame:
    """Ask without a session: reads for a client go upstream with id 0, epoch -1, never (0, 0), which would
    make one (KIP-227).
    """
    if (request.session_id, request.session_epoch) != FULL_SESSION:
        return frame
    frame = frame if isinstance(frame, bytearray) else bytearray(frame)
    stamp_session(frame, request.session_at, *SESSIONLESS)
    return frame


def _scan_answer(link: ClientLink, head: RequestHeader, answer: Frame) -> FetchResponse | None:
    try:
        return fetch.scan_response(answer, head.api_version)
    except BadFrame:
        link.broker.counters.bad_frames += 1
        return None
