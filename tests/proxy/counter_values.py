"""The counts of a Forebay as a flat dictionary, by record and name.

Must not know what is counted. Invariant: every field of every record of `Counters` is in it, and
what other objects count beside it.
"""

import dataclasses
import functools
from typing import get_type_hints

from metrics.histogram import Histogram
from proxy.accounting.counters import Counters, RelayTimes


def read_buckets(histogram):
    """All of a histogram that is reproducible under a manual clock."""
    return tuple(histogram.counts), round(histogram.sum, 6)


def list_names(kind, prefix=""):
    """Each field of a record of this kind: its key, and its name."""
    return tuple((prefix + one.name, one.name) for one in dataclasses.fields(kind))


@functools.cache
def list_counts():
    """Each record of `Counters`, with its fields."""
    hints = get_type_hints(Counters)
    return tuple((name, list_names(hints[name], f"{name}.")) for name, _ in list_names(Counters))


def read_counters(broker, read_histogram=read_buckets):
    """All counts as {"record.name": value}; `read_histogram` says what is told of a histogram."""
    found = {}
    for record, names in list_counts():
        counts = getattr(broker.counters, record)
        for key, name in names:
            value = getattr(counts, name)
            if isinstance(value, RelayTimes):
                found[key] = {api: read_histogram(one) for api, one in value.items()}
            else:
                found[key] = read_histogram(value) if isinstance(value, Histogram) else value
    return found | {
        "purgatory.parked": broker.purgatory.parked,
        "shared_reads": (broker.shared_reads.joined, broker.shared_reads.joined_bytes),
        "topic_lookup": (broker.topic_lookup.questions, broker.topic_lookup.dropped),
        "verifier": broker.verifier.verdicts,
    }
