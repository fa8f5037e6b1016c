"""Each alert has a fault that causes it, or a reason why not; for them only durations of the rules are changed."""

from __future__ import annotations

from tests.monitoring.faults import CASES, LASTING, NOT_CAUSED
from tests.monitoring.rules import read_rules, shorten


def test_every_alert_has_a_fault_or_a_reason_why_not() -> None:
    caused = {alert for case in CASES for alert in case.alerts} | set(LASTING)
    names = {rule["alert"] for rule in read_rules()}
    assert not caused & NOT_CAUSED.keys()
    assert caused | NOT_CAUSED.keys() == names


def test_only_durations_are_changed() -> None:
    for rule in read_rules():
        short = shorten(rule)
        assert {**short, "expr": "", "for": ""} == {**rule, "expr": "", "for": ""}
        assert ("for" in short) == ("for" in rule)
    by_name = {rule["alert"]: rule["expr"] for rule in map(shorten, read_rules())}
    assert "forebay_build_info[1h]" in by_name["ForebayDown"]
    assert "lapses_total[16s]" in by_name["ForebayLeaseLapses"]
