"""Numbers as people read them.

Owns the text of bytes, ratios and times on the page. Must not know where a number comes from. Invariants:
pure; `None` is a dash.
"""

from datetime import UTC, datetime

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DASH = "–"


def show_bytes(size_bytes: float | None) -> str:
    """`1.25 GiB`: three significant digits, binary units."""
    if size_bytes is None:
        return _DASH
    power = 0
    while size_bytes >= 1000 and power < len(_BINARY) - 1:
        size_bytes /= 1024
        power += 1
    if power == 0:
        return f"{size_bytes:.0f} B"
    digits = 0 if size_bytes >= 100 else 1 if size_bytes >= 10 else 2
    return f"{size_bytes:.{digits}f} {_BINARY[power]}"


def show_ratio(ratio: float | None) -> str:
    """`97.1 %`; never rounded up to 100 nor down to 0."""
    if ratio is None:
        return _DASH
    if 0.9995 <= ratio < 1:
        return "> 99.9 %"
    if 0 < ratio < 0.0005:
        return "< 0.1 %"
    return f"{100 * ratio:.1f} %" if 0 < ratio < 1 else f"{100 * ratio:.0f} %"


def show_share_of_all(ratio: float) -> str:
    """`99.98 %`: two decimals, rounded down, so that only all is 100 %."""
    return "100 %" if ratio >= 1 else f"{int(10_000 * ratio) / 100:.2f} %"


def show_points(share: float, is_signed: bool = False) -> str:
    """A difference of two ratios in percentage points: `4.2 points`, `+0.3 points`. What rounds to 0 has no sign."""
    number = f"{100 * share:+.1f}" if is_signed else f"{100 * share:.1f}"
    return f"{number.lstrip('+-') if float(number) == 0 else number} points"


def show_count(number: int | None) -> str:
    """`1,234,567`."""
    return _DASH if number is None else f"{number:,}"


def show_ms(time_ms: float | None) -> str:
    """`3.14 ms`, `1.20 s`."""
    if time_ms is None:
        return _DASH
    return f"{time_ms / 1000:.2f} s" if time_ms >= 1000 else f"{time_ms:.3g} ms"


def show_duration(time_s: float | None) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2.1 d`."""
    if time_s is None:
        return _DASH
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if time_s >= 2 * unit_s:
            return f"{time_s / unit_s:.3g} {unit}"
    return f"{time_s:.3g} s"


def show_time(time_ms: int) -> str:
    """`2026-11-21 12:00:00 UTC`."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def scan_size(text: str) -> int:
    """Bytes of `512MiB`, `2GiB`, `1048576`. ValueError: anything else."""
    for power, unit in reversed(list(enumerate(_BINARY))):
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * (1 << 10 * power))
    return int(text)
