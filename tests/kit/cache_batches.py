"""Record batches v2 for the tests of the cache: a right header, bytes that tell one batch from another."""

import random
import struct
from array import array

from blockcache._pyfastcache import ffi, lib

from blockcache.appending import PLACED_WORDS, RUN_END
from blockcache.cache import BlockCache, Buffer
from blockcache.results import Inserted

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
TOPIC = bytes(range(16))
FOREVER = 1 << 62
STAMP_MS = 1_763_700_000_000


def build_batch(
    base_offset: int,
    count: int = 1,
    *,
    epoch: int = 0,
    size: int = 200,
    producer_id: int = -1,
    sequence: int = -1,
    seed: int = 0,
) -> bytes:
    """One batch of `size` bytes with offsets [base_offset, base_offset + count); its max timestamp is its base offset
    and STAMP_MS.
    """
    crc = random.Random(f"{base_offset} {seed}").getrandbits(32)
    producer = (producer_id, 0, sequence, count)
    head = HEADER.pack(
        base_offset, size - 12, epoch, 2, crc, 0, count - 1, 0, base_offset + STAMP_MS, *producer
    )
    return head + random.Random(f"{base_offset} {epoch} {seed}").randbytes(size - HEADER_BYTES)


def build_run(
    first_offset: int, batches: int, *, count: int = 1, size: int = 200, epoch: int = 0
) -> bytes:
    """Consecutive batches without gaps."""
    return b"".join(
        build_batch(first_offset + i * count, count, size=size, epoch=epoch) for i in range(batches)
    )


def insert(cache: BlockCache, slot: int, run: bytes, covers_from: int | None = None) -> Inserted:
    """Inserts all of `run`; by default it covers from its own first offset."""
    first: int = HEADER.unpack_from(run)[0]
    return cache.insert(slot, run, 0, len(run), first if covers_from is None else covers_from)


def append(
    cache: BlockCache, slot: int, buf: Buffer, start: int, end: int, base_offset: int, epoch: int
) -> int | None:
    """Appends one batch; where its run ends, None where it was not stored."""
    placed = place(slot, start, end, base_offset, epoch, 0, 0)
    append_placed(cache, buf, placed, 1)
    return None if placed[RUN_END] < 0 else placed[RUN_END]


def append_placed(cache: BlockCache, buf: Buffer, placed: memoryview, count: int) -> None:
    """Appends `count` batches of `buf` at `placed`, by the function that C is given."""
    done, to = 0, cache.appender
    source, places = ffi.from_buffer(buf), ffi.from_buffer(placed)
    assert len(placed) >= count * PLACED_WORDS
    while to.arena == ffi.NULL or (
        (done := to.append(to.arena, source, len(buf), places, done, count, to.used_max)) < count
    ):
        cache.make_room()


def place(*words: int) -> memoryview:
    """Words of `BlockCache.appender`."""
    return memoryview(array("q", words))


def read(
    cache: BlockCache, slot: int, offset: int, limit_offset: int = FOREVER, max_bytes: int = FOREVER
) -> bytes | None:
    """What a lookup returns, as bytes; None where it is not stored."""
    hit = cache.lookup(slot, offset, limit_offset, max_bytes)
    if hit is None:
        return None
    found = b"".join(hit.views)
    assert len(found) == hit.size_bytes
    hit.release()
    return found


def find_batch(cache: BlockCache, slot: int, offset: int) -> tuple[int, int, int] | None:
    """(covers_from, base offset, last offset) of the stored batch that answers `offset`."""
    entry = ffi.new("fc_entry *")
    if lib.fc_find_batch(cache._a, slot, offset, entry) < 0:
        return None
    return entry.covers_from, entry.base_offset, entry.base_offset + entry.last_delta
