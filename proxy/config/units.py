"""Units: parse and format sizes, durations and addresses of the configuration.

Owns the units: `512MiB`, `1h30m`, `HOST:PORT`. Must not know a key or a default. Invariants:
* parsing a formatted value gives the same value.
* a value without a unit is a count of bytes or is refused, never a guess.
* every refusal (ValueError) says how to write the value.
"""

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, PlainValidator

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_BINARY = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{unit.lower(): factor for unit, factor in _BINARY.items()},
    **{
        unit.lower().removesuffix("b"): factor for unit, factor in _BINARY.items()
    },  # Kubernetes writes 512Mi
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_DURATION_UNITS_US = {
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
    "µs": 1,
}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|h|m|s)")
_LONGEST_TEXT = 64
AUTO = "auto"


class Address(NamedTuple):
    """A host name or IP address (empty: all interfaces) and a port (0, for listening only: any free
    port).
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_size(value: object) -> int:
    """Bytes of `512MiB`, `64KiB`, `1GB`, `512Mi` or a plain count of bytes. Raises ValueError for
    anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = value.strip() if isinstance(value, str) and len(value) <= _LONGEST_TEXT else ""
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(
            "is not a size; write for example 512MiB, 64KiB or a plain number of bytes"
        )
    size = Decimal(match["number"]) * factor
    if size != int(size):
        raise ValueError("is not a whole number of bytes")
    return int(size)


def format_size(size_bytes: int) -> str:
    """The shortest exact text with a binary unit: 536870912 is `512MiB`, 1000 is `1000`."""
    for unit, factor in reversed(_BINARY.items()):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def rough_size(size_bytes: int) -> str:
    """The size for sentences: exact if that is short, else in whole MiB, rounded down."""
    exact = format_size(size_bytes)
    return exact if len(exact) <= len("1023MiB") or size_bytes < MIB else f"{size_bytes // MIB}MiB"


def parse_duration(value: object) -> float:
    """Seconds of `250ms`, `1s`, `1h30m`; only 0 needs no unit. Raises ValueError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    text = value.strip() if isinstance(value, str) and len(value) <= _LONGEST_TEXT else ""
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(
            "is not a duration; write a number with its unit, for example 250ms, 30s or 1h30m"
        )
    try:
        total_us = sum(Decimal(number) * _DURATION_UNITS_US[unit] for number, unit in parts)
    except InvalidOperation:
        raise ValueError("is not a duration that can be counted") from None
    return float(total_us) / 1e6


def format_duration(duration_s: float) -> str:
    """The text of a duration, exact to the microsecond: 5400.0 is `1h30m`, 0.25 is `250ms`, 0.0 is
    `0s`.
    """
    left_us = round(duration_s * 1e6)
    if left_us == 0:
        return "0s"
    parts = []
    for unit in ("h", "m", "s", "ms", "us"):
        count, left_us = divmod(left_us, _DURATION_UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_listen_address(value: object) -> Address:
    """An address to listen on, of HOST:PORT; `:PORT` is all interfaces, port 0 any free port.
    Raises ValueError.
    """
    return _parse_address(value, lowest_port=0)


def parse_remote_address(value: object) -> Address:
    """An address to connect to, of HOST:PORT with a port from 1. Raises ValueError."""
    address = _parse_address(value, lowest_port=1)
    if not address.host:
        raise ValueError("names no host; write HOST:PORT, for example 127.0.0.1:9092")
    return address


def _parse_address(value: object, lowest_port: int) -> Address:
    if isinstance(value, Address):
        value = str(value)
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(
            "is not an address; write HOST:PORT, for example 127.0.0.1:9092 or [::1]:9092"
        )
    if not lowest_port <= int(port) <= 65535:
        raise ValueError(f"has a port outside {lowest_port} to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    if (":" in host) != bracketed:
        raise ValueError(
            "has an IPv6 host without brackets; write [HOST]:PORT, for example [::1]:9092"
        )
    host = host[1:-1] if bracketed else host
    if len(host) > 253 or re.search(r"[\s/@\[\]]", host):
        raise ValueError("has a host that is neither a name nor an address; write HOST:PORT")
    return Address(host, int(port))


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("is not a number")
    return value


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, when_used="json")]
Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")
]


def refuse_auto(value: object) -> object:
    """Raise ValueError, for `auto`, too: loading puts a number in its place (config/load.py)."""
    if value == AUTO:
        raise ValueError("must be a number by now")
    return _refuse_bool(value)


Count = Annotated[int, BeforeValidator(_refuse_bool)]
CountOrAuto = Annotated[int, BeforeValidator(refuse_auto)]
"""A count, or AUTO in the file: then the machine decides."""


def is_or_auto(metadata: Iterable[object]) -> bool:
    """Whether a key with this metadata of its field takes AUTO, too."""
    return any(getattr(item, "func", None) is refuse_auto for item in metadata)


ListenAddress = Annotated[
    Address, PlainValidator(parse_listen_address), PlainSerializer(str, when_used="json")
]
RemoteAddress = Annotated[
    Address, PlainValidator(parse_remote_address), PlainSerializer(str, when_used="json")
]
