"""Samples of several processes as one process's.

Owns how a family is merged. Must not know where samples come from. Invariants: what is counted, and most
of what is there at a moment, is summed; a few gauges are the keeper's, or the greatest of all.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, Final

from metrics.collector import Sample
from metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

OF_THE_KEEPER: Final = (
    "forebay_build_info",
    "forebay_boot_info",
    "forebay_ready",
    "forebay_fallback",
    "forebay_config_",
    "forebay_cache_",
    "forebay_watch_",
    "forebay_throttle_",
    "forebay_partitions_refused_total",
    "forebay_topic_questions",
    "forebay_transactions_",
    "forebay_tls_certificate_expiry_seconds",
    "forebay_worker",
    "forebay_upgrades",
    "forebay_isolation_topics_hanging",
)
GREATEST: Final = ("forebay_upstream_silent_seconds", "forebay_processor_slowdown")


def pack(samples: Iterable[Sample]) -> bytes:
    """The samples of a process, for `unpack`."""
    return marshal.dumps([(one.name, one.labels, _flatten(one.value)) for one in samples])


def unpack(packed: bytes) -> list[Sample]:
    """What `pack` was given, without histograms' identity."""
    return [Sample(name, labels, _restore(value)) for name, labels, value in marshal.loads(packed)]


def _flatten(value: float | Histogram) -> Any:
    return (value.bounds, value.counts, value.sum) if isinstance(value, Histogram) else value


def _restore(value: Any) -> float | Histogram:
    if not isinstance(value, tuple):
        number: float = value
        return number
    bounds, counts, total = value
    histogram = Histogram(bounds)
    histogram.add(counts, total)
    return histogram


def merge(own: Iterable[Sample], others: Iterable[Iterable[Sample]]) -> list[Sample]:
    """The samples of the keeper and of its workers as one process's."""
    found: dict[tuple[str, tuple[str, ...]], float | Histogram] = {}
    for one in own:
        found[one.name, one.labels] = _copy(one.value)
    for samples in others:
        for one in samples:
            key = one.name, one.labels
            if one.name.startswith(OF_THE_KEEPER):
                continue
            known = found.get(key)
            if known is None:
                found[key] = _copy(one.value)
            elif isinstance(known, Histogram) and isinstance(one.value, Histogram):
                known.add(one.value.counts, one.value.sum)
            elif not isinstance(known, Histogram) and not isinstance(one.value, Histogram):
                greatest = one.name in GREATEST
                found[key] = max(known, one.value) if greatest else known + one.value
    return [Sample(name, labels, value) for (name, labels), value in found.items()]


def _copy(value: float | Histogram) -> float | Histogram:
    return _restore(_flatten(value))
