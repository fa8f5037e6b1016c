"""Numbers and names as people read them on a screen. Pure.

Owns units and the removal of what a terminal would obey: names come from clients. Must not know the document.
"""

from __future__ import annotations

from typing import Final

SIZES: Final = ("B", "KB", "MB", "GB", "TB")
TIMES: Final = ((120.0, 1.0, "s", 0), (7200.0, 60.0, "min", 0), (172_800.0, 3600.0, "h", 1))
"""(below so many seconds, the unit's seconds, its name, decimals)."""
LONGEST_NAME: Final = 60
UNKNOWN: Final = "?"


def plain(text: object) -> str:
    """A text without what a terminal would obey, such as escape sequences; cut to LONGEST_NAME characters."""
    shown = "".join(one if one.isprintable() else "·" for one in str(text))
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def line(text: object) -> str:
    """The same, not cut: for texts that have a line of their own."""
    return "".join(one if one.isprintable() else "·" for one in str(text))


def size(size_bytes: float | None) -> str:
    """Bytes, with three digits and a decimal unit."""
    if size_bytes is None:
        return UNKNOWN
    place = 0
    while size_bytes >= 1000 and place < len(SIZES) - 1:
        size_bytes /= 1000
        place += 1
    decimals = 1 if place and size_bytes < 100 else 0
    return f"{size_bytes:.{decimals}f} {SIZES[place]}"


def time(time_s: float | None) -> str:
    """A duration in seconds, in the unit that suits it."""
    if time_s is None:
        return UNKNOWN
    if time_s < 1:
        return f"{1000 * time_s:.0f} ms"
    for below_s, unit_s, name, decimals in TIMES:
        if time_s < below_s:
            return f"{time_s / unit_s:.{decimals}f} {name}"
    return f"{time_s / 86_400:.1f} d"


def share(ratio: float | None) -> str:
    """A ratio in percent; a dash where there is none."""
    return "–" if ratio is None else f"{100 * ratio:.1f} %"


def count(number: float | None) -> str:
    """A whole number with separators."""
    return UNKNOWN if number is None else f"{number:,.0f}"
