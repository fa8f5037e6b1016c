"""Numbers as people read them."""

import pytest

from spark_audit.units import (
    scan_size,
    show_bytes,
    show_duration,
    show_ms,
    show_points,
    show_ratio,
    show_share_of_all,
    show_time,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (10 << 20, "10.0 MiB"),
        (None, "–"),
    ],
)
def test_bytes(size_bytes: int | None, text: str) -> None:
    assert show_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.5, "50.0 %"),
        (0.99999, "> 99.9 %"),
        (0.00001, "< 0.1 %"),
        (None, "–"),
    ],
)
def test_ratios_never_round_to_all_or_nothing(ratio: float | None, text: str) -> None:
    assert show_ratio(ratio) == text


def test_only_all_is_100_percent() -> None:
    assert [show_share_of_all(ratio) for ratio in (0, 0.99981, 0.99999999, 1)] == [
        "0.00 %",
        "99.98 %",
        "99.99 %",
        "100 %",
    ]


def test_differences_are_in_points() -> None:
    assert [show_points(share) for share in (0.042, 0)] == ["4.2 points", "0.0 points"]
    signed = [show_points(share, is_signed=True) for share in (0.042, -0.3, -0.0001, 0)]
    assert signed == ["+4.2 points", "-30.0 points", "0.0 points", "0.0 points"]


def test_times() -> None:
    assert [show_ms(time) for time in (0.1234, 12, 1500, None)] == [
        "0.123 ms",
        "12 ms",
        "1.50 s",
        "–",
    ]
    assert [show_duration(time) for time in (1, 120, 7200, 172_800)] == [
        "1 s",
        "2 min",
        "2 h",
        "2 d",
    ]
    assert show_time(0) == "1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("7", 7), ("9B", 9)]
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert scan_size(text) == size_bytes
