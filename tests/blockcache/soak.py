"""A long random load on one cache, with the truth beside it: every byte that a reader takes is compared.

Owns the load: partitions of very different rates, batches that are lost and come later, truncations, re-created
topics, moved log starts, requests received into the arena, readers that are quick, slow, stubborn or die. Must not
know the arena. Invariants: seeded, no clock; the truth keeps what the cache can still have, so that its memory is
bounded too.
"""

import os
import random
from collections import deque
from dataclasses import dataclass, field

from blockcache.arena import Hit
from blockcache.cache import BlockCache
from blockcache.results import Span
from tests.kit.cache_batches import HEADER, HEADER_BYTES, append

NOISE = random.Random(0).randbytes(1 << 20)
PARTITIONS, READERS, LOANS = 40, 24, 8
LARGEST = 60_000
FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of the log. `seed` tells its bytes from those of any other at the same offsets."""

    covers_from: int
    base: int
    count: int
    size: int
    epoch: int
    seed: int
    admitted: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.base + self.count

    def build(self) -> bytes:
        """Its bytes: a right header, then a piece of the noise."""
        at = self.seed * 7919 % (len(NOISE) - LARGEST)
        producer = (self.seed, 0, 0, self.count)
        head = HEADER.pack(
            self.base,
            self.size - 12,
            self.epoch,
            2,
            self.seed & 0xFFFFFFFF,
            0,
            self.count - 1,
            0,
            0,
            *producer,
        )
        return head + NOISE[at : at + self.size - HEADER_BYTES]


@dataclass(slots=True)
class Log:
    """The broker's log of one partition, as far back as the cache can reach."""

    slot: int
    topic: int
    epoch: int = 0
    end: int = 0
    start: int = 0
    batches: deque[Batch] = field(default_factory=deque)
    lost: list[Batch] = field(default_factory=list)


@dataclass(slots=True)
class Reader:
    """Somebody with a hit in hand: what is to come, how far it got."""

    hit: Hit
    expected: bytes
    taken: int = 0
    dead: bool = False


class Soak:
    """The cache, the truth, and the readers that hold on to hits."""

    def __init__(self, seed: int, size_bytes: int) -> None:
        self.random = random.Random(seed)
        self.cache = BlockCache(size_bytes, pin_limit_bytes=size_bytes // 3)
        self.topics = 0
        self.seeds = 0
        self.logs = [self.create(i) for i in range(PARTITIONS)]
        self.readers: list[Reader] = []
        self.loans: list[tuple[memoryview, bytes]] = []
        self.served_bytes = self.reclaims = self.missed = self.sent_bytes = self.parted = 0
        # as a socket is: it takes what it has room for, and never waits
        self.socket_end, self.socket = os.pipe()
        os.set_blocking(self.socket, False)

    def create(self, partition: int) -> Log:
        """A partition of a topic that was not there before."""
        self.topics += 1
        return Log(self.cache.open(self.topics.to_bytes(16, "big"), partition), self.topics)

    # What producers and brokers do

    def append(self, log: Log, gaps: bool = True) -> Batch:
        """The next batch of a log: mostly small, now and then after a gap that compaction left."""
        pick = self.random.random
        size = (
            HEADER_BYTES + int(2 ** (pick() * 10.5))
            if pick() < 0.9
            else int(pick() * (LARGEST - 100)) + 100
        )
        base = log.end + (self.random.randrange(30) if gaps and pick() < 0.1 else 0)
        self.seeds += 1
        covers_from = log.end if pick() < 0.5 else base
        count = self.random.randrange(1, 40)
        batch = Batch(
            covers_from, base, count, size, log.epoch, self.seeds, self.cache.peek_admitted_bytes()
        )
        log.batches.append(batch)
        log.end = batch.end
        while (
            log.batches[0].admitted
            < self.cache.peek_admitted_bytes() - 3 * self.cache.statistics().arena_bytes
        ):
            log.batches.popleft()
        return batch

    def store(self, log: Log, batches: list[Batch]) -> None:
        """Inserts a run; a conflict is a truncation that nobody told of."""
        run = b"".join(batch.build() for batch in batches)
        covers_from = batches[0].covers_from
        done = self.cache.insert(log.slot, run, 0, len(run), covers_from)
        if done.conflict_offset >= 0:
            self.cache.truncate(log.slot, done.conflict_offset)
            again = self.cache.insert(log.slot, run, 0, len(run), covers_from)
            assert again.conflict_offset < 0
        assert done.next_offset <= batches[-1].end

    def produce(self, log: Log) -> None:
        """A run is appended and stored, or lost until later, or what was lost comes."""
        batches = [self.append(log) for _ in range(self.random.choice((1, 1, 1, 2, 6)))]
        if self.random.random() < 0.04:
            log.lost.append(batches[0])
            batches = batches[1:]
        if batches:
            first = batches[0]
            self.cache.eliminate()
            if len(batches) == 1 and self.random.random() < 0.3:
                self.receive(log, first)
                return
            self.store(log, batches if first.covers_from == first.base else batches[:1])
            if first.covers_from != first.base and batches[1:]:
                self.store(log, batches[1:])
        if log.lost and self.random.random() < 0.1:
            self.store(log, [log.lost.pop(self.random.randrange(len(log.lost)))])
        del log.lost[:-5]

    def receive(self, log: Log, batch: Batch) -> None:
        """A request arrives in memory of the arena; it is acknowledged, or its client dies; it may be kept a while."""
        data = batch.build()
        memory = self.cache.reserve(len(data) + 40)
        if memory is None:
            self.store(log, [batch])
            return
        memory[:] = bytes(20) + data + bytes(20)
        if self.random.random() < 0.05:
            log.lost.append(batch)
        elif (
            append(self.cache, log.slot, memory, 20, len(memory) - 20, batch.base, batch.epoch)
            is None
        ):
            self.store(log, [batch])
        assert bytes(memory[20:-20]) == data
        if self.random.random() < 0.3:
            self.loans.append((memory, bytes(memory)))
        if len(self.loans) > LOANS:
            memory, written = self.loans.pop(self.random.randrange(len(self.loans)))
            assert bytes(memory) == written

    def truncate(self, log: Log, told: bool) -> None:
        """The log loses its end and goes on in a new epoch; the cache is told, or finds out by a conflict."""
        from_offset = max(log.start, log.end - self.random.randrange(200))
        while log.batches and log.batches[-1].end > from_offset:
            log.batches.pop()
        log.lost = [batch for batch in log.lost if batch.end <= from_offset]
        log.epoch += 1
        if told or not log.batches:
            log.end = max(log.start, from_offset)
            self.cache.truncate(log.slot, log.end)
            return
        log.end = log.batches[-1].end
        before = self.cache.statistics().conflicts
        batch = self.append(log, gaps=False)
        self.store(log, [batch])
        if self.cache.statistics().conflicts == before:
            self.cache.truncate(log.slot, batch.end)

    def move_start(self, log: Log) -> None:
        """DeleteRecords, or retention."""
        log.start = max(log.start, log.end - self.random.randrange(1, 6000))
        self.cache.advance_start(log.slot, log.start)
        log.lost = [batch for batch in log.lost if batch.end > log.start]

    def recreate(self, i: int) -> None:
        """The topic is deleted and made again, with another id."""
        self.cache.drop(self.logs[i].slot)
        self.logs[i] = self.create(i)

    # What readers do

    def expect(self, log: Log, offset: int, hit: Hit | Span) -> bytes:
        """The bytes that a hit must be, from the truth."""
        parts, size, next_offset = [], 0, offset
        for batch in log.batches:
            if batch.end > offset and size < hit.size_bytes:
                parts.append(batch.build())
                size += batch.size
                next_offset = batch.end
        assert (size, next_offset) == (hit.size_bytes, hit.next_offset)
        return b"".join(parts)

    def read(self, log: Log) -> None:
        """A fetch near the tail: taken at once, or by a reader that takes its time."""
        if not log.batches:
            return
        back = (
            self.random.randrange(60) if self.random.random() < 0.8 else self.random.randrange(4000)
        )
        offset = max(log.start, log.batches[0].base, log.end - back)
        most = int(2 ** (self.random.random() * 18))
        if self.random.random() < 0.3:
            self.send(log, offset, most)
            return
        hit = self.cache.lookup(log.slot, offset, log.end, most, True)
        if hit is None:
            self.missed += 1
            return
        reader = Reader(hit, self.expect(log, offset, hit))
        if self.random.random() < 0.7 or len(self.readers) == READERS:
            self.take(reader, FOREVER)
            return
        if self.random.random() < 0.8:
            hit.on_reclaim = lambda _: self.copy_out(reader)
        self.readers.append(reader)

    def send(self, log: Log, offset: int, most: int) -> None:
        """A fetch whose answer is given to the kernel in C, which may take all of it or a part."""
        wanted = log.slot, offset, log.end, most
        _, *found = self.cache.sender.find_all(wanted, FOREVER, False)
        (size_bytes,), (next_offset,), *_ = found
        if size_bytes <= 0:
            self.missed += 1
            return
        expected = self.expect(log, offset, Span(next_offset, size_bytes, False))
        sent_bytes = self.cache.sender.send(self.socket, b"<>", [1])
        got = os.read(self.socket_end, sent_bytes) if sent_bytes else b""
        if sent_bytes < len(expected) + 2:
            (hit,) = self.cache.sender.hold()
            got += (b"<" + b"".join(hit.views) + b">")[sent_bytes:]
            hit.release()
            self.parted += 1
        assert got == b"<" + expected + b">"
        self.served_bytes += len(expected)
        self.sent_bytes += sent_bytes

    def take(self, reader: Reader, most: int) -> None:
        """The reader's socket takes so many bytes more: they must be the truth's, whatever has happened since."""
        rest = b"".join(reader.hit.views)[reader.taken :][:most]
        assert rest == reader.expected[reader.taken : reader.taken + len(rest)]
        reader.taken += len(rest)
        self.served_bytes += len(rest)
        if reader.taken == len(reader.expected):
            reader.hit.release()
            reader.dead = True

    def copy_out(self, reader: Reader) -> None:
        """The arena wants the block: the rest is copied, and compared, before the pin goes."""
        self.reclaims += 1
        self.take(reader, FOREVER)

    def serve(self) -> None:
        """Each waiting reader takes a little; one in a hundred dies where it stands."""
        for reader in self.readers:
            if reader.dead:
                continue
            if self.random.random() < 0.01:
                reader.hit.release()
                reader.dead = True
            else:
                self.take(reader, self.random.randrange(4000))
        self.readers = [reader for reader in self.readers if not reader.dead]

    def step(self) -> None:
        """One thing happens; the partitions' rates are of all sizes."""
        i = min(int(self.random.paretovariate(0.5)) - 1, PARTITIONS - 1)
        if i == PARTITIONS - 1:
            i = self.random.randrange(PARTITIONS)
        log, what = self.logs[i], self.random.random()
        if what < 0.5:
            self.produce(log)
        elif what < 0.95:
            self.read(log)
        elif what < 0.993:
            self.serve()
        elif what < 0.996:
            self.truncate(log, told=what < 0.9945)
        elif what < 0.9965:
            self.move_start(log)
        elif what < 0.9968:
            self.recreate(i)
        elif what < 0.997:
            used_bytes = self.cache.used_bytes
            self.cache.evict_to(used_bytes - used_bytes // 8)
        else:
            self.serve()

    def finish(self) -> None:
        """All readers go; nothing may be left pinned."""
        for reader in self.readers:
            self.take(reader, FOREVER)
        self.readers.clear()
        assert all(bytes(memory) == written for memory, written in self.loans)
        self.loans.clear()
        os.close(self.socket)
        os.close(self.socket_end)
        statistics = self.cache.statistics()
        assert (
            statistics.pins
            == statistics.limbo_blocks
            == statistics.pinned_bytes
            == statistics.lent_bytes
            == 0
        )
        self.cache.check()
