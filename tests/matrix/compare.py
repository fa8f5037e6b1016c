"""Were the results equal? Two runs of one client, directly and through Forebay, step by step.

Owns the verdicts. Values in, values out: it starts nothing. Invariants: a step that says nothing, that saw nothing,
or that failed is never `equal`; the same unexpected failure on both ways is `broken`, unless a known limit of the
client names its message.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.matrix.programme import wrong_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EQUAL, NO, DIFFERS, BROKEN = "equal", "no", "differs", "broken"
FAILED = (DIFFERS, BROKEN)
_SHOWN_CHARS = 300


class Cell(NamedTuple):
    """A verdict, and why where it is not `equal`."""

    verdict: str
    note: str = ""


class Limit(NamedTuple):
    """What a client cannot do: the error it gives on both ways (a pattern), and the reason in words."""

    error: str
    reason: str


def scan_lines(printed: str, run: str) -> dict[str, dict[str, Any]]:
    """Step -> its line, from what a client's program printed; the run's name is replaced, for it is in all names."""
    lines = {}
    for text in printed.splitlines():
        if text.startswith("{"):
            line = json.loads(text.replace(run, "RUN"))
            line.pop("ms", None)
            lines[line["step"]] = line
    return lines


def find_difference(direct: Any, through: Any, where: str = "") -> str:
    """The first place where two JSON values differ, and both there; "" where they are equal."""
    if (
        type(direct) is type(through)
        and isinstance(direct, dict)
        and direct.keys() == through.keys()
    ):
        pairs = [(key, direct[key], through[key]) for key in direct]
    elif type(direct) is type(through) and isinstance(direct, list) and len(direct) == len(through):
        pairs = [
            (index, one, other)
            for index, (one, other) in enumerate(zip(direct, through, strict=True))
        ]
    elif direct == through and isinstance(direct, bool) == isinstance(through, bool):
        return ""
    else:
        return f"{where or 'all'}: {json.dumps(direct)} directly, {json.dumps(through)} through"[
            :_SHOWN_CHARS
        ]
    return next(
        filter(None, (find_difference(one, other, f"{where}/{key}") for key, one, other in pairs)),
        "",
    )


def judge_step(
    step: str,
    direct: Mapping[str, Any] | None,
    through: Mapping[str, Any] | None,
    limit: Limit | None = None,
) -> Cell:
    """One step's verdict from the lines of both runs."""
    if direct is None or through is None:
        where = " and ".join(
            way for way, line in (("directly", direct), ("through", through)) if line is None
        )
        return Cell(BROKEN, f"said nothing {where}")
    if "error" in direct and "error" in through:
        errors = str(direct["error"]), str(through["error"])
        if limit is not None and all(re.search(limit.error, error) for error in errors):
            return Cell(NO, limit.reason)
        return Cell(
            BROKEN, f"fails directly ({errors[0]}) and through ({errors[1]})"[:_SHOWN_CHARS]
        )
    if difference := find_difference(direct, through):
        return Cell(DIFFERS, difference)
    if "no" in direct:
        return Cell(NO, direct["no"]) if direct["no"] else Cell(BROKEN, "a no without a reason")
    if not direct.get("seen"):
        return Cell(BROKEN, "saw nothing")
    if wrong := wrong_record(step, direct["seen"]):
        return Cell(BROKEN, wrong)
    if limit is not None:
        return Cell(BROKEN, f"works, though it is said that it cannot: {limit.reason}")
    return Cell(EQUAL, "; ".join(scan_lacks(direct["seen"])))


def scan_lacks(seen: Any) -> list[str]:
    """The parts of a step that the client says it has not: texts that begin with "no: ", anywhere in what it saw."""
    if isinstance(seen, str):
        return [seen.removeprefix("no: ")] if seen.startswith("no: ") else []
    parts = seen.values() if isinstance(seen, dict) else seen if isinstance(seen, list) else ()
    return [lack for part in parts for lack in scan_lacks(part)]


def compare(
    steps: Sequence[str],
    direct: Mapping[str, Mapping[str, Any]],
    through: Mapping[str, Mapping[str, Any]],
    limits: Mapping[str, Limit],
) -> dict[str, Cell]:
    """Step -> verdict, for all steps that should have been run."""
    return {
        step: judge_step(step, direct.get(step), through.get(step), limits.get(step))
        for step in steps
    }
