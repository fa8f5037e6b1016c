"""The live view: the document that `/top` answers, for `forebay top` and for the page at `/`. Pure but for its cache.

Owns what is shown of a `LiveState`: ratios, the largest rows, times to go. Must not know the process. Invariants:
* the document is bounded: at most MOST_ROWS rows by each of ORDERS in a table, of bounded texts.
* null stands for what is not known; nothing is guessed.
* it is built at most once in KEPT_S, however many ask.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxy.admin.access import PAGE, TOP
from proxy.admin.http import Handler, HttpResponse
from proxy.fetch.readers import ReadSums

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from proxy.admin.live_state import LiveState, ReaderBehind
    from throttle.throttle import DiskStatistics

KEPT_S: Final = 0.5
MOST_ROWS: Final = 20
"""Rows of a table by each of ORDERS; of readers behind, of queues."""
MOST_REASONS: Final = 12
ORDERS: Final = ("bytes", "misses", "delayS")
_PAGE: Final = Path(__file__).with_name("live_page.html")
_SCRIPT: Final = re.compile("<script>(.*?)</script>", re.DOTALL)
_HASH: Final = "SCRIPT_HASH"


def build_view(read: Callable[[], Awaitable[LiveState]]) -> dict[str, Handler]:
    """The routes of the view: its document, and the page that shows it."""
    page = HttpResponse(build_page(_PAGE.read_text("utf-8")), "text/html; charset=utf-8")
    kept: list[tuple[float, HttpResponse]] = []
    reading = asyncio.Lock()

    async def answer() -> HttpResponse:
        async with reading:
            now = time.monotonic()
            if not kept or now - kept[0][0] >= KEPT_S:
                body = json.dumps(describe(await read()), separators=(",", ":")).encode() + b"\n"
                kept[:] = [(now, HttpResponse(body, "application/json"))]
            return kept[0][1]

    return {PAGE: lambda: page, TOP: answer}


def build_page(text: str) -> bytes:
    """The page, whose policy allows its own script and no other."""
    found = _SCRIPT.search(text)
    assert found is not None
    digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    return text.replace(_HASH, f"sha256-{digest}", 1).encode()


def describe(state: LiveState) -> dict[str, Any]:
    """The document (docs/operations.md, The live view). Bytes and counts are of the window, `windowS` seconds, unless
    the key says otherwise.
    """
    readers = state.readers
    return {
        "at": state.at_s,
        "windowS": state.window_s,
        "forebay": {
            "version": state.version,
            "commit": state.commit,
            "boot": state.boot,
            "cacheMode": state.cache_mode,
            "ready": state.is_ready,
            "reasons": list(state.reasons),
            "workers": state.workers and {"answered": state.workers[0], "of": state.workers[1]},
            "node": state.node_id,
            "listeners": [
                {"name": name, "upstream": upstream, "connections": connections}
                for name, upstream, connections in state.listeners
            ],
        },
        "fetch": _describe_fetch(state),
        "memory": _describe_memory(state),
        "leases": {
            "followed": state.followed,
            "watched": state.watched,
            "held": state.leases,
            "lapses": state.lease_lapses,
        },
        "delayedFetches": state.delayed_fetches,
        "disks": [_describe_disk(name, one) for name, one in state.disks.items()],
        "slots": _describe_queues(state),
        "topics": _rank((one.topic, sums) for one, sums in readers.items()),
        "clients": _rank((one.client_id, sums) for one, sums in readers.items()),
        "groups": _rank((one.group, sums) for one, sums in readers.items()),
        "others": _describe_sums(state.others),
        "readersBehind": _describe_behind(state),
        "warnings": [line._asdict() for line in state.warnings],
    }


def find_ratio(record_bytes: Mapping[tuple[str, str], int]) -> float | None:
    """The share of record bytes that memory served; None without any."""
    total = sum(record_bytes.values())
    hits = sum(count for (result, _), count in record_bytes.items() if result == "hit")
    return hits / total if total else None


def _describe_fetch(state: LiveState) -> dict[str, Any]:
    reasons = sorted(state.record_bytes.items(), key=lambda one: -one[1])
    return {
        "bytes": sum(state.record_bytes.values()),
        "hitRatio": find_ratio(state.record_bytes),
        "hitRatioSinceStart": find_ratio(state.total_bytes),
        "bytesSinceStart": sum(state.total_bytes.values()),
        "reasons": [
            {"result": result, "reason": reason, "bytes": count}
            for (result, reason), count in reasons[:MOST_REASONS]
            if count
        ],
    }


def _describe_memory(state: LiveState) -> dict[str, Any]:
    memory = state.memory
    return {
        "capacityBytes": memory.capacity_bytes,
        "liveBytes": memory.live_bytes,
        "reachS": memory.reach_s,
        "full": memory.is_full,
        "admittedBytesPerS": _rate(state.admitted_bytes, state.window_s),
    }


def _rate(count: float, time_s: float) -> float:
    return count / time_s if time_s > 0 else 0.0


def _describe_disk(name: str, disk: DiskStatistics) -> dict[str, Any]:
    queue, sample = disk.queue, disk.sample
    return {
        "name": name,
        "counters": disk.sampled,
        "busy": queue.busy,
        "load": None if sample is None else sample.load,
        "util": None if sample is None else sample.util,
        "awaitMs": None if sample is None else sample.await_ms,
        "target": disk.target,
        "rateBytesPerS": disk.controller.rate_bytes_s,
        "waiting": queue.waiting_requests,
        "waitingBytes": queue.waiting_bytes,
        "delayedSinceStart": queue.delayed,
        "delaySSinceStart": queue.delay_sum_s,
    }


def _describe_queues(state: LiveState) -> list[dict[str, Any]]:
    used = [one for one in state.queues if one.in_use or one.waiting or one.refused]
    used.sort(key=lambda one: (-one.waiting, -one.in_use, -one.refused))
    return [
        {
            "queue": one.name,
            "inUse": one.in_use,
            "slots": one.slots,
            "waiting": one.waiting,
            "refusedSinceStart": one.refused,
        }
        for one in used[:MOST_ROWS]
    ]


def _describe_sums(sums: ReadSums) -> dict[str, Any]:
    return {
        "bytes": sums.hit_bytes + sums.miss_bytes + sums.pass_bytes,
        "hitBytes": sums.hit_bytes,
        "missBytes": sums.miss_bytes,
        "passBytes": sums.pass_bytes,
        "answers": sums.answers,
        "misses": sums.misses,
        "delayS": sums.delay_s,
    }


def _rank(rows: Iterable[tuple[str | None, ReadSums]]) -> list[dict[str, Any]]:
    """The first MOST_ROWS by each of ORDERS, those with the most bytes first. `name` None: not known."""
    sums: dict[str | None, ReadSums] = {}
    for name, one in rows:
        sums.setdefault(name, ReadSums()).add(one)
    shown = [{"name": name} | _describe_sums(one) for name, one in sums.items()]
    kept: dict[int, dict[str, Any]] = {}
    for order in ORDERS:
        shown.sort(key=lambda row: row[order], reverse=True)
        kept |= {id(row): row for row in shown[:MOST_ROWS]}
    return sorted(kept.values(), key=lambda row: -row["bytes"])


def _describe_behind(state: LiveState) -> dict[str, Any]:
    """Readers behind, each in the partition in which it is furthest behind."""
    furthest: dict[object, ReaderBehind] = {}
    counts: dict[object, int] = {}
    for one in state.behind:
        counts[one.reader] = counts.get(one.reader, 0) + 1
        if one.reader not in furthest or _lag(one) > _lag(furthest[one.reader]):
            furthest[one.reader] = one
    rows = sorted(furthest.values(), key=_lag, reverse=True)
    return {
        "partitions": len(state.behind),
        "readers": len(furthest),
        "rows": [_describe_reader(state, one, counts[one.reader]) for one in rows[:MOST_ROWS]],
    }


def _lag(one: ReaderBehind) -> tuple[float, int]:
    return (-1.0 if one.behind_s is None else one.behind_s, one.high_watermark - one.offset)


def _describe_reader(state: LiveState, one: ReaderBehind, partitions: int) -> dict[str, Any]:
    is_known = one.high_watermark >= 0
    return {
        "client": one.reader.client_id,
        "group": one.reader.group,
        "topic": one.reader.topic,
        "partitions": partitions,
        "partition": one.partition,
        "offset": one.offset,
        "highWatermark": one.high_watermark if is_known else None,
        "logStart": one.log_start if is_known else None,
        "behind": one.high_watermark - one.offset if is_known else None,
        "behindS": one.behind_s,
        "memory": find_memory_end(state, one),
        "retention": find_retention_end(one),
    }


def find_memory_end(state: LiveState, one: ReaderBehind) -> dict[str, Any]:
    """When the records that a reader comes to leave memory, at the pace of both. `state`: `left`: they are not in
    memory; `unknown`: its pace is not known yet; `never`: it is as fast as the oldest bytes go; `leaves`: in `inS`.
    """
    memory = state.memory
    if one.admitted_at is None:
        return {"state": "left", "inS": None}
    if one.bytes_pace is None:
        return {"state": "unknown", "inS": None}
    closing = _rate(state.admitted_bytes, state.window_s) - one.bytes_pace
    if closing <= 0:
        return {"state": "never", "inS": None}
    edge = memory.edge if memory.is_full else memory.clock - memory.pool_bytes
    return {"state": "leaves", "inS": max(one.admitted_at - edge, 0) / closing}


def find_retention_end(one: ReaderBehind) -> dict[str, Any]:
    """When `retention.ms` lets the broker delete the records that a reader comes to, at its pace.

    `state`: `unknown`: the topic's setting, the records' time or its pace is not known; `forever`: they are kept;
    `never`: it is faster than time goes; `due`: they may be deleted now; `leaves`: in `inS`. `retention.bytes` may
    delete them earlier.
    """
    if one.retention_ms is not None and one.retention_ms < 0:
        return {"state": "forever", "inS": None}
    if one.retention_ms is None or one.record_age_s is None:
        return {"state": "unknown", "inS": None}
    kept_s = one.retention_ms / 1000 - one.record_age_s
    if kept_s <= 0:
        return {"state": "due", "inS": 0.0}
    if one.time_pace is None:
        return {"state": "unknown", "inS": None}
    closing = 1 - one.time_pace
    return (
        {"state": "leaves", "inS": kept_s / closing}
        if closing > 0
        else {"state": "never", "inS": None}
    )
