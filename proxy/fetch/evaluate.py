"""One look at what a Fetch asks for: whether its client may be told, whether it is followed, what memory can say.

Owns the join of the client's rights, the topics and partitions that are known, and the plan of a partition; and
what the looks of one Fetch come to together (`View`). It must not know what becomes of a look. Invariant: a
partition is named only where the client's right to it is proven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxy.fetch.misses.read import Stage
from proxy.partitions.readable import (
    IN_TRANSIT,
    NEEDS_BROKER,
    READABLE,
    UNCONFIRMED,
    PartitionStatus,
    ReadState,
    plan_partition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from protocol.fetch import FetchPartition
    from proxy.fetch.misses.read import Read
    from proxy.fetch.record import FetchRecord
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.table import Partition


class View(NamedTuple):
    """One look at all partitions, each with its read beside (None: it has none), and what matters of them together.
    `is_here`: there is something to answer with at once, from memory or from the broker; `must_arrive`: of some nothing
    can be said before the broker has; `has_gap`: some are on their way into memory, and none are there; `has_ask`: some
    are to be confirmed.
    """

    statuses: list[PartitionStatus]
    reads: Sequence[Read | None]
    is_here: bool
    must_arrive: bool
    has_gap: bool
    has_ask: bool


def build_view(statuses: list[PartitionStatus], reads: Sequence[Read | None]) -> View:
    """The view of these, each with its read."""
    is_ready = is_gap = is_ask = have_arrived = must_arrive = False
    for status, read in zip(statuses, reads, strict=True):
        look = status.state
        if look is READABLE:
            is_ready = True
        elif look is IN_TRANSIT:
            is_gap = True
        elif look is UNCONFIRMED:
            is_ask = True
        elif look in NEEDS_BROKER:
            is_read = read is not None and has_arrived(read)
            have_arrived = have_arrived or (read is not None and is_read and not read.is_erroneous)
            has_said = read is not None and read.said is not None
            must_arrive = must_arrive or not (status.offsets_known or is_read or has_said)
    return View(statuses, reads, is_ready or have_arrived, must_arrive, is_gap and not is_ready, is_ask)


def has_arrived(read: Read) -> bool:
    """Whether its records are here, from the broker."""
    return read.stage is Stage.ARRIVED


def evaluate(record: FetchRecord, now: float) -> list[PartitionStatus]:
    """One look at each partition, in the request's order."""
    link, isolation, version = record.link, record.request.isolation_level, record.head.api_version
    partitions = record.partitions
    link.broker.counters.looked_partitions += len(partitions)
    if len(partitions) == 1:
        return [evaluate_one(link, partitions[0], isolation, version, now)]
    return [evaluate_one(link, asked, isolation, version, now) for asked in partitions]


def evaluate_one(
    link: ClientConnection, asked: FetchPartition, isolation_level: int, version: int, now: float
) -> PartitionStatus:
    """Where one partition stands for the client."""
    broker = link.broker
    if not link.authorization.allows(asked.topic, now):
        return PartitionStatus(asked, None, ReadState.MISS, "unauthorized-yet", -1)
    topic = broker.topics.find(asked.topic)
    if topic is None or asked.partition not in topic.leaders:
        if topic is not None:
            broker.topic_lookup.ask(topic.id, link)
        return PartitionStatus(asked, None, ReadState.PASS, "unknown-topic", -1)
    partition = broker.partitions.follow(topic, asked.partition)
    if partition is None:
        return PartitionStatus(asked, None, ReadState.MISS, "unproven", -1)
    status = plan_partition(broker.cache, asked, partition, isolation_level, version, now)
    if status.state is not ReadState.MISS:
        partition.wanted_at = now
    elif asked.current_leader_epoch > partition.leader_state.asked_epoch:
        broker.topic_lookup.ask(
            topic.id, link
        )  # the client may have heard of an election before the watch has
    return status


def find_unproven(
    record: FetchRecord, partitions: Iterable[FetchPartition], now: float
) -> dict[str | bytes, Partition]:
    """Topics that this connection has not been shown yet, or not for long, each with a partition of which it asks
    for what memory has, or for history that is read apart: whether it may is asked before any of it is read.
    """
    link, request = record.link, record.request
    found: dict[str | bytes, Partition] = {}
    if request.rack_id:
        return found
    broker = link.broker
    for asked in partitions:
        if asked.topic in found or link.authorization.allows(asked.topic, now):
            continue
        topic = broker.topics.find(asked.topic)
        partition = broker.partitions.find(topic, asked.partition) if topic is not None else None
        if partition is None:
            continue
        isolation, version = request.isolation_level, record.head.api_version
        status = plan_partition(broker.cache, asked, partition, isolation, version, now)
        is_history = status.lagging and status.offsets_known and link.reads.go_apart
        if status.state is ReadState.READABLE or is_history:
            found[asked.topic] = partition
    return found
