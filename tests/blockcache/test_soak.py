"""The soak: short here, long by `make soak` (SOAK_STEPS). No stale byte, a clean check(), flat memory.

A step is a produce of one to six batches or a fetch: at a thousand a second, 3,600,000 of them are an hour.
"""

import gc
import os
from pathlib import Path

import pytest

from tests.blockcache.soak import Soak

STEPS = int(os.environ.get("SOAK_STEPS", "45000"))
MIB = 1 << 20


def find_resident_bytes() -> int:
    """Of this process, what is its own: the arena's pages are shared memory and counted apart."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("seed", "size_bytes"), [(1, 4 * MIB), (2, 12 * MIB)])
def test_soak(seed: int, size_bytes: int) -> None:
    soak = Soak(seed, size_bytes)
    warm_bytes = 0
    for number in range(STEPS // 2):
        soak.step()
        if number % max(2000, STEPS // 100) == 0:
            soak.cache.check()
            assert len(soak.cache._arena.hits) <= len(soak.readers)
            if number <= STEPS // 6:
                gc.collect()
                warm_bytes = max(warm_bytes, find_resident_bytes())
    soak.finish()
    gc.collect()
    statistics = soak.cache.statistics()
    print(
        f"\nserved {soak.served_bytes >> 20} MiB, missed {soak.missed}, reclaims {soak.reclaims}, {statistics}"
    )
    assert statistics.admitted_bytes > 3 * size_bytes and soak.served_bytes > 3 * size_bytes
    assert min(soak.reclaims, statistics.limbo_entered, soak.sent_bytes, soak.parted) > 0
    assert min(statistics.conflicts, statistics.truncated_bytes, statistics.start_moved_bytes) > 0
    assert (
        min(statistics.gathered_lookups, statistics.evicted_blocks_room, statistics.adopted_batches)
        > 0
    )
    assert find_resident_bytes() < warm_bytes + 12 * MIB
    assert soak.cache.resident_bytes <= size_bytes
