"""Caches of objects by four policies, as small as they can be told: FIFO, LRU, S3-FIFO and PLRU.

Owns what is in the cache, and what goes. Must not know logs, Spark or time. Invariants: the objects in a cache are at
most its size; an object that is larger than its queue does not enter; `read` of what is there is a hit and changes no
more than the policy's order; only `insert` lets something in.

| policy | goes first |
| --- | --- |
| FIFO | what came first |
| LRU | what was used longest ago |
| S3-FIFO | the oldest of a small queue (a tenth), unless it was read twice: then it goes to the main queue |
| PLRU | the oldest object of the partition that was read longest ago |

S3-FIFO's main queue is a FIFO with second chances; what left the small queue not long ago (the ghost) enters the main
one at once (Yang et al., SOSP 2023; counted as libcachesim 0.3.5 does).

JD's PLRU keeps LRU order of partitions and not of pages, so that a partition which nobody reads gives way first, oldest
records before newer ones. No description of it with more detail is public; this is that sentence, taken literally.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

ObjectKey = tuple[int, int]
"""Partition and number of an object in it."""


class Policy(Protocol):
    """A cache of objects."""

    def read(self, key: ObjectKey) -> bool:
        """Whether it is there; what is there counts as used."""
        ...

    def insert(self, key: ObjectKey, size_bytes: int) -> None:
        """Let in what is not there, and let go of what must make room."""
        ...

    def touch(self, partition: int) -> None:
        """Something of the partition was used that this cache is not told of: a trace may be a sample."""
        ...


class Fifo:
    """First in, first out."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.sizes: OrderedDict[ObjectKey, int] = OrderedDict()

    def read(self, key: ObjectKey) -> bool:
        return key in self.sizes

    def insert(self, key: ObjectKey, size_bytes: int) -> None:
        if key in self.sizes or size_bytes > self.size_bytes:
            return
        while self.used_bytes + size_bytes > self.size_bytes:
            self.pop()
        self.push(key, size_bytes)

    def touch(self, partition: int) -> None:
        """Partitions are nothing to this policy."""

    def push(self, key: ObjectKey, size_bytes: int) -> None:
        """At the newest end, whatever is there."""
        self.sizes[key] = size_bytes
        self.used_bytes += size_bytes

    def pop(self) -> tuple[ObjectKey, int]:
        """The oldest object leaves."""
        key, size_bytes = self.sizes.popitem(last=False)
        self.used_bytes -= size_bytes
        return key, size_bytes

    def remove(self, key: ObjectKey) -> bool:
        """Whether it was there."""
        size_bytes = self.sizes.pop(key, None)
        self.used_bytes -= size_bytes or 0
        return size_bytes is not None


class Lru(Fifo):
    """Least recently used."""

    def read(self, key: ObjectKey) -> bool:
        if key not in self.sizes:
            return False
        self.sizes.move_to_end(key)
        return True


class S3Fifo:
    """Small and main queue, and a ghost of what left the small one."""

    SMALL_SHARE: Final = 0.1
    GHOST_SHARE: Final = 0.9
    READS_TO_MOVE: Final = 2
    READS_MAX: Final = 3

    def __init__(self, size_bytes: int) -> None:
        small_bytes = int(size_bytes * self.SMALL_SHARE)
        self.size_bytes = size_bytes
        self.small, self.main = Fifo(small_bytes), Fifo(size_bytes - small_bytes)
        self.ghost = Fifo(int(size_bytes * self.GHOST_SHARE))
        self.reads: dict[ObjectKey, int] = {}
        self.was_full = False

    def read(self, key: ObjectKey) -> bool:
        if key not in self.reads:
            return False
        self.reads[key] += 1
        return True

    def insert(self, key: ObjectKey, size_bytes: int) -> None:
        if key in self.reads or size_bytes > self.small.size_bytes:
            return
        comes_back = self.ghost.remove(key)
        while self.small.used_bytes + self.main.used_bytes + size_bytes > self.size_bytes:
            self._evict()
        if not comes_back and size_bytes >= self.small.size_bytes:
            return
        fills_up = not self.was_full and self.small.used_bytes >= self.small.size_bytes
        (self.main if comes_back or fills_up else self.small).push(key, size_bytes)
        self.reads[key] = 0

    def touch(self, partition: int) -> None:
        """Partitions are nothing to this policy."""

    def _evict(self) -> None:
        self.was_full = True
        if self.main.used_bytes > self.main.size_bytes or not self.small.sizes:
            self._evict_main()
        else:
            self._evict_small()

    def _evict_small(self) -> None:
        while self.small.sizes:
            key, size_bytes = self.small.pop()
            if self.reads[key] < self.READS_TO_MOVE:
                del self.reads[key]
                self.ghost.insert(key, size_bytes)
                return
            self.main.push(key, size_bytes)
            self.reads[key] = 0

    def _evict_main(self) -> None:
        while self.main.sizes:
            key, size_bytes = self.main.pop()
            if self.reads[key] == 0:
                del self.reads[key]
                return
            self.main.push(key, size_bytes)
            self.reads[key] = min(self.reads[key], self.READS_MAX) - 1


class Plru:
    """Partitions by when they were last read; of the first, its oldest object goes."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.partitions: OrderedDict[int, Fifo] = OrderedDict()

    def read(self, key: ObjectKey) -> bool:
        held = self.partitions.get(key[0])
        if held is None:
            return False
        self.partitions.move_to_end(key[0])
        return held.read(key)

    def insert(self, key: ObjectKey, size_bytes: int) -> None:
        held = self.partitions.get(key[0])
        if size_bytes > self.size_bytes or (held is not None and held.read(key)):
            return
        while self.used_bytes + size_bytes > self.size_bytes:
            self._evict()
        self.partitions.setdefault(key[0], Fifo(self.size_bytes)).push(key, size_bytes)
        self.used_bytes += size_bytes

    def touch(self, partition: int) -> None:
        """The partition is the one read last, if anything of it is there."""
        if partition in self.partitions:
            self.partitions.move_to_end(partition)

    def _evict(self) -> None:
        partition, held = next(iter(self.partitions.items()))
        _, size_bytes = held.pop()
        self.used_bytes -= size_bytes
        if not held.sizes:
            del self.partitions[partition]


POLICIES: Final[dict[str, type[Fifo] | type[Lru] | type[S3Fifo] | type[Plru]]] = {
    "FIFO": Fifo,
    "LRU": Lru,
    "S3-FIFO": S3Fifo,
    "PLRU": Plru,
}
BY_PARTITION: Final = frozenset({"PLRU"})
"""Policies to which a touch of a partition is something."""
