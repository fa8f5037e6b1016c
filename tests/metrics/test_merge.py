"""Several processes are shown as one: by the rule of each family, and without a counter that falls."""

import json
import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from metrics.access_log_schema import RESULT_REASONS
from metrics.catalog import CATALOG, LABEL_VALUES, METRIC_VALUES, Metric
from metrics.collector import Exposition, Sample
from metrics.histogram import Histogram
from metrics.merge import (
    BASELINE_LINE,
    COUNTERS_LINE,
    LARGEST_BYTES,
    REMEMBERED,
    VERSION,
    BadSamples,
    Group,
    SamplesTooLarge,
    merge_samples,
    pack_samples,
    unpack_samples,
)

BOUNDS = (0.001, 0.1, 2.5)
GAUGES = [metric for metric in CATALOG.values() if metric.kind == "gauge"]


def list_labels(metric: Metric) -> Iterator[tuple[str, ...]]:
    """Two or more values for each label of a metric, as far as it has them."""
    if metric.labels == ("result", "reason"):
        yield from RESULT_REASONS
    elif not metric.labels:
        yield ()
    else:
        for at in range(2):
            closed = METRIC_VALUES.get(metric.name)
            values = [closed or LABEL_VALUES.get(label, ("one", "two")) for label in metric.labels]
            yield tuple(each[at % len(each)] for each in values)


def build_samples(seed: int, boot: str = "") -> list[Sample]:
    """A sample of each series, of whole numbers, so that sums are exact."""
    chosen = random.Random(seed)
    found = []
    for metric in CATALOG.values():
        for labels in list_labels(metric):
            value: float | Histogram = chosen.randrange(1 << 40)
            if metric.kind == "histogram":
                value = Histogram(BOUNDS)
                value.add([chosen.randrange(1000) for _ in range(4)], chosen.randrange(1 << 30))
            if metric.name != "forebay_boot_info":
                found.append(Sample(metric.name, labels, value))
    return [*found, Sample("forebay_boot_info", (boot or f"boot{seed}",), 1)]


def by_series(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], float | Histogram]:
    listed = [((one.name, one.labels), one.value) for one in samples]
    assert len(dict(listed)) == len(listed), "one sample for each series"
    return dict(listed)


@pytest.mark.parametrize("metric", CATALOG.values(), ids=lambda metric: metric.name)
def test_every_family_has_a_rule_that_fits_its_kind(metric: Metric) -> None:
    if metric.kind == "gauge":
        assert metric.merge is not None, "a sum of gauges is no default"
    else:
        assert metric.rule in ("sum", "keeper")
    assert metric.kind != "histogram" or metric.rule == "sum"


def test_each_family_is_merged_by_its_rule() -> None:
    parts = [build_samples(seed) for seed in range(4)]
    merged = by_series(merge_samples(parts[0], parts[1:]))
    seen = [by_series(part) for part in parts]
    for name, labels in set().union(*seen):
        metric = CATALOG[name]
        values = [part[name, labels] for part in seen if (name, labels) in part]
        found = merged[name, labels]
        if isinstance(found, Histogram):
            given = [value for value in values if isinstance(value, Histogram)]
            assert found.counts == [
                sum(cell) for cell in zip(*(one.counts for one in given), strict=True)
            ]
            assert found.sum == sum(one.sum for one in given)
        elif metric.rule == "keeper":
            assert found == seen[0][name, labels]
        else:
            numbers = [value for value in values if not isinstance(value, Histogram)]
            due = {"sum": sum(numbers), "max": max(numbers), "min": min(numbers)}
            assert found == due[metric.rule], name
    boots = [labels for name, labels in merged if name == "forebay_boot_info"]
    assert sorted(boots) == [("boot0",), ("boot1",), ("boot2",), ("boot3",)]


def test_what_is_merged_is_left_as_it_was() -> None:
    keeper, worker = build_samples(0), build_samples(1)
    merge_samples(keeper, [worker, worker])
    assert list(map(shown, keeper)) == list(map(shown, build_samples(0)))
    assert list(map(shown, worker)) == list(map(shown, build_samples(1)))


def shown(sample: Sample) -> tuple[object, ...]:
    value = sample.value
    if isinstance(value, Histogram):
        return (*sample[:2], value.bounds, value.counts, value.sum)
    return tuple(sample)


def test_samples_survive_their_way_and_are_small() -> None:
    samples = build_samples(3)
    packed = pack_samples(samples, 12.5)
    found = unpack_samples(packed)
    assert found.age_s == 12.5
    assert list(map(shown, found.samples)) == list(map(shown, samples))
    assert len(packed) < 64 * 1024


def test_samples_have_a_bound_on_both_sides() -> None:
    name = "forebay_throttle_granted_total"
    few = [Sample(name, (f"disk{at}",), at) for at in range(1000)]
    assert len(unpack_samples(pack_samples(few, 1.0)).samples) == 1000
    with pytest.raises(SamplesTooLarge, match=f"{LARGEST_BYTES} at most"):
        pack_samples(few * 200, 1.0)
    with pytest.raises(BadSamples, match=f"{LARGEST_BYTES} at most"):
        unpack_samples(b" " * (LARGEST_BYTES + 1))


@pytest.mark.parametrize(
    "content",
    [
        [VERSION + 1, 1.0, []],
        [VERSION, 1.0],
        [VERSION, None, []],
        [VERSION, 1.0, [["forebay_ready", []]]],
        [VERSION, 1.0, [[1, [], 1]]],
        [VERSION, 1.0, [["forebay_ready", [1], 1]]],
        [VERSION, 1.0, [["forebay_ready", [], "1"]]],
        [VERSION, 1.0, [["forebay_ready", [], True]]],
        [VERSION, 1.0, [["forebay_produce_seconds", [], [[1.0], [1, 2, 3], 1.0]]]],
        [VERSION, 1.0, [["forebay_produce_seconds", [], [[2.0, 1.0], [1, 2, 3], 1.0]]]],
        [VERSION, 1.0, [["forebay_produce_seconds", [], [[], [1], 1.0]]]],
        {},
        7,
    ],
)
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises(BadSamples):
        unpack_samples(json.dumps(content).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_samples_or_refused(data: bytes) -> None:
    try:
        unpack_samples(data)
    except BadSamples:
        return
    assert json.loads(data)[0] == VERSION


def test_a_family_of_another_build_is_left_out() -> None:
    newer = [Sample("forebay_newer_total", (), 1), Sample("forebay_parked_fetches", (), 2)]
    other = Histogram((7.0,))
    other.observe(1.0)
    newer.append(Sample("forebay_produce_seconds", (), other))
    keeper = build_samples(0)
    merged = by_series(merge_samples(keeper, [newer]))
    before = by_series(keeper)
    assert ("forebay_newer_total", ()) not in merged
    parked = before["forebay_parked_fetches", ()]
    assert not isinstance(parked, Histogram)
    assert merged["forebay_parked_fetches", ()] == parked + 2
    former, found = before["forebay_produce_seconds", ()], merged["forebay_produce_seconds", ()]
    assert isinstance(found, Histogram) and isinstance(former, Histogram)
    assert found.counts == former.counts, "its bounds are others"


def test_the_merged_samples_are_an_exposition() -> None:
    merged = Group().merge(build_samples(0), 9.0, [pack_samples(build_samples(1), 1.0)])
    text = Exposition(lambda: merged, strict=True).render().decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {name.removesuffix("_total") for name in CATALOG} <= families


CONNECTIONS, ACTIVE = "forebay_connections_total", "forebay_active_connections"


class Worker:
    """A worker whose connections are counted."""

    def __init__(self, boot: str, age_s: float = 0.0) -> None:
        self.boot, self.age_s = boot, age_s
        self.connections = self.active = 0
        self.waits = Histogram(BOUNDS)

    def connect(self, times: int) -> None:
        self.connections += times
        self.active = times
        for _ in range(times):
            self.waits.observe(0.05)

    def pack(self) -> bytes:
        samples = [
            Sample("forebay_boot_info", (self.boot,), 1),
            Sample(CONNECTIONS, (), self.connections),
            Sample(ACTIVE, (), self.active),
            Sample("forebay_fetch_wait_seconds", (), self.waits),
        ]
        return pack_samples(samples, self.age_s)


def read(group: Group, *workers: Worker, age_s: float = 100.0) -> tuple[float, float, int]:
    """Connections, those open now, and observations."""
    found = by_series(group.merge([], age_s, [one.pack() for one in workers]))
    waits = found.get(("forebay_fetch_wait_seconds", ()), Histogram(BOUNDS))
    assert isinstance(waits, Histogram)
    counted, active = found.get((CONNECTIONS, ()), 0), found.get((ACTIVE, ()), 0)
    assert not isinstance(counted, Histogram) and not isinstance(active, Histogram)
    return counted, active, waits.count


def test_what_an_ended_worker_has_counted_stays() -> None:
    """A counter that falls would look like a restart of all: Prometheus would count what is left once more."""
    group, first, second = Group(), Worker("a"), Worker("b")
    first.connect(5)
    second.connect(7)
    assert read(group, first, second) == (12, 12, 12)
    assert read(group, second) == (12, 7, 12), "what is open ends with it"
    again = Worker("c")
    again.connect(2)
    assert read(group, second, again) == (14, 9, 14)


def test_a_worker_that_is_late_keeps_its_counters() -> None:
    group, late, other = Group(), Worker("a"), Worker("b")
    late.connect(5)
    assert read(group, late, other) == (5, 5, 5)
    late.connect(3)
    assert read(group, other) == (5, 0, 5)
    assert read(group, late, other) == (8, 3, 8)


def test_a_worker_older_than_its_keeper_counts_from_the_first_look() -> None:
    """With the keeper all counters begin again, so that its end looks like that of one process."""
    former, older = Group(), Worker("a", age_s=50.0)
    older.connect(1000)
    assert read(former, older, age_s=20.1) == (1000, 1000, 1000), "all start at once, more or less"
    group = Group()
    assert read(group, older, age_s=1.0) == (0, 1000, 0)
    older.connect(4)
    younger = Worker("b", age_s=0.5)
    younger.connect(2)
    assert read(group, older, younger, age_s=2.0) == (6, 6, 6)
    assert read(group, younger, age_s=3.0) == (6, 2, 6)


def test_ended_workers_are_remembered_within_a_bound() -> None:
    group = Group()
    for number in range(5 * REMEMBERED):
        worker = Worker(f"boot{number}")
        worker.connect(3)
        assert read(group, worker) == (3 * (number + 1), 3, 3 * (number + 1))
        assert len(group) <= REMEMBERED


def test_samples_that_cannot_be_read_are_counted_and_cost_no_others() -> None:
    group, worker = Group(), Worker("a")
    worker.connect(5)
    found = by_series(group.merge([], 9.0, [b"{}", worker.pack(), b""]))
    assert (found[CONNECTIONS, ()], group.refused) == (5, 2)
    assert len(GAUGES) > 20


class Logged(Worker):
    """One with an access log. `line`: number of the line with its counters, 0: none has them."""

    line = 0

    def pack(self) -> bytes:
        samples = [
            *unpack_samples(super().pack()).samples,
            Sample(COUNTERS_LINE, (self.boot,), self.line),
            Sample(BASELINE_LINE, (self.boot,), 0),
        ]
        return pack_samples(samples, self.age_s)


def lines_of(group: Group, *workers: Logged, age_s: float = 100.0) -> dict[str, tuple[float, ...]]:
    """By boot, the numbers of the lines with its counters and its baseline."""
    found = by_series(group.merge([], age_s, [one.pack() for one in workers]))
    numbers: dict[str, tuple[float, ...]] = {}
    for name in (COUNTERS_LINE, BASELINE_LINE):
        for (family, labels), value in found.items():
            if family == name:
                assert not isinstance(value, Histogram)
                numbers[labels[0]] = (*numbers.get(labels[0], ()), value)
    return numbers


def test_the_line_with_a_worker_s_counters_stays_as_long_as_they_do() -> None:
    group, first, second = Group(), Logged("a"), Logged("b")
    first.line, second.line = 3, 4
    assert lines_of(group, first, second) == {"a": (3, 0), "b": (4, 0)}
    second.line = 5
    assert lines_of(group, second) == {"a": (3, 0), "b": (5, 0)}
    for number in range(REMEMBERED):
        other = Logged(f"c{number}")
        other.line = 1
        lines_of(group, other)
    left = lines_of(group)
    assert left[""] == (0,), (
        "the counters of one are in the sum, and nobody knows its line any more"
    )
    assert "a" not in left and len(left) == REMEMBERED + 1


def test_the_line_of_what_is_left_out_is_shown() -> None:
    """A worker that has no such line just then is left out as a whole until it has."""
    group, older = Group(), Logged("a", age_s=50.0)
    older.connect(1000)
    assert lines_of(group, older, age_s=1.0) == {}
    older.line = 7
    older.connect(20)
    assert lines_of(group, older, age_s=1.5) == {"a": (7, 7)}
    older.line = 9
    older.connect(3)
    assert lines_of(group, older, age_s=2.0) == {"a": (9, 7)}
    assert read(group, older, age_s=2.0) == (3, 3, 3)
