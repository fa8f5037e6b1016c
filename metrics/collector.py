"""From plain values to a scrape's text.

Owns the translation of samples into Prometheus families. Knows the catalog, not where a value comes from: the
scrape pulls `sources`, called once per scrape on the scraper's own thread. Invariants: every family of the
catalog that has samples appears once, with the catalog's type and help; a sample that the catalog does not
know is left out and counted, or raises if the collector is strict (tests).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from metrics.access_log_schema import RESULT_REASONS
from metrics.catalog import CATALOG, LABEL_VALUES, METRIC_VALUES, Metric
from metrics.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Sample(NamedTuple):
    """A value of a metric of the catalog; `labels` are the values in the catalog's order."""

    name: str
    labels: tuple[str, ...]
    value: float | Histogram


Sources = Callable[[], Iterable[Sample]]


class UnknownSample(LookupError):
    """A sample that does not fit the catalog: the caller's mistake."""


class SampleCollector(Collector):
    """A prometheus_client collector over `sources`."""

    def __init__(self, sources: Sources, *, strict: bool = False) -> None:
        self._sources = sources
        self._strict = strict
        self.left_out = 0

    def describe(self) -> Iterable[_Family]:
        """Nothing: registering must not scrape."""
        return ()

    def collect(self) -> Iterable[_Family]:
        """Every family that has samples. UnknownSample, when strict: a sample against the catalog."""
        families: dict[str, _Family] = {}
        for sample in self._sources():
            try:
                metric = _metric_of(sample)
            except UnknownSample:
                if self._strict:
                    raise
                self.left_out += 1
                continue
            family = families.get(metric.name)
            if family is None:
                family = families[metric.name] = _new_family(metric)
            _add(family, sample)
        return families.values()


class Exposition:
    """What `/metrics` answers: the samples of `sources` and the process's own (CPU, memory, descriptors)."""

    def __init__(self, sources: Sources, *, strict: bool = False) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SampleCollector(sources, strict=strict))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """The text in Prometheus' format, to be served as CONTENT_TYPE."""
        return generate_latest(self._registry)


def _metric_of(sample: Sample) -> Metric:
    metric = CATALOG.get(sample.name)
    if metric is None:
        raise UnknownSample(f"{sample.name} is not in metrics/catalog.py")
    if len(sample.labels) != len(metric.labels):
        raise UnknownSample(f"{sample.name} has labels {metric.labels}, got {sample.labels}")
    for label, value in zip(metric.labels, sample.labels, strict=True):
        values = METRIC_VALUES.get(metric.name) or LABEL_VALUES.get(label, (value,))
        if value not in values:
            raise UnknownSample(f"{sample.name}: {label}={value!r} is not one of {values}")
    if metric.labels == ("result", "reason") and sample.labels not in RESULT_REASONS:
        raise UnknownSample(
            f"{sample.name}: {sample.labels} is not in metrics/access_log_schema.py"
        )
    if isinstance(sample.value, Histogram) != (metric.kind == "histogram"):
        raise UnknownSample(f"{sample.name} is a {metric.kind}, got {sample.value!r}")
    return metric


def _new_family(metric: Metric) -> _Family:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: _Family, sample: Sample) -> None:
    value = sample.value
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        family.add_metric(sample.labels, buckets=list(value.cumulative()), sum_value=value.sum)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(sample.labels, value)
