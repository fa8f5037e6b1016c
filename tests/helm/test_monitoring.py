"""Alerts and dashboard ask only for metrics, labels and values that Forebay has, in PromQL that parses.

Every expression is parsed by promql-parser. Every alert has its paragraph in docs/operations.md, its scenario in
rules_test.yaml and its metrics on the dashboard. Where promtool is installed (Debian: prometheus), it checks the rules,
too, and plays the scenarios.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import promql_parser as promql
import pytest
import yaml

from metrics.access_log_schema import RESULTS
from metrics.catalog import CATALOG, GROUPS, LABEL_VALUES
from tests.helm.chart import (
    CHART,
    HELM,
    Object,
    read_values,
    render,
    render_scenario,
    render_sidecar,
)
from tests.kit.prometheus import find_program

RULES_FILE = CHART / "rules" / "forebay.yaml"
RULES: list[Object] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: Object = json.loads((CHART / "dashboards" / "forebay.json").read_text())
ROWS: list[Object] = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
ALL: list[Object] = [
    one for panel in DASHBOARD["panels"] for one in (panel, *panel.get("panels", ()))
]
"""Rows and panels, those in collapsed rows included."""
PANELS: list[Object] = [panel for panel in ALL if panel["type"] != "row"]
OPERATIONS = HELM.parent / "docs" / "operations.md"
PAGE = "https://github.com/forebay/forebay/blob/main/docs/operations.md"
SCENARIOS_FILE = Path(__file__).with_name("rules_test.yaml")
WATCHED = {metric.name for group in ("Throttle", "Isolation") for metric in GROUPS[group]} | {
    name
    for name in CATALOG
    if name.startswith(("forebay_verify_", "forebay_fetch_would_hit_", "forebay_authorization_"))
}
NOT_SHOWN = {
    "forebay_throttle_cancelled_total": "a client that gave up: says nothing of the disk",
    "forebay_throttle_limit_probes_total": "three seconds now and then: the limit is what they find",
    "forebay_throttle_disk_limit_requests_per_second": "of the configuration: the load has its share",
    "forebay_isolation_cancelled_total": "a client that gave up: says nothing of the queue",
}
"""Of the watched families, with the reason why no panel shows them."""
TARGET_LABELS = {"namespace", "pod", "job", "instance"}  # what Prometheus adds to every series
PROMTOOL = find_program("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here (make monitoring); promql-parser has read the rules"
)


def dashboard_expressions() -> list[tuple[str, str]]:
    """(panel, PromQL) with Grafana's variables filled in."""
    return [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in RULES] + dashboard_expressions()


def parse(expression: str) -> Any:
    """The tree of an expression. ValueError where it is none."""
    filled = (
        expression.replace("$__rate_interval", "5m")
        .replace("$namespace", ".*")
        .replace("$pod", ".*")
        .replace("$instance", ".*")
    )
    return promql.parse(filled)


def walk(node: Any) -> Iterator[Any]:
    """All nodes of a tree."""
    yield node
    for attribute in ("expr", "lhs", "rhs", "param", "vector_selector"):
        inner = getattr(node, attribute, None)
        if inner is not None:
            yield from walk(inner)
    for argument in getattr(node, "args", None) or ():
        yield from walk(argument)


def list_families(expression: str) -> set[str]:
    """The metrics of the catalog that an expression asks for."""
    names = {
        str(node.name)
        for node in walk(parse(expression))
        if isinstance(node, promql.VectorSelector)
    }
    return {
        name if name in CATALOG else re.sub(r"_(bucket|sum|count)$", "", name) for name in names
    } - {"up", "ALERTS"}


def find_faults(expression: str) -> list[str]:
    """What an expression asks for that Forebay does not have."""
    faults = []
    selectors = [
        node for node in walk(parse(expression)) if isinstance(node, promql.VectorSelector)
    ]
    for selector in selectors:
        if selector.name in ("up", "ALERTS"):
            continue
        name = str(selector.name)
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = CATALOG.get(name) or CATALOG.get(base)
        if metric is None or (metric.kind == "histogram") == (metric.name == name):
            faults.append(f"no metric {selector.name}")
            continue
        for matcher in selector.matchers.matchers:
            known = (
                TARGET_LABELS | {*metric.labels} | ({"le"} if metric.kind == "histogram" else set())
            )
            if matcher.name not in known:
                faults.append(f"{selector.name} has no label {matcher.name}")
            elif (
                matcher.name in VALUES and not set(matcher.value.split("|")) <= VALUES[matcher.name]
            ):
                faults.append(f"{selector.name}: no {matcher.name} {matcher.value}")
    return faults if selectors else ["asks for nothing"]


VALUES: dict[str, set[str]] = {
    "result": set(RESULTS),
    "reason": {reason for reasons in RESULTS.values() for reason in reasons} | {"capacity"},
} | {label: set(values) for label, values in LABEL_VALUES.items()}


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=lambda value: value[:40])
def test_asks_for_what_there_is(name: str, expression: str) -> None:
    assert find_faults(expression) == [], name


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(forebay_fetch_hits_total[5m])", "no metric forebay_fetch_hits_total"),
        ("forebay_produce_seconds > 1", "no metric forebay_produce_seconds"),
        ('forebay_fetch_bytes_total{topic="a"}', "forebay_fetch_bytes_total has no label topic"),
        (
            'sum(forebay_fetch_bytes_total{result=~"hit|mis"})',
            "forebay_fetch_bytes_total: no result hit|mis",
        ),
        ("forebay_ready == 0 and on (pod) forebay_gone", "no metric forebay_gone"),
        ("vector(1)", "asks for nothing"),
    ],
)
def test_the_check_finds_faults(expression: str, fault: str) -> None:
    assert find_faults(expression) == [fault]


def test_what_is_no_promql_is_refused() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        parse("sum(rate(forebay_ready[5m])")


def test_alerts_tell_who_and_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) and all(name.startswith("Forebay") for name in names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"]) > 80
        texts = " ".join(rule["annotations"].values())
        used = set(re.findall(r"\$labels\.(\w+)", texts))
        labels = {label for node in walk(parse(rule["expr"])) for label in _labels_of(node)}
        assert used <= TARGET_LABELS | labels, rule["alert"]


def _labels_of(node: Any) -> tuple[str, ...]:
    metric = CATALOG.get(str(node.name)) if isinstance(node, promql.VectorSelector) else None
    return metric.labels if metric else ()


def test_every_alert_has_its_paragraph_and_no_other_alert_has_one() -> None:
    """Anchors as GitHub makes them of headings: lower case, blanks to hyphens, no other signs."""
    text = OPERATIONS.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == PAGE and anchor in anchors, rule["alert"]
        assert anchor == rule["alert"].lower()
    assert {heading for heading in headings if heading.startswith("Forebay")} == {
        rule["alert"] for rule in RULES
    }


def test_every_alert_is_played() -> None:
    """In rules_test.yaml: somewhere it fires."""
    played: set[str] = set()
    for scenario in yaml.safe_load(SCENARIOS_FILE.read_text())["tests"]:
        for check in scenario.get("alert_rule_test", ()):
            played |= {check["alertname"]} if check["exp_alerts"] else set()
        for check in scenario.get("promql_expr_test", ()):
            for sample in check["exp_samples"]:
                found = re.findall(r'alertname="(\w+)"', check["expr"] + sample.get("labels", ""))
                played |= set(found) if sample["value"] else set()
    assert played == {rule["alert"] for rule in RULES}


def test_what_is_watched_is_on_a_panel_or_it_is_said_why_not() -> None:
    shown = {
        name for _, expression in dashboard_expressions() for name in list_families(expression)
    }
    assert WATCHED - shown == set(NOT_SHOWN)
    alerted = {name for rule in RULES for name in list_families(rule["expr"])}
    assert alerted <= shown, "an alert leads to a panel"


def test_the_rule_object_is_the_file_with_labels_added_and_alerts_left_out() -> None:
    (group,) = render_scenario("three-brokers").one("PrometheusRule")["spec"]["groups"]
    wanted = [
        {**rule, "labels": {**rule["labels"], "team": "kafka"}}
        for rule in RULES
        if rule["alert"] != "ForebayHitRatioLow"
    ]
    assert group["rules"] == wanted
    (group,) = render_scenario("own-statefulset").one("PrometheusRule")["spec"]["groups"]
    assert group["rules"] == RULES


def test_an_alert_that_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(helm_python.HelmError, match="ForebayHitRatioLov"):
        render({"alerts": {"enabled": True, "disabled": ["ForebayHitRatioLov"]}})


def test_the_dashboard_arrives_where_grafana_looks() -> None:
    item = render_scenario("three-brokers").one("ConfigMap", "events-dashboard")
    shown = json.loads(item["data"]["forebay.json"])
    titles = {row["title"] for row in ROWS} - {row["title"] for row in list_rows(shown)}
    kept = [panel for panel in DASHBOARD["panels"] if panel["title"] not in titles]
    assert shown == {**DASHBOARD, "panels": kept}
    assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert item["metadata"]["annotations"] == {"grafana_folder": "Kafka"}


def list_rows(dashboard: Object) -> list[Object]:
    """The rows of a dashboard."""
    return [panel for panel in dashboard["panels"] if panel["type"] == "row"]


ALWAYS = {
    "At a glance",
    "Fetch",
    "Block cache",
    "Replica fetcher and connections",
    "Requests and errors",
    "Process",
    "Verifier and rights",
    "Canary: through Forebay and past it",
}


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ({}, {"Isolation"}),
        ({"isolation": {"enabled": False}}, set()),
        ({"throttle": {"disks": [{"device": "sdb"}]}}, {"Isolation", "Disk throttle"}),
        ({"throttle": {"enabled": False, "disks": [{"device": "sdb"}]}}, {"Isolation"}),
        ({"cache": {"mode": "observe"}}, {"Isolation", "Observing"}),
        ({"workers": 1}, {"Isolation"}),
        ({"workers": 2}, {"Isolation", "Several workers"}),
        ({"workers": "auto"}, {"Isolation", "Several workers"}),
        (
            {"accessLog": {"directory": "/var/log/forebay"}, "admin": {"tls": {"keyFile": "k"}}},
            {"Isolation", "Access log", "TLS"},
        ),
        (
            {"listeners": [{"useDelegationTokens": True, "tls": {"keyFile": "k"}}]},
            {"Isolation", "Signing in for clients", "TLS"},
        ),
        (
            {
                "listeners": [
                    {"catchUpUpstream": "127.0.0.1:19095"},
                    {"passThrough": True, "upstreamTls": {"enabled": True}},
                ]
            },
            {"Isolation", "Second listener", "Pass-through", "TLS"},
        ),
    ],
    ids=range(11),
)
def test_rows_appear_only_for_features_that_are_on(config: Object, rows: set[str]) -> None:
    """By the template alone: the whole chart would refuse most of these short configurations."""
    template = (CHART / "templates" / "dashboard.yaml").read_text()
    with tempfile.TemporaryDirectory() as directory:
        chart = Path(directory) / "forebay"
        shutil.copytree(CHART, chart)
        for path in (chart / "templates").rglob("*.yaml"):
            path.unlink()
        (chart / "templates" / "NOTES.txt").unlink()
        (chart / "values.schema.json").unlink()
        (chart / "templates" / "dashboard.yaml").write_text(template)
        defaults = yaml.safe_load((chart / "values.yaml").read_text())
        values = {
            **defaults,
            "config": config,
            "dashboards": {**defaults["dashboards"], "enabled": True},
        }
        (chart / "values.yaml").write_text(yaml.safe_dump(values))
        item = render({}, chart).one("ConfigMap")
    assert {row["title"] for row in list_rows(json.loads(item["data"]["forebay.json"]))} == (
        ALWAYS | rows
    )


def test_rows_of_features_that_may_be_off_are_collapsed() -> None:
    collapsed = {row["title"] for row in ROWS if row["collapsed"]}
    assert collapsed == {row["title"] for row in ROWS} - ALWAYS | {
        "Canary: through Forebay and past it"
    }
    for row in ROWS:
        assert bool(row["panels"]) == row["collapsed"]


def test_machines_without_pods_are_told_apart() -> None:
    """Labels that a target of a plain machine has not, `namespace` and `pod`, are nowhere alone."""
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "namespace", "pod", "instance"]
    for _, expression in EXPRESSIONS:
        for by in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
            labels = by.split(", ")
            assert "pod" not in labels or "instance" in labels, expression
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["expr"].count("$instance") == target["expr"].count("$pod")
            legend = target["legendFormat"]
            assert ("{{pod}}" in legend) == ("{{instance}}" in legend)


def test_a_healthy_panel_says_none() -> None:
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]


def test_panels_are_apart_and_explain_themselves() -> None:
    assert len({panel["id"] for panel in ALL}) == len(ALL)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & covered and place["x"] + place["w"] <= 24, panel["title"]
        cells |= covered
    for panel in PANELS:
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_service_monitor_finds_the_admin_service() -> None:
    for scenario in ("three-brokers", "own-statefulset"):
        rendered = render_scenario(scenario)
        spec = rendered.one("ServiceMonitor")["spec"]
        wanted = spec["selector"]["matchLabels"].items()
        (service,) = [
            item
            for item in rendered.of_kind("Service")
            if wanted <= item["metadata"]["labels"].items()
        ]
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert [port["name"] for port in service["spec"]["ports"]] == [spec["endpoints"][0]["port"]]


@needs_promtool
def test_promtool_accepts_the_rules_and_the_alerts_fire_when_they_should() -> None:
    for command in (["check", "rules", str(RULES_FILE)], ["test", "rules", str(SCENARIOS_FILE)]):
        done = subprocess.run(
            [str(PROMTOOL), *command], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_scrapes_and_probes_follow_the_admin_servers_tls() -> None:
    for scenario, scheme in (("tls", "https"), ("three-brokers", "http")):
        (endpoint,) = render_scenario(scenario).one("ServiceMonitor")["spec"]["endpoints"]
        assert endpoint["scheme"] == scheme
        assert ("tlsConfig" in endpoint) is (scheme == "https")
        sidecar = render_sidecar(read_values(scenario)).container
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert sidecar[probe]["httpGet"]["scheme"] == scheme.upper()
