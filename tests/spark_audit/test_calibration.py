"""What a cache of a size holds of a load, against the real cache."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from blockcache.cache import BlockCache
from spark_audit.calibration import Calibration, calibrate, plan_sections
from spark_audit.profile import PartitionClass
from tests.spark_audit.replay import Produce, Shape, Step, build_load, replay

MIB = 1 << 20
LAG = {1.0: 1e5}
SHAPES = {
    "many slow partitions": Shape([1] * 300, 1_000, 4_000, 24 * MIB, LAG),
    "few partitions of large batches": Shape([5, 3, 2, 1], 20_000, 90_000, 40 * MIB, LAG),
    "unequal partitions": Shape([1 / (1 + i) for i in range(40)], 4_000, 16_000, 32 * MIB, LAG),
    "tiny batches fill the index": Shape([1] * 20, 150, 400, 8 * MIB, LAG),
    "one partition": Shape([1], 1_000, 16_000, 32 * MIB, LAG),
}


def classify(steps: list[Step]) -> list[PartitionClass]:
    """A class for each partition."""
    size_bytes: Counter[int] = Counter()
    batches: Counter[int] = Counter()
    for step in steps:
        if isinstance(step, Produce):
            size_bytes[step.partition] += step.size_bytes
            batches[step.partition] += 1
    return [PartitionClass(1, size_bytes[one], batches[one]) for one in size_bytes]


@pytest.mark.parametrize("size_bytes", [65_536, MIB, 16 * MIB, 100_000_000, 2 << 30])
def test_parts_are_those_of_the_real_cache(size_bytes: int) -> None:
    cache = BlockCache(size_bytes, observe=True)
    sections = plan_sections(size_bytes)
    assert sections.block_max == cache.block_max_bytes
    assert sections.data == cache.statistics().block_bytes
    cache.close()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size_bytes", [5 * MIB, 8 * MIB])
def test_the_model_alone_is_near_the_real_cache(name: str, size_bytes: int) -> None:
    steps = build_load(SHAPES[name], seed=3)
    held_bytes = replay(steps, size_bytes).held_bytes
    assert not math.isnan(held_bytes), "the load fills the cache"
    model = calibrate(classify(steps), None, None).held_bytes(size_bytes)
    assert model == pytest.approx(held_bytes, rel=0.1)


def test_what_the_log_shows_corrects_the_model() -> None:
    classes = [PartitionClass(10, 1 << 30, 1 << 20)]
    model = Calibration(tuple(classes))
    corrected = calibrate(classes, 64 * MIB, 0.9 * model.held_bytes(64 * MIB))
    assert corrected.held_bytes(64 * MIB) == pytest.approx(
        0.9 * model.held_bytes(64 * MIB), rel=1e-6
    )
    assert corrected.measured_at_bytes == 64 * MIB
    larger = corrected.held_bytes(1 << 30) / model.held_bytes(1 << 30)
    assert 0.9 < larger < 1


@pytest.mark.parametrize("held_bytes", [1, 12_345_678, 1 << 33])
def test_a_size_that_was_found_holds_what_was_asked_for(held_bytes: int) -> None:
    calibration = Calibration((PartitionClass(100, 1 << 30, 1 << 18),))
    size_bytes = calibration.find_size(held_bytes)
    assert calibration.held_bytes(size_bytes) >= held_bytes
    assert size_bytes == 65_536 or calibration.held_bytes(size_bytes - 1) < held_bytes


def test_without_block_lines_a_size_is_less_than_the_whole() -> None:
    calibration = calibrate([], 64 * MIB, None)
    assert calibration.factor == 1 and calibration.measured_at_bytes is None
    assert 0.8 * 64 * MIB < calibration.held_bytes(64 * MIB) < 64 * MIB
