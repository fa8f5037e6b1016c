"""From bytes of batches to `cache.size`: how many bytes of this load's batches a cache of a given size holds.

Owns the model of the block cache's geometry (docs/architecture.md, `blockcache/native/pyfastcache.h`), in plain
arithmetic, and its correction by what the log shows the cache to have held. Must not know Spark, the curve or the
report. Invariants: a cache never holds more bytes than its size; one of `find_size` holds what was asked for.

A cache holds less than its size: index and tables take a tenth, the eliminator keeps room ahead, blocks that are being
filled are reserved whole, others end between two units, and small batches need more index than there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from spark_audit.profile import PartitionClass

UNIT_BYTES: Final = 1024
HEADER_BYTES: Final = 1344
SECTION_BYTES: Final = 64
"""Of which each section's place is a multiple."""
BLOCK_HEADER_BYTES: Final = 160
OWNER_BYTES: Final = 4
NODE_BYTES: Final = 256
LEAF_ENTRIES: Final = 5
INNER_ITEMS: Final = 14
QUICK: Final = 64
LEAST_SIZE_BYTES: Final = 64 * 1024
GREATEST_SIZE_BYTES: Final = 1 << 50
FADING: Final = 0.2
"""Power of the size, above the measured one, by which the factor comes nearer to 1: as it does in real caches of four
times the size.
"""
_LEAST_FACTOR, _GREATEST_FACTOR = 0.5, 1.5


class Sections(NamedTuple):
    """The parts of a cache of one size, in bytes; `nodes`: index nodes."""

    data: int
    nodes: int
    block_max: int
    block_min: int
    shared: int


def plan_sections(size_bytes: int) -> Sections:
    """The parts of a cache whose `cache.size` is `size_bytes`, where only the size is configured."""
    block_max = 1 << _clamp(size_bytes // 64, 1024, 1 << 20).bit_length() - 1
    partitions = 128 * _clamp(size_bytes // 16384, 16, 131_072)
    ghosts = 48 * _clamp(size_bytes // 16384, 64, 65_536)
    nodes = max(16, size_bytes // 12 // NODE_BYTES)
    bits = size_bytes // UNIT_BYTES // 8
    other = HEADER_BYTES + sum(map(_align, (partitions, ghosts, bits, bits, nodes * NODE_BYTES)))
    data = size_bytes // UNIT_BYTES * UNIT_BYTES - -(-other // UNIT_BYTES) * UNIT_BYTES
    return Sections(data, nodes, block_max, min(16_384, block_max), min(65_536, block_max))


def _align(size_bytes: int) -> int:
    return -(-size_bytes // SECTION_BYTES) * SECTION_BYTES


@dataclass(frozen=True, slots=True)
class Calibration:
    """Sizes for one load. `classes`: its partitions; `factor`: what the log shows the cache to have held, as a multiple
    of what the model says, 1 where it was never full; `measured_at_bytes`: the size at which that was, None: nowhere.
    What the model lacks (room between blocks of unequal sizes, bursts) counts less the larger the cache.
    """

    classes: tuple[PartitionClass, ...]
    factor: float = 1.0
    measured_at_bytes: int | None = None

    def held_bytes(self, size_bytes: int) -> int:
        """Bytes of batches that a cache of `size_bytes` holds once it is full: the FIFO of bytes that it is like."""
        beyond = max(1.0, size_bytes / self.measured_at_bytes) if self.measured_at_bytes else 1.0
        factor = 1 + (self.factor - 1) / beyond**FADING
        return int(min(size_bytes, factor * model_held_bytes(size_bytes, self.classes)))

    def find_size(self, held_bytes: int) -> int:
        """The least `cache.size` that holds so many bytes of batches."""
        low, high = LEAST_SIZE_BYTES, GREATEST_SIZE_BYTES
        while low < high:
            middle = (low + high) // 2
            if self.held_bytes(middle) >= held_bytes:
                high = middle
            else:
                low = middle + 1
        return low


def calibrate(
    classes: Sequence[PartitionClass], size_bytes: int | None, held_bytes: float | None
) -> Calibration:
    """`held_bytes`: the mean that a full cache of `size_bytes` held, by the log; None: it was never full, or nothing
    says so.
    """
    kept = tuple(one for one in classes if one.batches > 0 and one.bytes > 0)
    if not size_bytes or not held_bytes:
        return Calibration(kept)
    model = model_held_bytes(size_bytes, kept)
    factor = min(max(held_bytes / model, _LEAST_FACTOR), _GREATEST_FACTOR) if model > 0 else 1.0
    return Calibration(kept, factor, size_bytes)


@lru_cache(maxsize=4096)
def model_held_bytes(size_bytes: int, classes: tuple[PartitionClass, ...]) -> float:
    """What the geometry alone says: bytes of batches in a full cache, 0 where nothing is left for them."""
    sections = plan_sections(size_bytes)
    ahead = max(2 * sections.block_max, sections.data // 64)
    used = sections.data - 1.5 * ahead  # between the low water and the high water
    if used <= 0:
        return 0.0
    total = sum(one.bytes for one in classes)
    if not total:
        return used
    reserved, cost = 0.0, 0.0
    has_shared = False
    for one in classes:
        placed = _place(sections, one, total)
        reserved += one.partitions * placed.unfilled_bytes
        cost += one.bytes / total * placed.bytes_a_byte
        has_shared = has_shared or placed.is_shared
    reserved += sections.shared / 2 if has_shared else 0
    by_room = max(0.0, used - min(reserved, used / 2)) / cost
    if _count_nodes(by_room, classes, total) <= sections.nodes:
        return by_room
    return min(by_room, _index_bound(sections, classes, total))


class _BlockUse(NamedTuple):
    unfilled_bytes: float
    bytes_a_byte: float
    is_shared: bool


def _place(sections: Sections, one: PartitionClass, total: int) -> _BlockUse:
    """How the blocks of a partition of this class lie: what its open block has reserved and not filled, and the bytes
    of blocks for a byte of batches.
    """
    share = one.bytes / total / one.partitions
    length = one.bytes / one.batches
    block = _block_bytes(sections, share, length)
    if block == 0 and length <= sections.shared / 8:
        room = sections.shared - BLOCK_HEADER_BYTES - length / 2
        payload = room * length / (length + OWNER_BYTES)
        taken = BLOCK_HEADER_BYTES + payload / length * (length + OWNER_BYTES) + UNIT_BYTES / 2
        return _BlockUse(0.0, taken / payload, True)
    if block < 2 * length:  # a batch, or nearly, for each block
        count = max(1, int(block / length))
        taken = -(-(count * length + BLOCK_HEADER_BYTES) // UNIT_BYTES) * UNIT_BYTES
        spread = UNIT_BYTES / 2 if one.is_mixed else taken - count * length - BLOCK_HEADER_BYTES
        return _BlockUse(
            0.0, (count * length + BLOCK_HEADER_BYTES + spread) / (count * length), False
        )
    payload = block - length / 2
    taken = payload + BLOCK_HEADER_BYTES + UNIT_BYTES / 2
    return _BlockUse(payload / 2, taken / payload, False)


def _block_bytes(sections: Sections, share: float, length: float) -> int:
    """The size at which a partition's own blocks settle; 0: it has none."""
    data, block = sections.data, sections.block_min
    first = block if length <= sections.shared / 8 else length
    if first / share >= data / QUICK:
        return 0
    while block / share < data / QUICK and block * 2 <= sections.block_max:
        block *= 2
    return block


def _index_bound(sections: Sections, classes: Sequence[PartitionClass], total: int) -> float:
    """The bytes of batches whose entries fill the index."""
    low, high = 0.0, float(1 << 60)
    for _ in range(60):
        middle = (low + high) / 2
        if _count_nodes(middle, classes, total) <= sections.nodes:
            low = middle
        else:
            high = middle
        if high - low < 1024:
            break
    return low


def _count_nodes(held_bytes: float, classes: Sequence[PartitionClass], total: int) -> float:
    """Index nodes for so many bytes of batches. A partition's leaves are full, but for the two at its ends."""
    nodes = 0.0
    for one in classes:
        entries = held_bytes * one.batches / total / one.partitions
        leaves = entries / LEAF_ENTRIES + min(entries, 1 - 1 / LEAF_ENTRIES)
        nodes += one.partitions * leaves * (1 + (1 / (INNER_ITEMS - 1) if leaves > 1.5 else 0))
    return nodes


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
