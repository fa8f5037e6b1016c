"""Python functions of the product that an action calls: a count that no other work on the machine changes.

Owns the count of calls, files, rooms and crossings. It must not know how long a call takes. Invariant: calls into C and
the standard library are not counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

ROOT = Path(__file__).parents[2]
PACKAGES = ("proxy", "protocol", "blockcache", "isolation", "throttle", "metrics")
PRODUCT = tuple(f"{ROOT / package}/" for package in PACKAGES)


class Journey(NamedTuple):
    """Counts of one action: functions called, files, folders, calls into another file, and calls into a file that was
    entered before.
    """

    calls: int
    files: int
    rooms: int
    crossings: int
    re_entries: int


def trace(action: Callable[[], object]) -> Journey:
    """Run `action` and count."""
    entered: list[str] = []
    stack: list[str] = []
    calls = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        name = frame.f_code.co_filename
        if not name.startswith(PRODUCT):
            return
        if event == "call":
            calls += 1
            if not stack or stack[-1] != name:
                entered.append(name)
            stack.append(name)
        elif event == "return" and stack:
            stack.pop()

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    files = {Path(name).relative_to(ROOT) for name in entered}
    return Journey(
        calls,
        len(files),
        len({one.parent for one in files}),
        len(entered),
        len(entered) - len(files),
    )


def count_calls(action: Callable[[], object]) -> int:
    """Functions that `action` calls."""
    return trace(action).calls
