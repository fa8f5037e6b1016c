"""Views of several processes as one: the live view's state, and the report of queues and quotas. Pure.

Owns what a worker says of itself to its keeper, and how that is added to the keeper's own. Must not know how it is
asked for. Invariants:
* memory, leases and disks are the keeper's, which has them; what clients get is the workers' sum.
* what a worker says is bounded: MOST_ROWS readers with the most bytes, the others as one, and as many readers behind.
* what comes from another process is data alone; what cannot be read counts as no answer.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from proxy.admin.live_state import QueueState, Reader, ReaderBehind
from proxy.admin.log_queue import KEPT_WARNINGS, RecentLine
from proxy.fetch.readers import ReadSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from proxy.admin.live_state import LiveState

log = logging.getLogger("forebay.admin")

MOST_ROWS: Final = 4096
"""Readers, and readers behind, of a worker: some 100 bytes each."""


def pack_state(state: LiveState) -> bytes:
    """What a worker adds to its keeper's state."""
    ranked = sorted(state.readers.items(), key=lambda one: -_count_bytes(one[1]))
    others = dataclasses.replace(state.others)
    for _, sums in ranked[MOST_ROWS:]:
        others.add(sums)
    behind = sorted(state.behind, key=lambda one: -(one.behind_s or 0.0))[:MOST_ROWS]
    said = {
        "isReady": state.is_ready,
        "reasons": list(state.reasons),
        "listeners": state.listeners,
        "recordBytes": _list_counts(state.record_bytes),
        "totalBytes": _list_counts(state.total_bytes),
        "leaseLapses": state.lease_lapses,
        "delayedFetches": state.delayed_fetches,
        "queues": [dataclasses.astuple(one) for one in state.queues],
        "readers": [(*reader, *dataclasses.astuple(sums)) for reader, sums in ranked[:MOST_ROWS]],
        "others": dataclasses.astuple(others),
        "behind": [(*one.reader, *_list_fields(one)) for one in behind],
        "warnings": state.warnings,
    }
    return json.dumps(said, separators=(",", ":")).encode()


def merge_states(
    keeper: LiveState,
    packed: Iterable[bytes],
    expected: int,
    find_retention: Callable[[str], int | None],
) -> LiveState:
    """The state of the keeper and of the workers that have said theirs, of which there should be `expected`.
    `find_retention`: a topic's `retention.ms`, which the keeper alone asks for.
    """
    merged, answered = keeper, 0
    for each in packed:
        try:
            merged = _add_worker(merged, json.loads(each), find_retention)
            answered += 1
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a worker's view cannot be read: %s", error)
    warnings = sorted(merged.warnings, key=lambda one: -one.at)[:KEPT_WARNINGS]
    return dataclasses.replace(merged, warnings=warnings, workers=(answered, expected))


def _add_worker(
    state: LiveState, said: Mapping[str, Any], find_retention: Callable[[str], int | None]
) -> LiveState:
    readers = {reader: dataclasses.replace(sums) for reader, sums in state.readers.items()}
    for client_id, group, topic, *sums in said["readers"]:
        readers.setdefault(Reader(client_id, group, topic), ReadSums()).add(ReadSums(*sums))
    others = dataclasses.replace(state.others)
    others.add(ReadSums(*said["others"]))
    behind = [
        dataclasses.replace(one, retention_ms=find_retention(one.reader.topic))
        for one in (
            ReaderBehind(Reader(*reader), *fields)
            for *reader, fields in ((*row[:3], row[3:]) for row in said["behind"])
        )
    ]
    return dataclasses.replace(
        state,
        is_ready=state.is_ready and bool(said["isReady"]),
        reasons=list(dict.fromkeys([*state.reasons, *said["reasons"]])),
        listeners=_add_listeners(state.listeners, said["listeners"]),
        record_bytes=_add_counts(state.record_bytes, said["recordBytes"]),
        total_bytes=_add_counts(state.total_bytes, said["totalBytes"]),
        lease_lapses=state.lease_lapses + said["leaseLapses"],
        delayed_fetches=state.delayed_fetches + said["delayedFetches"],
        queues=_add_queues(state.queues, said["queues"]),
        readers=readers,
        others=others,
        behind=[*state.behind, *behind],
        warnings=[*state.warnings, *(RecentLine(*one) for one in said["warnings"])],
    )


def _count_bytes(sums: ReadSums) -> int:
    return sums.hit_bytes + sums.miss_bytes + sums.pass_bytes


def _list_fields(one: ReaderBehind) -> list[Any]:
    """All but the reader, in their order."""
    return [getattr(one, field.name) for field in dataclasses.fields(one)[1:]]


def _list_counts(counts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    return [(*verdict, count) for verdict, count in counts.items()]


def _add_counts(
    counts: Mapping[tuple[str, str], int], more: Iterable[tuple[str, str, int]]
) -> dict[tuple[str, str], int]:
    sums = Counter(counts)
    for result, reason, count in more:
        sums[result, reason] += count
    return dict(sums)


def _add_listeners(
    listeners: Sequence[tuple[str, str, int]], more: Iterable[tuple[str, str, int]]
) -> list[tuple[str, str, int]]:
    sums = Counter({(name, upstream): count for name, upstream, count in listeners})
    for name, upstream, count in more:
        sums[name, upstream] += count
    return [(*named, count) for named, count in sums.items()]


def _add_queues(queues: Sequence[QueueState], more: Iterable[Sequence[Any]]) -> list[QueueState]:
    sums = {one.name: one for one in queues}
    for name, *numbers in more:
        known = sums.get(name, QueueState(name, 0, 0, 0, 0))
        added = map(sum, zip(dataclasses.astuple(known)[1:], numbers, strict=True))
        sums[name] = QueueState(name, *added)
    return list(sums.values())


def merge_reports(keeper: dict[str, Any], packed: Iterable[bytes]) -> dict[str, Any]:
    """Reports of queues, topics and quotas (`RequestScheduler.report`) as one: numbers are added, hanging topics are
    named once. All know all accounts of quotas, so that the greatest number of those counts.
    """
    merged = keeper
    for each in packed:
        try:
            merged = _add_report(merged, json.loads(each))
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a worker's report cannot be read: %s", error)
    return merged


def _add_report(report: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    topics, more_topics = dict(report["topics"]), dict(more["topics"])
    names = sorted({*topics.pop("names"), *more_topics.pop("names")})
    queues, more_queues = report["queues"], more["queues"]
    return {
        "enabled": report["enabled"] or more["enabled"],
        "queues": {
            name: _add_numbers(queues.get(name, {}), more_queues.get(name, {}))
            for name in (queues | more_queues)
        },
        "topics": {**_add_numbers(topics, more_topics), "names": names},
        "quotas": {
            of: _add_numbers(counts, more["quotas"][of])
            | {"keys": max(counts["keys"], more["quotas"][of]["keys"])}
            for of, counts in report["quotas"].items()
        },
    }


def _add_numbers(numbers: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {key: numbers.get(key, 0) + more.get(key, 0) for key in {**numbers, **more}}
