"""docs/metrics.md: every metric, result, reason and field of the access log, written from the code.

Owns the page's text. `python -m metrics.catalog_docs` writes it, `--check` exits 1 if it is stale. Must not know
where a value comes from.
"""

import sys
from pathlib import Path
from typing import Final

from metrics.access_log import AnswerValues, ResponseLine, format_response
from metrics.access_log_schema import (
    EMPTY_INTERVAL_MS,
    LINE_TYPES,
    READ_VERSIONS,
    REASON_MEANING,
    RESPONSE_BYTES,
    RESPONSE_PARTITIONS,
    SCHEMA_VERSION,
    Field,
)
from metrics.catalog import BOUNDED_LABELS, GROUPS, LABEL_VALUES, METRIC_VALUES

DOCS_PATH: Final = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"


def build_docs() -> str:
    """The text of docs/metrics.md."""
    return "\n".join(
        [
            "# Metrics and access log",
            "",
            "Written by `python -m metrics.catalog_docs`: change `metrics/catalog.py` or"
            " `metrics/access_log_schema.py` instead.",
            "",
            *_metric_lines(),
            *_reason_lines(),
            *_field_lines(),
        ]
    )


def _metric_lines() -> list[str]:
    lines = [
        "No metric is labelled by client, topic or offset; the access log has those.",
        "",
        "With several workers the keeper shows one value for each series. `merge` says how it comes about: the"
        " `sum`, the greatest (`max`) or least (`min`) of keeper and workers, the `keeper`'s own.",
    ]
    for group, metrics in GROUPS.items():
        lines += [
            "",
            f"## {group}",
            "",
            "| metric | type | labels | merge | meaning |",
            "| --- | --- | --- | --- | --- |",
        ]
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(
                f"| `{metric.name}` | {metric.kind} | {labels} | {metric.rule} | {metric.help} |"
            )
    closed = [
        f"* `{label}`: {', '.join(_shown(value) for value in values)}"
        for label, values in LABEL_VALUES.items()
    ]
    own = [
        f"* of `{name}`: {', '.join(_shown(value) for value in values)}"
        for name, values in METRIC_VALUES.items()
    ]
    bounded = [f"* `{label}`: {bound}" for label, bound in BOUNDED_LABELS.items()]
    return [*lines, "", "## Values of labels", "", *closed, *own, *bounded, ""]


def _reason_lines() -> list[str]:
    lines = ["## Results and reasons", "", "| result | reason | meaning |", "| --- | --- | --- |"]
    for (result, reason), meaning in REASON_MEANING.items():
        lines.append(f"| {result} | {_shown(reason)} | {meaning} |")
    return [*lines, ""]


def _build_example() -> str:
    """A line of three partitions, by the writer."""
    orders, clicks = ("orders", bytes(range(16))), ("clicks", bytes(range(16, 32)))
    answers: list[AnswerValues] = [
        (*orders, "hit", "", 0, 4711, 980, 4712, 980, 1764100000101, None, None),
        (*orders, "hit", "", 3, 4020, 2940, 4023, 3920, 1764100000097, None, None),
        (*clicks, "miss", "evicted", 1, 17, 65536, 90112, None, 1764099000000, 25310, None),
    ]
    client = "main", 7, "billing-1", "billing", 17, 0
    line = ResponseLine(1764100000123, *client, 12.041, 12.207, 90210, answers)
    return format_response("5f0c", 4, line).strip()


def _field_lines() -> list[str]:
    lines = [
        f"## Access log, version {SCHEMA_VERSION}",
        "",
        "One JSON object a line; files `access-<time>-<boot>-<sequence>.jsonl`, with `.gz` once finished.",
        "",
        "| partition in the response to a Fetch | in the log |",
        "| --- | --- |",
        "| with records, or its read was delayed | in the `response` line of its response |",
        "| without records | counted in an `empty` line of its connection, topic, result and reason, once"
        f" in {EMPTY_INTERVAL_MS // 1000} s |",
        "| of a Fetch that Forebay does not decode | a `response` line with one partition for the whole Fetch |",
        "",
        f"`forebay audit` reads versions {READ_VERSIONS[0]} to {READ_VERSIONS[-1]}, also in one"
        " directory. Up to version 3 each partition of a `response` line has a `fetch` line instead. In version 1 every"
        " partition that a response names has one, and there is no `empty`."
        " Fields marked (3) or (5) exist from that version on, `counters` lines from version 3 on.",
        "",
        f"A `response` line names at most {RESPONSE_PARTITIONS} partitions and has at most {RESPONSE_BYTES // 1000} KB:"
        " a response with more has several lines. This one names three partitions of two topics:",
        "",
        "```json",
        _build_example(),
        "```",
        "",
        "`jq -c 'select(.type==\"response\") | .answers[] | .topic as $t | .partitions[] | [$t, .[]]'` prints a line"
        " for each partition.",
        "",
    ]
    tables = {f"`{line_type}`": fields for line_type, fields in LINE_TYPES.items()}
    waiting = [field for fields in LINE_TYPES.values() for field in fields if field.elements]
    while waiting:
        field = waiting.pop(0)
        kind = "An array" if field.are_rows else "An element"
        tables[f"{kind} of `{field.name}`"] = field.elements
        waiting = [one for one in field.elements if one.elements] + waiting
    for title, fields in tables.items():
        lines += [
            f"### {title}",
            "",
            "| field | type | unit | meaning |",
            "| --- | --- | --- | --- |",
            *(_field_line(field) for field in fields),
            "",
        ]
    return lines


def _field_line(field: Field) -> str:
    json_type = field.json_type + (" or null" if field.nullable else "")
    since = "" if field.since == 1 else f" ({field.since})"
    return f"| `{field.name}` | {json_type} | {field.unit} | {field.meaning}{since} |"


def _shown(value: str) -> str:
    return f"`{value}`" if value else "(empty)"


def main(argv: list[str]) -> int:
    """Write docs/metrics.md, or with --check compare it. Returns the exit code."""
    text = build_docs()
    if argv != ["--check"]:
        DOCS_PATH.write_text(text, encoding="utf-8")
        return 0
    if DOCS_PATH.exists() and DOCS_PATH.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/metrics.md is stale: run python -m metrics.catalog_docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
