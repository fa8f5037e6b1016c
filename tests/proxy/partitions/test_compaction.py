"""The log cleaner's traces: gaps, and batches with fewer records than offsets."""

from types import SimpleNamespace

import pytest

from proxy.partitions.compaction import find_cleaned_end


def build_batch(base, last, count=None):
    return SimpleNamespace(
        base_offset=base, last_offset=last, record_count=last - base + 1 if count is None else count
    )


@pytest.mark.parametrize(
    ("fetch_offset", "batches", "expected"),
    [
        (10, [], -1),
        (10, [(10, 12), (13, 13)], -1),
        (11, [(10, 12), (13, 13)], -1),
        (9, [(10, 12), (13, 13)], 10),
        (10, [(10, 12), (14, 14)], 14),
        (10, [(10, 12, 2), (13, 13)], 13),
        (10, [(10, 12), (13, 13, 0)], 14),
        (10, [(11, 12), (15, 19, 4), (20, 20)], 20),
    ],
)
def test_traces_of_the_cleaner_are_found(fetch_offset, batches, expected):
    assert find_cleaned_end(fetch_offset, [build_batch(*one) for one in batches]) == expected
