"""The dashboard's panels from a real Prometheus: their queries, and pictures of what they give.

Owns the variables' values and the drawing. Must not know what a panel is about. Grafana itself is not run: a picture
shows each query's series, unit and legend, not Grafana's layout.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kit.prometheus import PrometheusServer

DASHBOARD = Path(__file__).parents[2] / "helm" / "forebay" / "dashboards" / "forebay.json"
VARIABLES = {"$namespace": ".*", "$pod": ".*", "$instance": ".*", "$__rate_interval": "16s"}
STEP_S = 4.0
COLUMNS = 3
MOST_SERIES = 12
"""Of a picture; Grafana shows all."""


class Row(NamedTuple):
    """A row's title and its panels."""

    title: str
    panels: list[dict[str, Any]]


class Shown(NamedTuple):
    """One series of a panel: its legend, Unix times and values."""

    legend: str
    points: list[tuple[float, float]]


def read_rows() -> list[Row]:
    """All rows, collapsed ones included."""
    rows: list[Row] = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] == "row":
            rows.append(Row(panel["title"], list(panel.get("panels", ()))))
        else:
            rows[-1].panels.append(panel)
    return rows


def fill_in(expression: str) -> str:
    """A query with Grafana's variables filled in."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def ask(
    prometheus: PrometheusServer, target: dict[str, str], start_s: float, end_s: float
) -> list[Shown]:
    """The series of one query; those without any number are left out."""
    found = prometheus.query_range(fill_in(target["expr"]), start_s, end_s, STEP_S)
    shown = []
    for labels, points in found:
        kept = [(at, value) for at, value in points if not math.isnan(value)]
        if kept:
            shown.append(Shown(write_legend(target["legendFormat"], labels), kept))
    return shown


def write_legend(legend: str, labels: dict[str, str]) -> str:
    """A legend with labels in place of {{name}}."""
    return re.sub(r"\{\{(\w+)\}\}", lambda one: labels.get(one[1], ""), legend).strip()


def draw(row: Row, series: Sequence[Sequence[Shown]], path: Path) -> None:
    """A picture of a row. `series`: of each of its panels."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    lines = -(-len(row.panels) // COLUMNS)
    figure, axes = plt.subplots(lines, COLUMNS, figsize=(15, 3.1 * lines), squeeze=False)
    for place, (panel, shown) in enumerate(zip(row.panels, series, strict=True)):
        axis = axes[place // COLUMNS][place % COLUMNS]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        axis.set_title(f"{panel['title']}, {unit}", fontsize=9, loc="left")
        begun = min((one.points[0][0] for one in shown), default=0.0)
        for one in shown[:MOST_SERIES]:
            times = [(at - begun) / 60 for at, _ in one.points]
            axis.plot(times, [value for _, value in one.points], label=one.legend[:34], lw=0.9)
        if not shown:
            axis.text(0.5, 0.5, panel["fieldConfig"]["defaults"]["noValue"], ha="center")
        elif any(one.legend for one in shown):
            axis.legend(fontsize=5, loc="upper left", ncols=2)
        axis.tick_params(labelsize=6)
    for place in range(len(row.panels), lines * COLUMNS):
        axes[place // COLUMNS][place % COLUMNS].set_visible(False)
    figure.suptitle(f"{row.title} (minutes of a run with faults)", fontsize=11, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    plt.close(figure)
