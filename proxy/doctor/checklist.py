"""The lines of a check list, as text and as JSON, and the exit code that follows from them.

Owns the four statuses and both formats. Must not know what is checked. Invariant: a line that warns or fails has a
remedy.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

CheckStatus = Literal["ok", "skip", "warn", "fail"]
STATUSES: Final[tuple[CheckStatus, ...]] = ("ok", "skip", "warn", "fail")
"""From the best to the worst. `skip`: the check could not be made, or there was nothing to check."""
EXIT_CODES: Final[dict[CheckStatus, int]] = {"ok": 0, "skip": 0, "warn": 3, "fail": 1}


class CheckLine(NamedTuple):
    """What one check has found. `remedy`: what to do; "" where nothing is to be done."""

    status: CheckStatus
    subject: str
    text: str
    remedy: str = ""


def passed(subject: str, text: str) -> CheckLine:
    """A line without anything to do."""
    return CheckLine("ok", subject, text)


def skipped(subject: str, reason: str) -> CheckLine:
    """A line about a check that was not made."""
    return CheckLine("skip", subject, reason)


def warned(subject: str, text: str, remedy: str) -> CheckLine:
    """Forebay works, but less well than it could."""
    return CheckLine("warn", subject, text, remedy)


def failed(subject: str, text: str, remedy: str) -> CheckLine:
    """Forebay does not start, or does not do what it is for."""
    return CheckLine("fail", subject, text, remedy)


def find_worst(lines: Sequence[CheckLine]) -> CheckStatus:
    """The worst status; `ok` without lines."""
    return max((line.status for line in lines), key=STATUSES.index, default="ok")


def format_text(lines: Sequence[CheckLine]) -> str:
    """The list for people, with a final line break."""
    width = max((len(line.subject) for line in lines), default=0)
    rows = []
    for line in lines:
        rows.append(f"{line.status:<4}  {line.subject:<{width}}  {line.text}")
        if line.remedy:
            rows.append(f"{'':<4}  {'':<{width}}  -> {line.remedy}")
    counts = (
        f"{sum(line.status == status for line in lines)} {status}" for status in reversed(STATUSES)
    )
    return "\n".join([*rows, "", ", ".join(counts), ""])


def format_json(lines: Sequence[CheckLine], version: str) -> str:
    """The list for programs, with a final line break. `version`: Forebay's."""
    document = {
        "version": version,
        "worst": find_worst(lines),
        "checks": [line._asdict() for line in lines],
    }
    return json.dumps(document, indent=2) + "\n"
