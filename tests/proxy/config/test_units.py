"""Sizes, durations and addresses: parsing, refusals, and formatting without loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    Address,
    format_duration,
    format_size,
    parse_duration,
    parse_listen_address,
    parse_remote_address,
    parse_size,
    rough_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512MiB", 512 * MIB),
        ("64KiB", 64 * KIB),
        ("1.5GiB", 3 * GIB // 2),
        ("2TiB", 2 * TIB),
        ("512Mi", 512 * MIB),
        (" 10 mib ", 10 * MIB),
        ("10MB", 10_000_000),
        ("7", 7),
        ("7B", 7),
        (4096, 4096),
        (0, 0),
    ],
)
def test_sizes_are_read(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "MiB", "1.5", "-1", "1e3", "10 parsecs", "1G B", True, 1.5, None, "9" * 65, -1]
)
def test_invalid_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("250ms", 0.25),
        ("1s", 1.0),
        ("1h30m", 5400.0),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        ("5us", 5e-6),
        ("0", 0.0),
        (0, 0.0),
    ],
)
def test_durations_are_read(text: object, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize(
    "text", ["", "1", 5, 1.5, "1 s", "s", "-1s", "1s!", "1d", "1h 30m", True, None, "1s" * 40]
)
def test_durations_without_a_unit_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="number with its unit"):
        parse_duration(text)


@given(st.integers(0, 1 << 62))
def test_a_formatted_size_is_read_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(0, 10**13))
def test_formatted_duration_is_exact_to_the_microsecond(microseconds: int) -> None:
    assert parse_duration(format_duration(microseconds / 1e6)) == pytest.approx(
        microseconds / 1e6, abs=5e-7
    )


def test_formatting_uses_the_largest_unit_that_is_exact() -> None:
    assert [format_size(size) for size in (0, 1000, 1536 * MIB, 2 * GIB)] == [
        "0",
        "1000",
        "1536MiB",
        "2GiB",
    ]
    assert [format_duration(s) for s in (0.0, 0.25, 90.0, 5400.0)] == [
        "0s",
        "250ms",
        "1m30s",
        "1h30m",
    ]
    assert [rough_size(size) for size in (GIB, 24684096 * KIB, 1000)] == [
        "1GiB",
        "24105MiB",
        "1000",
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("[::1]:9092", Address("::1", 9092)),
        ("broker-0.kafka.svc:65535", Address("broker-0.kafka.svc", 65535)),
        (Address("::1", 1), Address("::1", 1)),
    ],
)
def test_addresses_are_read_and_written_alike(text: object, address: Address) -> None:
    assert parse_listen_address(text) == parse_remote_address(text) == address
    assert str(address) == str(text)


def test_only_listening_takes_port_0_and_no_host() -> None:
    assert parse_listen_address(":0") == Address("", 0)
    with pytest.raises(ValueError, match="1 to 65535"):
        parse_remote_address("broker:0")
    with pytest.raises(ValueError, match="no host"):
        parse_remote_address(":9092")


@pytest.mark.parametrize(
    "text",
    [
        9092,
        "9092",
        "host",
        "host:",
        "host:65536",
        "host:123456",
        "::1:9092",
        "a b:1",
        "http://h:1",
        "[::1:1",
        "h:１",
    ],
)
def test_invalid_address_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|HOST\]:PORT|65535"):
        parse_listen_address(text)
