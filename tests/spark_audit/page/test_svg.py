"""Scales, ticks and the places of labels."""

from datetime import UTC, datetime

import pytest

from spark_audit.page.svg import (
    CHAR_PX,
    Box,
    Labels,
    Scale,
    Spot,
    draw_text,
    plan_byte_ticks,
    plan_size_ticks,
    plan_time_ticks,
)

DAY_MS = 86_400_000


def test_scales_place_and_keep_within() -> None:
    assert [Scale(0, 10, 100, 0).place(value) for value in (-1, 0, 5, 10, 99)] == [
        100,
        100,
        50,
        0,
        0,
    ]
    assert Scale(1, 1 << 20, 0, 100, is_log=True).place(1 << 10) == pytest.approx(50)
    assert Scale(5, 5, 0, 100).place(5) == 0


@pytest.mark.parametrize(
    ("top", "ticks"), [(0, [0, 2]), (8, [0, 2, 4, 6, 8]), (1000, [0, 256, 512, 768, 1024])]
)
def test_byte_ticks_reach_the_top(top: int, ticks: list[float]) -> None:
    assert plan_byte_ticks(top) == ticks


def test_size_ticks_are_few_powers_of_two() -> None:
    assert plan_size_ticks(1000, 9000) == [1024, 2048, 4096, 8192]
    many = plan_size_ticks(1, 1 << 40)
    assert len(many) <= 9 and many[1] / many[0] == 256


@pytest.mark.parametrize(
    ("span_ms", "labels"),
    [
        (5_000, ["11-21 12:00:00", "12:00:01", "12:00:02", "12:00:03", "12:00:04", "12:00:05"]),
        (3_600_000, ["11-21 12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (
            2.5 * DAY_MS,
            ["11-21 12:00", "11-22 00:00", "12:00", "11-23 00:00", "12:00", "11-24 00:00"],
        ),
        (5 * DAY_MS, ["2025-11-22", "2025-11-23", "2025-11-24", "2025-11-25", "2025-11-26"]),
    ],
)
def test_time_ticks_are_round_and_say_the_day(span_ms: int, labels: list[str]) -> None:
    start_ms = datetime(2025, 11, 21, 12, tzinfo=UTC).timestamp() * 1000
    assert [label for _, label in plan_time_ticks(start_ms, start_ms + span_ms)] == labels


def test_labels_take_the_first_free_spot_or_none() -> None:
    labels = Labels(Box(0, 0, 100, 40))
    assert 'x="0.0" y="12.0"' in labels.put("first", [Spot(0, 12)])
    assert 'x="0.0" y="30.0"' in labels.put("other", [Spot(10, 12), Spot(0, 30)])
    assert labels.put("third", [Spot(10, 12), Spot(0, 28)]) == ""
    assert labels.put("x" * int(100 / CHAR_PX + 1), [Spot(0, 12)]) == ""
    labels.keep_clear(Box(60, 0, 100, 40))
    assert labels.put("late", [Spot(98, 12, "end")]) == ""


def test_texts_are_escaped() -> None:
    assert "&lt;b&gt;" in draw_text("<b>", Spot(0, 0))
