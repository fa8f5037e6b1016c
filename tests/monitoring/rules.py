"""The chart's rules with short times, so that each alert fires and resolves within a test.

Owns the rewriting and Prometheus' configuration. Must not know what an alert is about. Invariants: only durations
change: `for`, and the ranges of ALL but `last_over_time`, which says how long a target is remembered; thresholds,
labels and texts stay.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm" / "forebay"
RULES_FILE = CHART / "rules" / "forebay.yaml"
WINDOW_S = 16
"""Of ranges below an hour. Scrapes are two seconds apart."""
LONG_WINDOW_S = 60
"""Of longer ones: they count what takes a while."""
_RANGE = re.compile(r"(?<!last_over_time)\(([^()\[\]]*)\[\d+([smhd])\]")


def read_rules() -> list[dict[str, Any]]:
    """All rules of the chart."""
    groups = yaml.safe_load(RULES_FILE.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def shorten(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule with a `for` of a second, where it has one, and with ranges of WINDOW_S or LONG_WINDOW_S."""

    def cut(found: re.Match[str]) -> str:
        return f"({found[1]}[{LONG_WINDOW_S if found[2] in 'hd' else WINDOW_S}s]"

    expression = _RANGE.sub(cut, rule["expr"])
    return {**rule, "expr": expression, **({"for": "1s"} if "for" in rule else {})}


def write_configuration(directory: Path) -> Path:
    """Prometheus' configuration, with the short rules and two jobs, `forebay` and `forebay-canary`, of which
    `write_targets` names the targets.
    """
    group = {"name": "forebay", "interval": "1s", "rules": [shorten(one) for one in read_rules()]}
    (directory / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}))
    jobs = [
        {
            "job_name": job,
            "file_sd_configs": [
                {"files": [str(directory / f"{job}.json")], "refresh_interval": "1s"}
            ],
        }
        for job in ("forebay", "forebay-canary")
    ]
    for job in jobs:
        write_targets(directory, str(job["job_name"]), [])
    configuration = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(directory / "rules.yml")],
        "scrape_configs": jobs,
    }
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(configuration))
    return path


def write_targets(directory: Path, job: str, addresses: list[str]) -> None:
    """Replace a job's targets; Prometheus reads the file when it changes."""
    fresh = directory / f"{job}.new"
    fresh.write_text(json.dumps([{"targets": addresses}]))
    fresh.replace(directory / f"{job}.json")
