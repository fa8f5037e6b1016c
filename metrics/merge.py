"""Samples of several processes as one process's: the keeper's and those of its workers.

Owns the rules' meaning (metrics/catalog.py has each family's), and the form in which a process sends its samples. Must
not know sockets or clocks: ages are arguments. Invariants:
* a counter never falls but when the keeper is another one: what a worker had counted stays when it ends, and a worker
  that is older than the keeper counts from the keeper's first look at it. A keeper's end thus looks like any restart,
  but for one in the first START_S seconds of the workers.
* what comes from another process is data alone: bounded, of this version, or refused.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from metrics.catalog import CATALOG
from metrics.collector import Sample
from metrics.histogram import Histogram

VERSION: Final = 1
LARGEST_BYTES: Final = 4 << 20
"""Of one process's samples: some 50 KB, and 100 bytes for each further series, as of disks and listeners."""
REMEMBERED: Final = 64
"""Workers that ended whose counters are kept apart; those of earlier ones are summed up."""
START_S: Final = 30.0
"""A worker that is older than the keeper by less was started with it: all that it has counted is shown."""
_BOOT: Final = "forebay_boot_info"
COUNTERS_LINE: Final = "forebay_access_log_counters_line"
BASELINE_LINE: Final = "forebay_access_log_baseline_line"
"""Of a worker they are shown for as long as its counters are: they say where its access log has these."""

SeriesKey = tuple[str, tuple[str, ...]]
"""Name and values of labels."""
Value = float | Histogram


class SamplesTooLarge(ValueError):
    """A process has more series than it may send."""


class BadSamples(ValueError):
    """Bytes that `pack_samples` of this version has not made."""


class PackedSamples(NamedTuple):
    """The samples of a process that was `age_s` seconds old."""

    age_s: float
    samples: list[Sample]


def pack_samples(samples: Iterable[Sample], age_s: float) -> bytes:
    """The samples of a process as bytes; `age_s`: seconds since its start. Raises SamplesTooLarge."""
    rows = [(one.name, one.labels, _flatten(one.value)) for one in samples]
    packed = json.dumps([VERSION, age_s, rows], separators=(",", ":")).encode()
    if len(packed) > LARGEST_BYTES:
        raise SamplesTooLarge(f"{len(packed)} bytes of samples: {LARGEST_BYTES} at most")
    return packed


def unpack_samples(packed: bytes) -> PackedSamples:
    """What `pack_samples` was given. Raises BadSamples."""
    if len(packed) > LARGEST_BYTES:
        raise BadSamples(f"{len(packed)} bytes of samples: {LARGEST_BYTES} at most")
    try:
        version, age_s, rows = json.loads(packed)
        if version != VERSION:
            raise BadSamples(f"samples of version {version}, not {VERSION}")
        return PackedSamples(float(age_s), [_restore_row(*row) for row in rows])
    except (ValueError, TypeError, RecursionError) as error:
        raise BadSamples(f"no samples: {error}") from error


def _flatten(value: Value) -> object:
    return (value.bounds, value.counts, value.sum) if isinstance(value, Histogram) else value


def _restore_row(name: str, labels: Sequence[str], value: Any) -> Sample:
    """Raises ValueError or TypeError."""
    if not isinstance(name, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError("a name or label is no text")
    if isinstance(value, list):
        bounds, counts, total = value
        histogram = Histogram(tuple(map(float, bounds)))
        if len(counts) != len(histogram.counts):
            raise ValueError("a histogram with too many or too few cells")
        histogram.add(list(map(int, counts)), float(total))
        return Sample(name, tuple(labels), histogram)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a value is no number")
    return Sample(name, tuple(labels), value)


def merge_samples(keeper: Iterable[Sample], workers: Iterable[Iterable[Sample]]) -> list[Sample]:
    """One sample for each series, by its family's rule. A worker's sample that this build does not know is left out."""
    found = {(one.name, one.labels): _copy(one.value) for one in keeper}
    for samples in workers:
        for one in samples:
            if _rule_of(one) in ("sum", "max", "min"):
                _merge_into(found, one)
    return [Sample(name, labels, value) for (name, labels), value in found.items()]


def _rule_of(sample: Sample) -> str:
    metric = CATALOG.get(sample.name)
    return "" if metric is None else metric.rule


def _merge_into(found: dict[SeriesKey, Value], one: Sample) -> None:
    key = one.name, one.labels
    known, rule = found.get(key), _rule_of(one)
    if known is None:
        found[key] = _copy(one.value)
    elif isinstance(known, Histogram):
        if isinstance(one.value, Histogram) and one.value.bounds == known.bounds:
            known.add(one.value.counts, one.value.sum)
    elif not isinstance(one.value, Histogram):
        values = known, one.value
        found[key] = sum(values) if rule == "sum" else max(values) if rule == "max" else min(values)


def _copy(value: Value) -> Value:
    if not isinstance(value, Histogram):
        return value
    copied = Histogram(value.bounds)
    copied.add(value.counts, value.sum)
    return copied


def subtract(value: Value, baseline: Value | None) -> Value:
    """What was counted since `baseline`, a former value of the same series; None: all."""
    if baseline is None:
        return _copy(value)
    if not isinstance(value, Histogram):
        assert not isinstance(baseline, Histogram)
        return value - baseline
    assert isinstance(baseline, Histogram)
    left = _copy(value)
    assert isinstance(left, Histogram)
    left.add([-count for count in baseline.counts], -baseline.sum)
    return left


class _Worker:
    """A worker as it was last seen: `counted` since `baseline`, and the `lines` of its access log with both."""

    __slots__ = ("baseline", "baseline_line", "counted", "lines")

    def __init__(self, baseline: Iterable[Sample]) -> None:
        """`baseline`: its samples at the first look, if it is older than the keeper."""
        found = list(baseline)
        self.baseline = {(one.name, one.labels): one.value for one in found if is_counted(one)}
        self.baseline_line = find_line(found) or 0
        self.counted: list[Sample] = []
        self.lines: list[Sample] = []

    def take(self, samples: Iterable[Sample]) -> None:
        """Take the present counters."""
        self.counted, self.lines = [], []
        for one in samples:
            if is_counted(one):
                since = subtract(one.value, self.baseline.get((one.name, one.labels)))
                self.counted.append(one._replace(value=since))
            elif one.name == COUNTERS_LINE:
                self.lines.append(one)
            elif one.name == BASELINE_LINE:
                self.lines.append(one._replace(value=self.baseline_line))


def is_counted(sample: Sample) -> bool:
    """Whether a sample adds up over the life of a process, and each process has its own."""
    metric = CATALOG.get(sample.name)
    return metric is not None and metric.kind != "gauge" and metric.rule == "sum"


def find_line(samples: Iterable[Sample]) -> Value | None:
    """The number of the line that has these counters, 0: none; None: there is no access log."""
    return next((one.value for one in samples if one.name == COUNTERS_LINE), None)


def is_of_now(sample: Sample) -> bool:
    """Whether a sample says nothing of a process that has ended."""
    return not is_counted(sample) and sample.name not in (COUNTERS_LINE, BASELINE_LINE)


class Group:
    """The processes of one keeper, as its scrapes find them. Each is known by its boot id."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._ended: list[Sample] = []
        self.refused = 0
        """Samples of processes that could not be read, as of another build."""

    def __len__(self) -> int:
        """Workers that are remembered."""
        return len(self._workers)

    def merge(
        self, keeper: Iterable[Sample], age_s: float, packed: Iterable[bytes]
    ) -> list[Sample]:
        """The samples of the keeper, which is `age_s` seconds old, and of all workers, as one process's. A worker that
        does not answer this time keeps its counters, whether it has ended or is late.
        """
        gauges: list[list[Sample]] = []
        for each in packed:
            try:
                found = unpack_samples(each)
            except BadSamples:
                self.refused += 1
                continue
            self._take(found, is_older=found.age_s > age_s + START_S)
            gauges.append([one for one in found.samples if is_of_now(one)])
        self._forget_old()
        counted = [[*one.counted, *one.lines] for one in self._workers.values()]
        return merge_samples(keeper, [*gauges, *counted, self._ended])

    def _take(self, found: PackedSamples, is_older: bool) -> None:
        boot = next((one.labels[0] for one in found.samples if one.name == _BOOT), "")
        worker = self._workers.pop(boot, None)
        if worker is None:
            if is_older and find_line(found.samples) == 0:
                return  # later, when a line says what is left out
            worker = _Worker(found.samples if is_older else ())
        worker.take(found.samples)
        self._workers[boot] = worker  # the last seen are the last

    def _forget_old(self) -> None:
        while len(self._workers) > REMEMBERED:
            oldest = self._workers.pop(next(iter(self._workers)))
            forgotten = Sample(COUNTERS_LINE, ("",), 0)  # no line has the counters of all
            self._ended = merge_samples([forgotten], [self._ended, oldest.counted])
