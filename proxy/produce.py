"""Behaviour of Produce: forwarded as it came; what was acknowledged may enter the cache.

Versions 3 to 13 are read; any other is relayed. Nothing is acknowledged before the broker did, nothing is
changed, split or retried. A frame that cannot be read is still the broker's to judge: it is relayed, and
nothing of it is stored. Deliberate omission: acks=0 brings no offsets back, so nothing of it is stored from
here; the watch brings it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import api, batch, produce
from protocol.errors import BadFrame, ErrorCode
from proxy import admit
from proxy.relay import relay

if TYPE_CHECKING:
    from protocol.batch import Batch
    from protocol.header import RequestHeader
    from protocol.produce import ProducePartition, ProduceRequest
    from protocol.wire import Frame
    from proxy.admit import Forwarded
    from proxy.client_link import ClientLink
    from proxy.partitions import Partition

Key = tuple[str | bytes, int]


def handle_produce(link: ClientLink, head: RequestHeader, frame: Frame) -> None:
    """Forward a Produce; store from it when its acknowledgement comes."""
    request = _scan(head, frame)
    if request is None:
        relay(link, head, frame)
        return
    if request.acks == 0:
        _want_those_of(link, request)
        link.forward(head, frame, None)
        return
    forwarded = _note(link, request, frame) if link.broker.stores_on(link.listener) else {}
    reply = link.replies.reserve()
    started = link.broker.now()

    def on_answer(answer: Frame | None) -> None:
        if answer is None:
            return
        link.broker.counters.produce_s.observe(link.broker.now() - started)
        if forwarded:
            link.broker.attempt(lambda: _admit(link, head, forwarded, frame, answer), "storing from Produce")
        link.answer(head, reply, (answer,), len(frame), held_bytes=len(answer))

    link.forward(head, frame, on_answer)


def _scan(head: RequestHeader, frame: Frame) -> ProduceRequest | None:
    if not api.APIS[api.PRODUCE].decodes(head.api_version):
        return None
    try:
        return produce.scan_request(frame, head.api_version, head.body_start)
    except BadFrame:
        return None


def _note(link: ClientLink, request: ProduceRequest, frame: Frame) -> dict[Key, Forwarded]:
    """What is known of each batch before it is forwarded."""
    forwarded: dict[Key, Forwarded] = {}
    for produced in request.partitions:
        sent = _one_batch(produced, frame)
        partition = _followed(link, produced) if sent is not None else None
        if sent is not None and partition is not None:
            forwarded[produced.topic, produced.partition] = admit.note_forwarded(partition, sent)
    return forwarded


def _one_batch(produced: ProducePartition, frame: Frame) -> Batch | None:
    """The one batch of a partition (ProduceRequest.validateRecords allows no more); None if there is anything
    else.
    """
    if produced.start < 0:
        return None
    try:
        batches = batch.scan_batches(frame, produced.start, produced.end)
    except BadFrame:
        return None
    return batches[0] if len(batches) == 1 else None


def _followed(link: ClientLink, produced: ProducePartition) -> Partition | None:
    broker = link.broker
    topic = broker.topics.find(produced.topic)
    if topic is None or not topic.name:
        broker.watch.ask_metadata(produced.topic, link)
    return broker.partitions.follow(topic, produced.partition) if topic is not None else None


def _want_those_of(link: ClientLink, request: ProduceRequest) -> None:
    """Nothing will say where these records went: have the watch look, where somebody tails."""
    for produced in request.partitions:
        if (partition := _followed(link, produced)) is not None:
            link.broker.watch.produced(partition)


def _admit(
    link: ClientLink, head: RequestHeader, forwarded: dict[Key, Forwarded], frame: Frame, answer: Frame
) -> None:
    broker = link.broker
    try:
        response = produce.scan_response(answer, head.api_version)
    except BadFrame:
        return
    for acknowledged in response.partitions:
        noted = forwarded.get((acknowledged.topic, acknowledged.partition))
        if noted is None or acknowledged.error_code != ErrorCode.NONE:
            continue
        partition = noted.partition
        partition.stand_at = max(partition.stand_at, acknowledged.base_offset)
        if admit.admit_produced(broker, noted, acknowledged, frame):
            for waiter in list(partition.parked):
                waiter.wake(partition)
        broker.watch.produced(partition)
