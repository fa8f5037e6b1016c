"""State for the live view: what one process knows at this moment, as sums.

Owns reading it, in one function. Must not know how it is shown. Invariants:
* everything is read from counters and tables that the process keeps anyway, or that `fetch/readers.py` bounds.
* sums of several processes can be added; ratios and times to go are built from sums (`live_view.py`).
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from isolation.classify import queue_name
from proxy.build_info import find_commit
from proxy.fetch.readers import RECENT_S, ReadSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.admin.log_queue import RecentLine
    from proxy.admin.samples import Process
    from proxy.broker import Broker
    from proxy.fetch.readers import ReaderPosition, Standing
    from proxy.partitions.topics import Topic
    from throttle.throttle import DiskStatistics

SETTLED_S: Final = 3.0
"""A reader's pace is known once its marks are so many seconds apart."""


class Reader(NamedTuple):
    """Who reads which topic. `client_id` None: the client has none; `group` None: not known."""

    client_id: str | None
    group: str | None
    topic: str


@dataclass(frozen=True, slots=True)
class ReaderBehind:
    """A partition in which somebody is behind. Offsets are -1 while unknown; `behind_s` None: not known.

    `admitted_at`: the clock of admitted bytes at its records, None: they are not in memory. Paces are of the last
    half minute, None while not known: `bytes_pace` in admitted bytes, `time_pace` in seconds of the log, per second.
    `record_age_s`: since the timestamp of its records; None: it was not read.
    """

    reader: Reader
    partition: int
    offset: int
    high_watermark: int
    log_start: int
    behind_s: float | None
    admitted_at: int | None
    bytes_pace: float | None
    time_pace: float | None
    retention_ms: int | None
    record_age_s: float | None


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue toward the broker. `refused`: since the start."""

    name: str
    slots: float
    in_use: float
    waiting: float
    refused: float


@dataclass(frozen=True, slots=True)
class MemoryState:
    """`clock`: bytes admitted so far; `edge`: those when the oldest bytes in memory were admitted; `pool_bytes`: room
    for blocks. `is_full`: blocks have been evicted for room.
    """

    capacity_bytes: int
    pool_bytes: int
    live_bytes: int
    clock: int
    edge: int
    reach_s: float
    is_full: bool


@dataclass(frozen=True, slots=True)
class LiveState:
    """All of it. `window_s`: time that sums of the window cover; `at_s`: seconds since 1970. `workers`: how many have
    said theirs, of how many; None: this process is the only one.
    """

    at_s: float
    version: str
    commit: str
    boot: str
    cache_mode: str
    is_ready: bool
    reasons: Sequence[str]
    node_id: int
    listeners: Sequence[tuple[str, str, int]]
    window_s: float
    record_bytes: dict[tuple[str, str], int]
    total_bytes: dict[tuple[str, str], int]
    admitted_bytes: int
    lease_lapses: int
    memory: MemoryState
    followed: int
    watched: int
    leases: int
    delayed_fetches: int
    disks: dict[str, DiskStatistics]
    queues: Sequence[QueueState]
    readers: dict[Reader, ReadSums]
    others: ReadSums
    behind: Sequence[ReaderBehind]
    warnings: Sequence[RecentLine]
    workers: tuple[int, int] | None = None


def read_state(process: Process, at_s: float | None = None) -> LiveState:
    """The state now. `at_s`: seconds since 1970, by which records' times are judged; None: the clock's."""
    broker = process.broker
    at_s = time.time() if at_s is None else at_s
    now, totals, readers = broker.now(), broker.read_totals(), broker.readers
    begun = readers.windows[0]
    before = begun.totals
    rows, others = readers.sum_rows()
    is_ready, reasons = process.readiness.check()
    throttle = broker.config.throttle
    named: dict[Reader, ReadSums] = {}
    for (client_id, group, topic), sums in rows.items():
        reader = Reader(client_id, group, name_topic(broker, topic))
        named.setdefault(reader, ReadSums()).add(sums)
    return LiveState(
        at_s=at_s,
        version=broker.version,
        commit=find_commit(),
        boot=process.boot,
        cache_mode=broker.config.cache.mode,
        is_ready=is_ready,
        reasons=reasons,
        node_id=broker.node.node_id,
        listeners=[(one.name, str(one.upstream), len(one.links)) for one in process.listeners],
        window_s=now - begun.begun_at,
        record_bytes={
            verdict: count - before.record_bytes.get(verdict, 0)
            for verdict, count in totals.record_bytes.items()
        },
        total_bytes=totals.record_bytes,
        admitted_bytes=totals.admitted_bytes - before.admitted_bytes,
        lease_lapses=totals.lease_lapses - before.lease_lapses,
        memory=_read_memory(broker, now),
        followed=len(broker.partitions),
        watched=broker.replica_fetcher.watched,
        leases=broker.replica_fetcher.count_leases(now),
        delayed_fetches=broker.purgatory.parked,
        disks=broker.disk_throttle.statistics().disks if throttle.enabled else {},
        queues=_read_queues(broker),
        readers=named,
        others=others,
        behind=_read_behind(broker, now, at_s),
        warnings=() if process.own_log is None else process.own_log.list_recent(),
    )


def name_topic(broker: Broker, asked: str | bytes) -> str:
    """The topic's name; its id as Kafka's tools print it while the name is not known."""
    topic = broker.topics.find(asked)
    if topic is not None and topic.name:
        return topic.name
    if isinstance(asked, str):
        return asked
    return base64.urlsafe_b64encode(asked).decode().rstrip("=")


def _read_memory(broker: Broker, now: float) -> MemoryState:
    found = broker.cache.statistics()
    edge = found.oldest_admitted_bytes
    return MemoryState(
        capacity_bytes=found.arena_bytes,
        pool_bytes=found.block_bytes,
        live_bytes=found.live_record_bytes,
        clock=found.admitted_bytes,
        edge=edge,
        reach_s=broker.age_clock.age_s(edge, now) if found.blocks else 0.0,
        is_full=broker.cache.held_bytes is not None,
    )


def _read_queues(broker: Broker) -> list[QueueState]:
    queues, _ = broker.scheduler.statistics()
    return [
        QueueState(queue_name(number), one["slots"], one["in_use"], one["waiting"], one["refused"])
        for number, one in queues.items()
    ]


def _read_behind(broker: Broker, now: float, at_s: float) -> list[ReaderBehind]:
    found = []
    for (client_id, group, asked), index, standing in broker.readers.list_standings():
        reader = Reader(client_id, group, name_topic(broker, asked))
        topic = broker.topics.find(asked)
        one = _describe_standing(broker, reader, topic, index, standing, now, at_s)
        if one.behind_s is None or one.behind_s >= RECENT_S:
            found.append(one)
    return found


def _describe_standing(
    broker: Broker,
    reader: Reader,
    topic: Topic | None,
    index: int,
    standing: Standing,
    now: float,
    at_s: float,
) -> ReaderBehind:
    place = standing.now
    partition = None if topic is None else broker.partitions.find(topic, index)
    retention_ms = None if topic is None else topic.retention_ms
    bytes_pace, time_pace = find_paces(standing.before, place)
    behind_s = record_age_s = None
    if place.timestamp_ms is not None:
        behind_s = record_age_s = max(at_s - place.timestamp_ms / 1000, 0.0)
    elif place.admitted_at is not None:
        behind_s = broker.age_clock.age_s(place.admitted_at, now)
    return ReaderBehind(
        reader=reader,
        partition=index,
        offset=place.offset,
        high_watermark=partition.row.high_watermark if partition is not None else -1,
        log_start=partition.row.log_start_offset if partition is not None else -1,
        behind_s=behind_s,
        admitted_at=place.admitted_at,
        bytes_pace=bytes_pace,
        time_pace=time_pace,
        retention_ms=retention_ms,
        record_age_s=record_age_s,
    )


def find_paces(before: ReaderPosition, place: ReaderPosition) -> tuple[float | None, float | None]:
    """(admitted bytes, seconds of the log) that a reader passes in a second; each None while not known."""
    took_s = place.seen_at - before.seen_at
    if took_s < SETTLED_S:
        return None, None
    bytes_pace = time_pace = None
    if place.admitted_at is not None and before.admitted_at is not None:
        bytes_pace = (place.admitted_at - before.admitted_at) / took_s
    if place.timestamp_ms is not None and before.timestamp_ms is not None:
        time_pace = (place.timestamp_ms - before.timestamp_ms) / 1000 / took_s
    return bytes_pace, time_pace
