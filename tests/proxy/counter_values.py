"""The counts of a Forebay as a flat dictionary, by record and name.

Must not know what is counted. Invariant: every field of every record of `Counters` is in it, and
what other objects count beside it.
"""

import dataclasses

from metrics.histogram import Histogram


def read_buckets(histogram):
    """All of a histogram that is reproducible under a manual clock."""
    return tuple(histogram.counts), round(histogram.sum, 6)


def read_counters(broker, read_histogram=read_buckets):
    """All counts as {"record.name": value}; `read_histogram` says what is told of a histogram."""
    found = {}
    for record in dataclasses.fields(broker.counters):
        counts = getattr(broker.counters, record.name)
        for one in dataclasses.fields(counts):
            value = getattr(counts, one.name)
            is_histogram = isinstance(value, Histogram)
            found[f"{record.name}.{one.name}"] = read_histogram(value) if is_histogram else value
    return found | {
        "purgatory.parked": broker.purgatory.parked,
        "shared_reads": (broker.shared_reads.joined, broker.shared_reads.joined_bytes),
        "topic_lookup": (broker.topic_lookup.questions, broker.topic_lookup.dropped),
        "verifier": broker.verifier.verdicts,
    }
