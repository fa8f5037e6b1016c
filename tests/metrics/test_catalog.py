"""The catalog holds to Prometheus' rules, and the documentation is what it says."""

import re

import pytest

from metrics.access_log_schema import LINE_TYPES, REASON_MEANING, RESULT_REASONS
from metrics.catalog import (
    BOUNDED_LABELS,
    CATALOG,
    GROUPS,
    LABEL_VALUES,
    METRIC_VALUES,
    Metric,
)
from proxy.config.keys import KEYS, path_text


def test_every_metric_is_named_once() -> None:
    names = [metric.name for group in GROUPS.values() for metric in group]
    assert len(names) == len(set(names)) == len(CATALOG)


@pytest.mark.parametrize("metric", CATALOG.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"(forebay|process)(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.kind != "histogram" or metric.name.endswith("_seconds")
    assert metric.help and not metric.help.endswith(".")
    assert not {"topic", "client", "client_id", "partition", "offset"} & set(metric.labels)


def test_no_label_is_without_a_bound() -> None:
    """Its values are listed, for the label or for the metric, or it is said what bounds them."""
    closed = LABEL_VALUES.keys() | {"result"}
    for metric in CATALOG.values():
        if metric.name in METRIC_VALUES:
            assert len(metric.labels) == 1
            continue
        if metric.labels == ("result", "reason"):
            continue  # metrics.access_log_schema.RESULT_REASONS
        assert set(metric.labels) <= closed | BOUNDED_LABELS.keys(), metric.name
    used = {label for metric in CATALOG.values() for label in metric.labels}
    assert LABEL_VALUES.keys() | BOUNDED_LABELS.keys() <= used
    assert METRIC_VALUES.keys() <= CATALOG.keys()


def test_a_word_is_spelled_one_way() -> None:
    """As asyncio spells it: `cancelled`."""
    spelled = {word for name in CATALOG for word in re.findall(r"cancell?ed", name)}
    assert spelled == {"cancelled"}


def test_every_reason_has_a_meaning_and_no_other() -> None:
    assert tuple(REASON_MEANING) == RESULT_REASONS


def test_a_reason_names_settings_that_exist() -> None:
    keys = {path_text(key.pattern) for key in KEYS}
    for meaning in REASON_MEANING.values():
        named = {word for word in re.findall(r"`([^`]+)`", meaning) if "." in word}
        assert named <= keys
    disabled = REASON_MEANING["pass", "disabled"]
    assert "`cache.mode`" in disabled and "`listeners[].allowSharedIdentity`" in disabled
    assert "`cache.topicModes[].mode`" in disabled and "`listeners[].cacheMode`" in disabled


def test_every_line_type_opens_with_version_and_type() -> None:
    for fields in LINE_TYPES.values():
        names = [field.name for field in fields]
        assert names[:5] == ["v", "type", "boot", "ts", "section"]
        assert len(names) == len(set(names))


def test_fields_of_one_name_have_one_type() -> None:
    types: dict[str, str] = {}
    for fields in LINE_TYPES.values():
        for field in fields:
            assert types.setdefault(field.name, field.json_type) == field.json_type
