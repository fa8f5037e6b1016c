"""Evaluation of a Fetch: may the client read a partition, is it followed, can memory answer it.

Owns the join of three sources: the client's rights, the known topics and partitions, and the
decision for one partition (partitions/readable.py). Also owns the summary over all partitions of a
Fetch (`View`). Must not know how a status is used. Invariant: a status names a partition only if
the client's right to its topic is proven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from metrics.access_log_schema import OBSERVED
from proxy.config.cache_modes import RANK
from proxy.fetch.misses.read import Stage
from proxy.partitions.readable import (
    AT_END,
    AT_END_BELOW,
    IN_TRANSIT,
    NEEDS_BROKER,
    READABLE,
    UNCONFIRMED,
    UNREADABLE,
    PartitionStatus,
    ReadState,
    explain_unreadable,
    find_limits,
    plan_partition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockcache.cache import BlockCache
    from protocol.fetch import FetchPartition
    from proxy.config.model import CacheMode
    from proxy.fetch.misses.read import Read
    from proxy.fetch.services import ClientFetch, FetchLink
    from proxy.partitions.table import Partition
    from proxy.partitions.topics import Topics

LONG_WAIT = 0.5
"""Share of `cache.authorizeEvery`: a longer poll at the broker gives no right that is worth having."""
DISABLED: Final = "disabled"
"""Reason of a pass: memory does not serve here."""
EXCLUDED: Final[dict[CacheMode, str]] = {"off": DISABLED, "observe": OBSERVED[1], "serve": ""}
"""Reason of a pass of one topic, by the topic's mode."""
UNAUTHORIZED = "unauthorized-yet"
"""Reason of a miss: the client's right to the topic is not proven."""


class View(NamedTuple):
    """Statuses of all partitions of a Fetch, each with its miss fetch (None: it has none), and
    their summary.

    * `is_here`: some partition can be answered now, from memory or from a response of the broker.
    * `must_arrive`: some partition has unknown offsets and needs the broker's response first.
    * `has_in_transit`: some partitions are in transit, and no partition is readable.
    * `has_unconfirmed`: some partitions are unconfirmed: the broker must confirm their leader state.
    """

    statuses: list[PartitionStatus]
    reads: Sequence[Read | None]
    is_here: bool
    must_arrive: bool
    has_in_transit: bool
    has_unconfirmed: bool


def build_view(statuses: list[PartitionStatus], reads: Sequence[Read | None]) -> View:
    """Return the view of `statuses`; `reads` has the miss fetch of each, or None, in the same
    order.
    """
    is_ready = is_gap = is_ask = have_arrived = must_arrive = False
    for status, read in zip(statuses, reads, strict=True):
        state = status.state
        if state is READABLE:
            is_ready = True
        elif state is IN_TRANSIT:
            is_gap = True
        elif state is UNCONFIRMED:
            is_ask = True
        elif state in NEEDS_BROKER:
            is_read = read is not None and has_arrived(read)
            have_arrived = have_arrived or (read is not None and is_read and not read.is_erroneous)
            has_said = read is not None and read.said is not None
            must_arrive = must_arrive or not (status.offsets_known or is_read or has_said)
    return View(
        statuses, reads, is_ready or have_arrived, must_arrive, is_gap and not is_ready, is_ask
    )


def has_arrived(read: Read) -> bool:
    """Return True if the broker's response to the miss fetch is here, with records or an error."""
    return read.stage is Stage.ARRIVED


def evaluate(
    link: FetchLink,
    partitions: Sequence[FetchPartition],
    isolation_level: int,
    version: int,
    now: float,
) -> list[PartitionStatus]:
    """Return the status of each partition for the client of `link`, in order. `now` is in seconds."""
    broker = link.broker
    cache, find_by_key = broker.cache, broker.partitions.find_by_key
    broker.counters.fetch.looked_partitions += len(partitions)
    found: list[Partition | None] = []
    topic: str | bytes = b""
    topic_id: bytes | None = None
    has_modes = link.use.topics is not None
    for name, index, _, _, _, _, _ in partitions:
        if name != topic:
            topic = name
            topic_id = topic if isinstance(topic, bytes) else _find_id(broker.topics, topic)
            if not link.handlers.authorization.allows(topic, now):
                topic_id = None
            if has_modes and find_exclusion(link, topic):
                topic_id = None
        found.append(None if topic_id is None else find_by_key((topic_id, index)))
    limits = find_limits(cache, partitions, found, isolation_level, version, now)
    statuses: list[PartitionStatus] = []
    new = tuple.__new__  # half the time of the constructor, which is a Python function
    for asked, partition, limit in zip(partitions, found, limits, strict=True):
        if limit == UNREADABLE or partition is None:
            statuses.append(_explain(link, asked, isolation_level, version, now))
            continue
        partition.wanted_at = now
        status = asked, partition, READABLE, "", limit
        if limit < 0:
            status = asked, partition, AT_END, "", AT_END_BELOW - limit
        statuses.append(new(PartitionStatus, status))
    return statuses


def _find_id(topics: Topics, name: str) -> bytes | None:
    """Return the id of the topic of that name; None if it is unknown."""
    topic = topics.find(name)
    return None if topic is None else topic.id


def evaluate_fetch(fetch: ClientFetch, now: float) -> list[PartitionStatus]:
    """Return the status of each partition of a Fetch, in the request's order. `now` is in seconds."""
    isolation_level, version = fetch.request.isolation_level, fetch.head.api_version
    return evaluate(fetch.link, fetch.partitions, isolation_level, version, now)


def _explain(
    link: FetchLink, asked: FetchPartition, isolation_level: int, version: int, now: float
) -> PartitionStatus:
    """Return the status of a partition that was not readable when it was looked up.

    Asks the broker for the topic's metadata in two cases. A known topic lacks the partition; or the
    client names a newer leader epoch than Forebay has asked about. `partition` in the result is
    None if the right is missing or the partition is not followed.
    """
    broker = link.broker
    if link.use.topics is not None and (reason := find_exclusion(link, asked.topic)):
        return PartitionStatus(asked, None, ReadState.PASS, reason, -1)
    if not link.handlers.authorization.allows(asked.topic, now):
        return PartitionStatus(asked, None, ReadState.MISS, UNAUTHORIZED, -1)
    topic = broker.topics.find(asked.topic)
    if topic is None or asked.partition not in topic.leaders:
        if topic is not None:
            broker.topic_lookup.ask(topic.id, link)
        return PartitionStatus(asked, None, ReadState.PASS, "unknown-topic", -1)
    partition = broker.partitions.follow(topic, asked.partition)
    if partition is None:
        return PartitionStatus(asked, None, ReadState.MISS, "unproven", -1)
    status = explain_unreadable(broker.cache, asked, partition, isolation_level, version, now)
    if status.state is not ReadState.MISS:
        partition.wanted_at = now
    elif asked.current_leader_epoch > partition.leader_state.asked_epoch:
        # The client may know of an election before the replica fetcher does.
        broker.topic_lookup.ask(topic.id, link)
    return status


def find_exclusion(link: FetchLink, key: str | bytes) -> str:
    """Return the reason why memory does not serve this topic on this connection: its mode is below the
    connection's (`cache.topicModes`). "" if it is not, or if the topic is unknown.
    """
    use, topic = link.use, link.broker.topics.find(key)
    if use.topics is None or topic is None or not topic.name:
        return ""
    mode = use.topics.find(topic.name)
    return EXCLUDED[mode] if RANK[mode] < RANK[use.mode] else ""


def skip_memory(fetch: ClientFetch, state: ReadState, reason: str) -> list[PartitionStatus]:
    """Return one status with this state and reason for each partition, without a lookup in memory."""
    return [PartitionStatus(asked, None, state, reason, -1) for asked in fetch.partitions]


def _is_stored(cache: BlockCache, asked: FetchPartition, partition: Partition) -> bool:
    return cache.contiguous_end(partition.slot, asked.fetch_offset) > asked.fetch_offset


def find_unproven(
    fetch: ClientFetch, partitions: Iterable[FetchPartition], now: float
) -> dict[str | bytes, Partition]:
    """Return topics whose right must be proven before anything is read, each with one partition.

    A listed topic fulfils two conditions. This connection has no valid right to it, and the Fetch
    asks for bytes that are stored or on their way, or for history that is fetched separately, or
    it would wait at the broker for so long that its answer were too old to give a right. A Fetch
    with a rack id lists none: the broker must answer it.
    """
    link, request = fetch.link, fetch.request
    found: dict[str | bytes, Partition] = {}
    if request.rack_id:
        return found
    broker = link.broker
    waits_long = request.max_wait_ms / 1000 >= broker.config.cache.authorize_every_s * LONG_WAIT
    for asked in partitions:
        if asked.topic in found or link.handlers.authorization.allows(asked.topic, now):
            continue
        topic = broker.topics.find(asked.topic)
        partition = broker.partitions.find(topic, asked.partition) if topic is not None else None
        if partition is None:
            continue
        isolation, version = request.isolation_level, fetch.head.api_version
        status = plan_partition(broker.cache, asked, partition, isolation, version, now)
        is_history = (
            status.lagging and status.offsets_known and link.handlers.reads.fetches_separately
        )
        if (
            status.state is READABLE
            or status.state is IN_TRANSIT
            or (status.state is UNCONFIRMED and _is_stored(broker.cache, asked, partition))
            or is_history
            or (waits_long and status.state is AT_END)
        ):
            found[asked.topic] = partition
    return found
