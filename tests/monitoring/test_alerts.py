"""Every alert fires and resolves, and every panel shows something, in a real Prometheus.

It scrapes real Forebays under load while faults are made (faults.py). Ranges and `for` are shortened (rules.py);
nothing else of the rules is changed.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.monitoring.faults import CASES, LASTING, Case
from tests.monitoring.panels import Row, ask, draw, read_rows
from tests.monitoring.rules import WINDOW_S
from tests.monitoring.stage import Stage, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.long]
CALM_S = 8.0
BUSY = {
    "ForebayEventLoopLags",
    "ForebayLeaseLapses",
    "ForebayHitRatioLow",
    "ForebayCanarySlow",
    "ForebayCanaryFails",
    "ForebayDown",
    "ForebayWorkerStarves",
    "ForebayUpstreamSilent",
}
"""What a machine that others keep busy raises rightly."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("monitoring")) as running:
        yield running


def test_without_a_fault_no_alert_fires(stage: Stage) -> None:
    """But the one of a Forebay without rights, and those for want of a processor."""

    def list_others() -> list[str]:
        return [
            one["annotations"]["summary"]
            for one in stage.prometheus.list_alerts()
            if one["state"] == "firing" and one["labels"]["alertname"] not in {*LASTING, *BUSY}
        ]

    wait_until(lambda: stage.prometheus.list_firing() >= set(LASTING), "the lasting alert fires")
    wait_until(lambda: not list_others(), list_others)
    until = time.monotonic() + WINDOW_S + CALM_S
    while time.monotonic() < until:
        assert not list_others()
        time.sleep(1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.__name__)
def test_a_fault_raises_its_alerts_and_its_end_resolves_them(stage: Stage, case: Case) -> None:
    with case.fault(stage):
        instance = stage.canary if case.instance == "canary" else stage.instance(case.instance)
        for alert in case.alerts:
            wait_until(
                lambda alert=alert: stage.is_firing(alert, instance),  # type: ignore[misc]
                lambda alert=alert: f"{alert} fires; now: {stage.prometheus.list_firing()}",  # type: ignore[misc]
            )
            found = stage.find_alert(alert, instance)
            assert "pod" not in found["labels"]
            assert instance in found["annotations"]["summary"]
            assert "(pod" not in found["annotations"]["summary"]
    for alert in case.alerts:
        wait_until(
            lambda alert=alert: not stage.is_firing(alert, instance),  # type: ignore[misc]
            f"{alert} resolves",
        )


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row.title)
def test_every_panel_shows_something_of_the_run(stage: Stage, row: Row) -> None:
    """Each query is one that Prometheus understands, and gives a number at some time of the run. The pictures go to
    MONITORING_PICTURES.
    """
    end_s = time.time()
    series = []
    for panel in row.panels:
        found = [
            ask(stage.prometheus, target, stage.began_at, end_s) for target in panel["targets"]
        ]
        assert all(found), (panel["title"], [bool(one) for one in found])
        series.append([one for shown in found for one in shown])
    if pictures := os.environ.get("MONITORING_PICTURES"):
        directory = Path(pictures)
        directory.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", row.title.lower()).strip("-")
        draw(row, series, directory / f"{name}.png")
