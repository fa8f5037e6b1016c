"""What the lab hands over: a table and the bars in Markdown, the figures as JSON, one picture.

Owns the wording and the files in a run's folder. Must not know how a figure was measured. Invariant: the JSON
holds all that the page says, so that a page can be written again from it.
"""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.pollution.arms import ARMS, Sizes
from bench.pollution.plots import plot_run
from bench.pollution.verdict import (
    describe_stolen,
    find_harmless,
    find_invalid,
    is_disturbed,
    is_stolen,
    judge,
    judge_isolation,
    rate_at,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.pollution.sweep import Step

    Figures = Mapping[str, Any]

COLUMNS = (
    "arm",
    "produce p99, quiet",
    "polluted: p50",
    "p99",
    "end to end p99, quiet",
    "polluted",
    "acknowledged/s",
    "laggards MB/s",
    "disk MB/s",
    "util",
    "caught up s",
)
PICTURE = "pollution.png"
WORDS = {True: "held", False: "BROKEN", None: "not measured"}


def build_result(
    sizes: Sizes,
    arms: Sequence[Figures],
    steps: Sequence[Step],
    isolation: Sequence[Figures] = (),
    set_aside: Sequence[Figures] = (),
) -> dict[str, Any]:
    """Everything of a run, as it is written to result.json. `set_aside`: what was run again, since it was disturbed."""
    sweep = [(step.rate_mb_s, step.util) for step in steps]
    bars = [*judge(arms, sweep, sizes.target), *judge_isolation(isolation)]
    return {
        "sizes": sizes._asdict(),
        "sweep": [step._asdict() for step in steps],
        "target_rate_mb_s": rate_at(sweep, sizes.target) if sweep else None,
        "invalid": [*find_invalid(arms), *find_harmless(isolation)],
        "bars": [bar._asdict() for bar in bars],
        "arms": list(arms),
        "isolation": list(isolation),
        "set_aside": list(set_aside),
    }


def build_page(result: Mapping[str, Any]) -> str:
    """The report in Markdown: table (medians over rounds, times in ms), bars, what makes the run invalid."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"] if result["arms"] else []
    for name in ARMS:
        rows = [one for one in result["arms"] if one["arm"] == name]
        if rows:
            lines.append(f"| {' | '.join([name, *_cells(rows)])} |")
    measured = [*result["arms"], *result["isolation"]]
    lines += ["", *_isolation_lines(result["isolation"])]
    lines += [
        "",
        f"Rounds: {max(one['round'] for one in measured)}; medians over rounds, times in ms.",
        "",
    ]
    lines += [f"* **{WORDS[bar['held']]}**: {bar['name']}: {bar['said']}" for bar in result["bars"]]
    lines += [f"* **INVALID**: {reason}" for reason in result["invalid"]]
    unjudged = [one for one in measured if is_stolen(one) and not is_disturbed(one)]
    lines += [f"* disturbed, and no bar is about it: {describe_stolen(one)}" for one in unjudged]
    lines += [
        f"* set aside and run again: {describe_set_aside(one)}" for one in result["set_aside"]
    ]
    return "\n".join(lines) + "\n"


def describe_set_aside(one: Figures) -> str:
    """What was disturbed, and what it gave nevertheless."""
    keys = ("quiet", "polluted") if "quiet" in one else ("healthy_quiet_ms", "healthy_sick_ms")
    quiet, after = (one[key].get("produce_ms", one[key]).get("p99") for key in keys)
    return f"{describe_stolen(one)}; produce p99 {quiet} -> {after} ms"


def _isolation_lines(rounds: Sequence[Figures]) -> list[str]:
    if not rounds:
        return []
    columns = (
        "healthy p99, quiet",
        "beside a sick topic",
        "max",
        "sick topic p99",
        "heartbeats late",
        "longest",
    )
    lines = [f"| arm | {' | '.join(columns)} |", f"|{' --- |' * (len(columns) + 1)}"]
    keys: tuple[tuple[str, ...], ...] = (
        ("healthy_quiet_ms", "p99"),
        ("healthy_sick_ms", "p99"),
        ("healthy_sick_ms", "max"),
        ("crowd_sick_ms", "p99"),
        ("heartbeats_late",),
        ("heartbeat_max_ms",),
    )
    for name in dict.fromkeys(one["arm"] for one in rounds):
        rows = [one for one in rounds if one["arm"] == name]
        lines.append(f"| {' | '.join([name, *(_middle(rows, *key) for key in keys)])} |")
    return lines


def write_report(folder: Path, result: Mapping[str, Any], steps: Sequence[Step]) -> None:
    """result.json, README.md and, where an arm or the sweep was run, the picture into `folder`."""
    (folder / "result.json").write_text(json.dumps(result, separators=(",", ":")))
    page = build_page(result)
    if result["arms"] or steps:
        plot_run(result, steps, folder / PICTURE)
        page += f"\n![all arms: p99, sweep and courses]({PICTURE})\n"
    (folder / "README.md").write_text(page)


def _middle(rows: Sequence[Figures], *keys: str) -> str:
    """The median over rows of a nested figure; "-" where none has it."""
    found = []
    for row in rows:
        value: Any = row
        for key in keys:
            value = value.get(key) if value else None
        found += [value] if value is not None else []
    return f"{median(found):.4g}" if found else "-"


def _cells(rows: Sequence[Figures]) -> list[str]:
    keys = (
        ("quiet", "produce_ms", "p99"),
        ("polluted", "produce_ms", "p50"),
        ("polluted", "produce_ms", "p99"),
        ("quiet", "end_to_end_ms", "p99"),
        ("polluted", "end_to_end_ms", "p99"),
        ("polluted", "acknowledged_per_s"),
        ("laggards_mb_s",),
        ("disk_polluted", "read_mb_s"),
        ("disk_polluted", "util"),
        ("pause", "caught_up_s"),
    )
    return [_middle(rows, *key) for key in keys]
