"""A scrape's text as samples, quickly: tests that wait for a counter read it twenty times a second.

Owns the Prometheus text format as Forebay writes it: one sample a line, labels quoted, no timestamps. Must not know
metrics. prometheus_client's own parser gives the same in fifteen times the time.
"""

import re
from functools import lru_cache

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def read_samples(text: str) -> dict[tuple[str, ...], float]:
    """(sample name, label values in the order of their names...) -> value."""
    samples = {}
    for line in text.split("\n"):
        if line and line[0] != "#":
            series, _, value = line.rpartition(" ")
            samples[_split_series(series)] = float(value)
    return samples


@lru_cache(maxsize=1 << 14)
def _split_series(series: str) -> tuple[str, ...]:
    name, _, labels = series.partition("{")
    return (name, *(_unescape(value) for _, value in sorted(_LABEL.findall(labels))))


def _unescape(value: str) -> str:
    return _ESCAPED.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), value)
