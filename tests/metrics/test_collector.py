"""A scrape shows exactly the samples it was given, typed by the catalog."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metrics.access_log_schema import RESULT_REASONS
from metrics.catalog import CATALOG, GROUPS, METRIC_VALUES
from metrics.collector import Exposition, Sample, SampleCollector, UnknownSample
from metrics.histogram import Histogram


def scrape(*samples: Sample) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = Exposition(lambda: samples, strict=True).render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_metric_of_the_catalog_survives_the_way_through_the_text() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(0.5)
    values = {
        "mechanism": "PLAIN",
        "authentication": "refused",
        "purpose": "watch",
        "switch": "cache",
        "happening": "set",
        "mismatch": "port",
        "verdict": "equal",
        "way": "own",
        "bound": "bytes",
        "direction": "request",
        "limit": "named",
        "probe": "refused",
        "takeover": "broker",
        "upgrade": "done",
        "path": "through",
        "step": "produce",
        "side": "client",
        "file": "crl",
        "load": "loaded",
        "token_operation": "create",
        "token_failure": "limit",
        "result": "miss",
        "reason": "cold",
    }
    samples = [
        Sample(
            metric.name,
            METRIC_VALUES[metric.name][:1]
            if metric.name in METRIC_VALUES
            else tuple(values.get(label, "any") for label in metric.labels),
            histogram if metric.kind == "histogram" else number,
        )
        for number, metric in enumerate(CATALOG.values())
        if metric not in GROUPS["Operating system"]
    ]
    seen = scrape(*samples)
    for sample in samples:
        labels = frozenset(zip(CATALOG[sample.name].labels, sample.labels, strict=True))
        if isinstance(sample.value, Histogram):
            assert seen[f"{sample.name}_count", labels] == 1
            assert seen[f"{sample.name}_sum", labels] == 0.5
            assert seen[f"{sample.name}_bucket", labels | {("le", "0.1")}] == 0
            assert seen[f"{sample.name}_bucket", labels | {("le", "+Inf")}] == 1
        else:
            assert seen[sample.name, labels] == sample.value


def test_results_and_reasons_stand_beside_each_other_in_one_family() -> None:
    samples = [
        Sample("forebay_fetch_bytes_total", pair, 2**50 + n)
        for n, pair in enumerate(RESULT_REASONS)
    ]
    seen = scrape(*samples)
    for n, (result, reason) in enumerate(RESULT_REASONS):
        labels = frozenset({("result", result), ("reason", reason)})
        assert seen["forebay_fetch_bytes_total", labels] == 2**50 + n


@pytest.mark.parametrize(
    "sample",
    [
        Sample("forebay_no_such_thing", (), 1),
        Sample("forebay_ready", ("extra",), 1),
        Sample("forebay_fetch_bytes_total", ("hit",), 1),
        Sample("forebay_fetch_bytes_total", ("hit", "cold"), 1),
        Sample("forebay_upstream_fetch_bytes_total", ("curiosity",), 1),
        Sample("forebay_ready", (), Histogram((1.0,))),
        Sample("forebay_produce_seconds", (), 1),
    ],
)
def test_a_sample_against_the_catalog_raises_when_strict_and_is_left_out_otherwise(
    sample: Sample,
) -> None:
    with pytest.raises(UnknownSample):
        list(SampleCollector(lambda: [sample], strict=True).collect())
    lenient = SampleCollector(lambda: [sample, Sample("forebay_ready", (), 1)])
    assert [family.name for family in lenient.collect()] == ["forebay_ready"]
    assert lenient.left_out == 1


def test_the_process_itself_is_shown_too() -> None:
    assert b"process_resident_memory_bytes" in Exposition(lambda: ()).render()
