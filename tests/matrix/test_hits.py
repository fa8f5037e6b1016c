"""Shares of tail reads, from lines of the access log."""

from __future__ import annotations

from tests.matrix.hits import Share, sum_by_topic


def line(topic: str | None, isolation: int, result: str, size_bytes: int) -> dict[str, object]:
    return {
        "type": "fetch",
        "topic": topic,
        "isolation": isolation,
        "result": result,
        "bytes": size_bytes,
    }


def test_bytes_are_summed_by_topic_and_isolation() -> None:
    lines = [
        line("a", 0, "miss", 100),
        line("a", 0, "hit", 300),
        line("a", 0, "pass", 0),
        line("a", 1, "hit", 50),
        line("b", 0, "pass", 10),
        line(None, 0, "miss", 70),
        {"type": "block", "topic": "a", "bytes": 1000},
    ]
    found = sum_by_topic(lines)
    assert found == {("a", 0): Share(300, 400), ("a", 1): Share(50, 50), ("b", 0): Share(0, 10)}
    assert [share.share for share in found.values()] == [0.75, 1.0, 0.0]


def test_nothing_read_is_no_share() -> None:
    assert Share(0, 0).share is None
