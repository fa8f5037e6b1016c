"""A worker and a keeper in one process, and the ring between them; the broker's responses are the test's.

Owns the join of the two brokers. It must not know what a test expects.
"""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace
from typing import Any

from proxy.partitions._rows import ffi, lib

from proxy.keeper.broker import KeptPartitions
from proxy.keeper.seen import SeenPartition, SeenPartitions
from proxy.keeper.segment import attach_segment, open_segment
from proxy.keeper.shown import ShownPartitions, find_place
from proxy.keeper.told import RING_BYTES, Ring, RingReader, RingReaders
from proxy.keeper.worker_broker import WorkerBroker
from tests.kit.cache_batches import read
from tests.proxy.followed_partition import QuietBroker, known, learn
from tests.proxy.produce_link import Link


class Keeper(QuietBroker):
    """A broker that shows its partitions."""

    def __init__(self) -> None:
        super().__init__(8 << 20)
        self.shown = ShownPartitions(open_segment(100), lambda: None)
        self.partitions: Any = KeptPartitions(self.shown, self.cache, 100, 100)
        keeping: Any = self
        self.rings = RingReaders(keeping)


class Worker(QuietBroker):
    """A broker that sees them, and tells."""

    admit_produced: Any = WorkerBroker.admit_produced
    keeps = False
    link: Any
    partitions: Any


class Pair:
    """Partitions at HW and tail 100 whose topic is known to store what producers send. `broken`: how often the keeper
    found what is no entry. `heard`: what a second worker hears.
    """

    def __init__(self, ring_bytes: int = RING_BYTES, indexes: int = 1) -> None:
        self.keeper, self.worker = Keeper(), Worker()
        self.broken = 0
        self.segment = attach_segment(os.dup(self.keeper.shown.segment.fd))
        self.worker.partitions = SeenPartitions(self.worker.cache, 100, lambda *_: True)
        for index in range(indexes):
            self.follow(index)
        self.rings = self.keeper.rings
        self.reader = RingReader(self.rings, self._note_broken, ring_bytes)
        fd, wake_fd = self.reader.fds
        self.ring = Ring(os.dup(fd), os.dup(wake_fd), self.segment.leases)
        heard = self.segment.open_heard(1)
        self.heard = self.segment.open_heard(2)
        self.keeper.shown.segment.listen(1, True)
        self.keeper.shown.segment.listen(2, True)
        self.worker.link = SimpleNamespace(
            tell_produced=self.ring.tell,
            show_acknowledged=lambda batches, count: lib.pt_show_acknowledged(
                batches, count, heard
            ),
        )
        self.link = Link(self.worker)
        self.reader.start()

    def _note_broken(self) -> None:
        self.broken += 1

    def follow(self, index: int) -> None:
        """Have the keeper follow a partition, and the worker see it."""
        partition = self.keeper.follow(index)
        learn(partition, 100)
        partition.tail = partition.young_from = 100
        partition.topic.fidelity.learn(False)
        partition.topic.fidelity.trust(0)
        self.keeper.shown.show(partition)
        place, topic = find_place(partition.slot), known(self.worker.topics.find("orders"))
        seen = SeenPartition(self.segment, topic, index, partition.slot, place)
        self.worker.partitions.put(seen)

    def produce(self, sent: bytes, base_offset: int, index: int = 0, **values: Any) -> None:
        """A client's Produce by the worker, acknowledged at `base_offset`."""
        assert self.link.produce(sent, index=index, **values)
        self.link.reply(base_offset, index=index)
        assert not self.link.failures

    def read(self, offset: int, index: int = 0) -> bytes | None:
        """What the keeper's cache has from an offset."""
        return read(self.keeper.cache, self.kept(index).slot, offset)

    def kept(self, index: int = 0) -> Any:
        """The keeper's partition."""
        return self.keeper.partitions.find(known(self.keeper.topics.find("orders")), index)

    def hear(self, room: int = 128) -> list[int]:
        """The places that the second worker hears of in one call."""
        places = ffi.new("int64_t[]", room)
        return list(places[0 : lib.pt_hear(self.heard, places, room)])

    def close(self) -> None:
        """Both ends."""
        self.reader.close()
        self.ring.close()
        self.segment.close()
        self.keeper.shown.segment.close()
        self.__dict__.clear()
        gc.collect()  # mappings have descriptors of their own, and brokers are in cycles
