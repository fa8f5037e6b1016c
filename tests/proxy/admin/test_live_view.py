"""The document of the live view: ratios, rankings, times to go, bounds, and the page that shows it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import Any

import pytest

from proxy.admin.live_state import LiveState, QueueState, Reader, ReaderBehind
from proxy.admin.live_view import (
    MOST_REASONS,
    MOST_ROWS,
    ORDERS,
    build_view,
    describe,
    find_memory_end,
    find_retention_end,
)
from proxy.admin.log_queue import KEPT_WARNINGS, LONGEST_WARNING, RecentLine
from proxy.fetch.readers import LONGEST_TEXT, ReadSums
from tests.proxy.admin.live_states import MEMORY, build_behind, build_state

MOST_BYTES = 256 << 10
"""Of a document, at every bound."""


def test_ratios_are_of_bytes_and_null_without_any() -> None:
    fetch = describe(build_state())["fetch"]
    assert (fetch["hitRatio"], fetch["hitRatioSinceStart"]) == (0.75, 0.75)
    assert fetch["reasons"] == [
        {"result": "hit", "reason": "", "bytes": 750},
        {"result": "miss", "reason": "cold", "bytes": 250},
    ]
    quiet = describe(build_state(record_bytes={}, total_bytes={("hit", ""): 0}))["fetch"]
    assert quiet["hitRatio"] is quiet["hitRatioSinceStart"] is None


def test_topics_clients_and_groups_are_sums_of_the_same_rows() -> None:
    said = describe(build_state())
    (topic,) = said["topics"]
    assert topic == {
        "name": "orders",
        "bytes": 1000,
        "hitBytes": 750,
        "missBytes": 250,
        "passBytes": 0,
        "answers": 35,
        "misses": 5,
        "delayS": 1.5,
    }
    assert [one["name"] for one in said["clients"]] == ["web", "batch"]
    assert [one["name"] for one in said["groups"]] == ["live", "nightly"]


def test_a_table_has_the_first_rows_by_each_order() -> None:
    readers = {}
    for number in range(100):
        sums = ReadSums(misses=100 - number, hit_bytes=number, delay_s=float(number == 50))
        readers[Reader(f"c{number:02}", None, "t")] = sums
    said = describe(build_state(readers=readers))
    names = [one["name"] for one in said["clients"]]
    assert names[:MOST_ROWS] == [f"c{number}" for number in range(99, 79, -1)]
    assert {"c00", "c19", "c50"} <= set(names) and "c60" not in names
    assert len(names) <= MOST_ROWS * len(ORDERS)
    assert said["groups"] == [
        {
            "name": None,
            "bytes": 4950,
            "hitBytes": 4950,
            "missBytes": 0,
            "passBytes": 0,
            "answers": 0,
            "misses": 5050,
            "delayS": 1.0,
        }
    ]


def test_a_reader_behind_stands_where_it_is_furthest_behind() -> None:
    behind = [
        build_behind(partition=1, behind_s=5.0),
        build_behind(partition=2, behind_s=50.0),
        build_behind(partition=3, behind_s=None),
        build_behind(reader=Reader("other", None, "orders"), behind_s=70.0, high_watermark=-1),
    ]
    said = describe(build_state(behind=behind))["readersBehind"]
    assert (said["partitions"], said["readers"]) == (4, 2)
    other, batch = said["rows"]
    assert (other["client"], other["behind"], other["highWatermark"]) == ("other", None, None)
    assert (batch["partition"], batch["partitions"], batch["behindS"]) == (2, 3, 50.0)
    assert (batch["offset"], batch["highWatermark"], batch["behind"]) == (70, 100, 30)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (build_behind(admitted_at=None), ("left", None)),
        (build_behind(bytes_pace=None), ("unknown", None)),
        (build_behind(bytes_pace=100.0), ("never", None)),
        (
            build_behind(bytes_pace=50.0),
            ("leaves", 10.0),
        ),  # 500 bytes above the edge, 50 a second nearer
        (build_behind(bytes_pace=0.0), ("leaves", 5.0)),
        (build_behind(bytes_pace=0.0, admitted_at=3990), ("leaves", 0.0)),
    ],
)
def test_when_records_leave_memory(one: ReaderBehind, expected: tuple[str, float | None]) -> None:
    said = find_memory_end(build_state(), one)
    assert (said["state"], said["inS"]) == expected


def test_a_memory_that_is_not_full_has_room_before_anything_leaves() -> None:
    memory = MEMORY.__class__(1000, 800, 600, 5000, 4400, 90.0, False)
    one = build_behind(bytes_pace=0.0, admitted_at=4500)
    assert find_memory_end(build_state(memory=memory), one)["inS"] == (4500 - (5000 - 800)) / 100


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (build_behind(retention_ms=-1), ("forever", None)),
        (build_behind(retention_ms=None), ("unknown", None)),
        (build_behind(time_pace=None), ("unknown", None)),
        (build_behind(record_age_s=101.0), ("due", 0.0)),
        (build_behind(time_pace=1.5), ("never", None)),
        (build_behind(time_pace=0.5), ("leaves", 120.0)),
    ],
)
def test_when_retention_takes_records(
    one: ReaderBehind, expected: tuple[str, float | None]
) -> None:
    said = find_retention_end(one)
    assert (said["state"], said["inS"]) == expected


def test_queues_in_use_come_first_and_idle_ones_are_left_out() -> None:
    said = describe(build_state())["slots"]
    assert [one["queue"] for one in said] == ["data-1"]
    many = [QueueState(f"data-{number}", 4, 1, number, 0) for number in range(64)]
    said = describe(build_state(queues=many))["slots"]
    assert len(said) == MOST_ROWS and said[0]["queue"] == "data-63"


def test_the_document_is_bounded() -> None:
    """At the bounds of all tables, with the longest names."""
    limit = 2048
    readers, behind = {}, []
    for number in range(limit):
        reader = Reader(*(f"{number:04}{kind}" + "x" * (LONGEST_TEXT - 5) for kind in "cgt"))
        readers[reader] = ReadSums(
            number, limit - number, 10**15 + number, 10**15, 10**15, number * 7 % limit
        )
        behind.append(build_behind(reader=reader, behind_s=float(number)))
    reasons = {("miss", f"reason-{number}"): 10**15 for number in range(25)}
    warnings = [RecentLine(1.0, "WARNING", "forebay", "w" * LONGEST_WARNING)] * KEPT_WARNINGS
    state = build_state(readers=readers, behind=behind, record_bytes=reasons, warnings=warnings)
    said = describe(state)
    assert len(said["fetch"]["reasons"]) == MOST_REASONS
    assert (
        len(said["readersBehind"]["rows"]) == MOST_ROWS
        and said["readersBehind"]["readers"] == limit
    )
    for name in ("topics", "clients", "groups"):
        assert MOST_ROWS < len(said[name]) <= MOST_ROWS * len(ORDERS)
    assert len(json.dumps(said)) < MOST_BYTES


def test_many_who_ask_share_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those who ask while it is being read."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    reads: list[int] = []

    async def read() -> LiveState:
        reads.append(1)
        await asyncio.sleep(0)
        return build_state()

    async def run() -> None:
        answer: Any = build_view(read)["/top"]
        for found in await asyncio.gather(answer(), answer(), answer()):
            assert json.loads(found.body) == describe(build_state())
        assert len(reads) == 1
        clock[0] = 1.0
        await answer()
        assert len(reads) == 2

    asyncio.run(run())


def test_the_page_allows_its_own_script_and_names_no_other_place() -> None:
    async def read() -> LiveState:
        return build_state()

    answer: Any = build_view(read)["/"]()
    text = answer.body.decode()
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text
    assert answer.content_type.startswith("text/html")
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert "innerHTML" not in script
