"""Views of several processes as one: nothing of a worker is lost, and nothing is counted twice."""

from __future__ import annotations

from typing import Any

from proxy.admin import group_view
from proxy.admin.group_view import merge_reports, merge_states, pack_state
from proxy.admin.live_state import QueueState, Reader
from proxy.admin.live_view import describe
from proxy.admin.log_queue import KEPT_WARNINGS, RecentLine
from proxy.fetch.readers import ReadSums
from tests.proxy.admin.live_states import AT_S, build_behind, build_state

NOTHING: dict[str, Any] = {
    "record_bytes": {("hit", ""): 0},
    "total_bytes": {("hit", ""): 0},
    "listeners": [],
    "delayed_fetches": 0,
    "queues": [QueueState("control", 1, 0, 0, 0)],
    "readers": {},
    "behind": [],
    "warnings": [],
}
"""Of a keeper: it has no clients."""


def keep_retention(name: str) -> int | None:
    return {"orders": 100_000}.get(name)


def merge(*workers: Any, expected: int = 2, **keeper: Any) -> Any:
    return merge_states(
        build_state(**NOTHING | keeper), map(pack_state, workers), expected, keep_retention
    )


def test_a_worker_s_clients_are_shown_as_if_there_were_no_keeper() -> None:
    """But for retention, which the keeper knows."""
    worker = build_state(behind=[build_behind(retention_ms=None)])
    said, alone = describe(merge(worker, expected=1)), describe(build_state())
    assert said["forebay"].pop("workers") == {"answered": 1, "of": 1}
    assert alone["forebay"].pop("workers") is None
    said["slots"] = alone["slots"] = None
    assert said == alone


def test_sums_of_workers_are_added() -> None:
    said = describe(merge(build_state(), build_state()))
    assert said["fetch"]["bytes"] == 2000 and said["fetch"]["bytesSinceStart"] == 4000
    assert {row["name"]: row["bytes"] for row in said["clients"]} == {"web": 1500, "batch": 500}
    assert said["delayedFetches"] == 4
    assert [one["connections"] for one in said["forebay"]["listeners"]] == [6]
    (queue,) = said["slots"]
    assert queue == {
        "queue": "data-1",
        "inUse": 4,
        "slots": 8,
        "waiting": 2,
        "refusedSinceStart": 18,
    }
    assert said["memory"] == describe(build_state())["memory"], "there is one memory"
    behind = said["readersBehind"]
    assert (behind["partitions"], behind["readers"]) == (2, 1)


def test_a_worker_that_is_not_ready_or_does_not_answer_is_seen() -> None:
    late = build_state(is_ready=False, reasons=["listener x is not bound"])
    said = describe(merge(late, expected=3))["forebay"]
    assert (said["ready"], said["reasons"]) == (False, ["listener x is not bound"])
    assert said["workers"] == {"answered": 1, "of": 3}


def test_the_newest_warnings_of_all_are_shown() -> None:
    workers = [
        build_state(
            warnings=[RecentLine(AT_S + 2 * age + name, "WARNING", "x", "w") for age in range(15)]
        )
        for name in range(2)
    ]
    ages = [one["at"] - AT_S for one in describe(merge(*workers))["warnings"]]
    assert ages == sorted(range(30), reverse=True)[:KEPT_WARNINGS]


def test_what_a_worker_says_is_bounded_and_loses_no_bytes(monkeypatch: Any) -> None:
    monkeypatch.setattr(group_view, "MOST_ROWS", 5)
    readers = {Reader(f"c{number}", None, "t"): ReadSums(1, 0, number) for number in range(20)}
    behind = [build_behind(behind_s=float(number)) for number in range(20)]
    state = merge(build_state(readers=readers, behind=behind))
    assert {reader.client_id for reader in state.readers} == {f"c{n}" for n in range(15, 20)}
    total = sum(one.hit_bytes for one in state.readers.values()) + state.others.hit_bytes
    assert total == sum(range(20)) and state.others.answers == 15
    assert sorted(one.behind_s or 0 for one in state.behind) == [15, 16, 17, 18, 19]


def test_what_cannot_be_read_is_no_answer() -> None:
    packed = [b"", b"[]", b"{}", pack_state(build_state())]
    state = merge_states(build_state(**NOTHING), packed, 4, keep_retention)
    assert state.workers == (1, 4)
    assert sum(state.record_bytes.values()) == 1000


REPORT: dict[str, Any] = {
    "enabled": True,
    "queues": {"control": {"slots": 4, "in_use": 1.5}, "data-0": {"slots": 2, "in_use": 0}},
    "topics": {"watched": 3, "hanging": 1, "names": ["a", "b"]},
    "quotas": {
        "topics": {"keys": 5, "refused": 2},
        "clients": {"keys": 1, "refused": 0},
    },
}


def test_reports_of_queues_are_added() -> None:
    more = (
        b'{"enabled": true, "queues": {"control": {"slots": 4, "in_use": 1}, "data-7": {"slots": 1}},'
        b'"topics": {"watched": 1, "hanging": 1, "names": ["b", "c"]},'
        b'"quotas": {"topics": {"keys": 4, "refused": 1}, "clients": {"keys": 2, "refused": 7}}}'
    )
    assert merge_reports(REPORT, [more, b"", b"[3]"]) == {
        "enabled": True,
        "queues": {
            "control": {"slots": 8, "in_use": 2.5},
            "data-0": {"slots": 2, "in_use": 0},
            "data-7": {"slots": 1},
        },
        "topics": {"watched": 4, "hanging": 2, "names": ["a", "b", "c"]},
        "quotas": {
            "topics": {"keys": 5, "refused": 3},
            "clients": {"keys": 2, "refused": 7},
        },
    }
