"""The cache against a plain list per partition, in a tiny arena: every step, every byte of every answer.

The model knows the rules of insert and lookup but not of eviction: it drops what the cache no longer has, and
the bytes so lost must be exactly those that the cache says it evicted.
"""

import struct
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
from blockcache._pyfastcache import ffi
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockcache.arena import Hit
from blockcache.cache import BlockCache
from tests.kit.cache_batches import append, build_batch, find_batch

HEAD_BYTES = ffi.sizeof("fc_block")

PARTITIONS = 3
SMALL = st.integers(0, 2)
SLOTS = st.integers(0, PARTITIONS - 1)
OFFSETS = st.integers(0, 90)


@dataclass(frozen=True)
class Entry:
    """A stored batch."""

    covers_from: int
    base: int
    end: int
    epoch: int
    producer_id: int
    data: bytes
    admitted: int


@dataclass
class Partition:
    """What is stored of one partition, ascending."""

    slot: int
    log_start: int = 0
    entries: list[Entry] = field(default_factory=list)

    def end_before(self, base: int) -> int:
        """The end of the last batch that starts below `base`, or -1."""
        return max((e.end for e in self.entries if e.base < base), default=-1)

    def covering(self, offset: int) -> list[Entry]:
        """The entries from the one that answers `offset`, as far as they are contiguous."""
        rest = [e for e in self.entries if e.end > offset]
        if not rest or rest[0].covers_from > offset:
            return []
        run = [rest[0]]
        for entry in rest[1:]:
            if entry.covers_from != run[-1].end:
                break
            run.append(entry)
        return run

    def insert(self, new: Entry, limit_bytes: int) -> str:
        """One batch by the rules: "store", "keep", "skip" or "conflict"."""
        if new.end <= self.log_start or len(new.data) > limit_bytes:
            return "skip"
        clipped = max(new.covers_from, self.end_before(new.base))
        for i, e in enumerate(self.entries):
            if e.base < new.end and new.base < e.end:
                same = (e.base, e.end, e.epoch, e.producer_id)
                if same != (new.base, new.end, new.epoch, new.producer_id):
                    return "conflict"
                self.entries[i] = replace(e, covers_from=min(e.covers_from, clipped))
                return "keep"
        for e in self.entries:
            if e.covers_from < new.end and new.base < e.base:
                return "conflict" if new.epoch > e.epoch else "keep"
        self.entries.append(replace(new, covers_from=clipped))
        self.entries.sort(key=lambda e: e.base)
        return "store"


class CacheMachine(RuleBasedStateMachine):
    """Random operations; `held` are hits with the bytes that they must still show, `lent` is memory in use."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Hit, bytes]] = []
        self.lent: list[tuple[memoryview, bytes]] = []
        self.evicted_bytes = 0

    @initialize(shared_bytes=st.sampled_from([0, 4096, 8192]))
    def begin(self, shared_bytes: int) -> None:
        self.cache = BlockCache(
            64 * 1024,
            max_partitions=PARTITIONS,
            max_ghosts=4,
            index_nodes=32,
            block_min_bytes=1024 if shared_bytes == 0 else 4096,
            block_max_bytes=1024 if shared_bytes == 0 else 8192,
            shared_block_bytes=shared_bytes,
            pin_limit_bytes=12 * 1024,
        )
        self.partitions = [Partition(self.cache.open(bytes(16), i)) for i in range(PARTITIONS)]

    def forget_evicted(self) -> None:
        lost = 0
        for p in self.partitions:
            stored = [e for e in p.entries if self.is_stored(p, e)]
            lost += sum(len(e.data) for e in p.entries) - sum(len(e.data) for e in stored)
            p.entries = stored
        evicted_bytes = self.cache.statistics().evicted_bytes
        assert lost == evicted_bytes - self.evicted_bytes
        self.evicted_bytes = evicted_bytes

    def is_stored(self, p: Partition, e: Entry) -> bool:
        found = find_batch(self.cache, p.slot, e.base)
        return found is not None and found[1] == e.base

    def let_go(self, hit: Hit) -> None:
        """Before the release, and after whatever was evicted meanwhile, the bytes are those of the lookup."""
        i = next(i for i, (held, _) in enumerate(self.held) if held is hit)
        assert b"".join(hit.views) == self.held.pop(i)[1]
        hit.release()

    @rule(
        which=SLOTS,
        first=OFFSETS,
        covered=SMALL,
        epoch=st.integers(0, 1),
        producer_id=st.integers(0, 1),
        shape=st.lists(
            st.tuples(SMALL, st.integers(1, 4), st.integers(61, 1500)), min_size=1, max_size=4
        ),
    )
    def insert(
        self,
        which: int,
        first: int,
        covered: int,
        epoch: int,
        producer_id: int,
        shape: list[tuple[int, int, int]],
    ) -> None:
        """A run, batch by batch in single calls, so that each is compared with what was there just then."""
        p, cache = self.partitions[which], self.cache
        end, covers_from = first, max(0, first - covered)
        for gap, count, size in shape:
            base = end + gap
            end = base + count
            data = build_batch(
                base, count, epoch=epoch, size=size, producer_id=producer_id, seed=size
            )
            outcome = cache.insert(p.slot, b"xx" + data + b"yy", 2, 2 + size, covers_from)
            new = Entry(
                covers_from, base, end, epoch, producer_id, data, cache.peek_admitted_bytes()
            )
            before = p.insert(new, cache.batch_max_bytes)
            assert outcome.stored_bytes == (size if before == "store" else 0), before
            assert outcome.conflict_offset == (base if before == "conflict" else -1)
            assert outcome.next_offset == (base if before == "conflict" else end)
            self.forget_evicted()
            if before == "conflict":
                break
            covers_from = end

    @rule(which=SLOTS, first=OFFSETS, batches=st.integers(2, 8), size=st.integers(61, 700))
    def insert_at_once(self, which: int, first: int, batches: int, size: int) -> None:
        """A run in one call, where nothing of it is stored yet: it comes in whole."""
        p = self.partitions[which]
        if first < p.log_start or any(
            e.end > first and e.covers_from < first + batches for e in p.entries
        ):
            return
        clock, covers_from = self.cache.peek_admitted_bytes(), first
        datas = [build_batch(first + i, size=size) for i in range(batches)]
        outcome = self.cache.insert(p.slot, b"".join(datas), 0, batches * size, first)
        assert outcome == (batches * size, first, first + batches, -1, 0, batches)
        for i, data in enumerate(datas):
            clock += size
            p.entries.append(Entry(covers_from, first + i, first + i + 1, 0, -1, data, clock))
            covers_from = first + i + 1
        p.entries.sort(key=lambda e: e.base)
        self.forget_evicted()

    @rule(
        which=SLOTS,
        first=OFFSETS,
        count=st.integers(1, 4),
        epoch=st.integers(0, 1),
        size=st.integers(61, 700),
    )
    def append(self, which: int, first: int, count: int, epoch: int, size: int) -> None:
        """A batch as it was sent, with its place beside: it comes in placed, or not at all."""
        p, cache = self.partitions[which], self.cache
        cache.eliminate()
        self.forget_evicted()
        sent = build_batch(0, count, epoch=-1, size=size)
        placed = struct.pack(">q", first) + sent[8:12] + struct.pack(">i", epoch) + sent[16:]
        ends = append(cache, p.slot, b"xx" + sent + b"yy", 2, 2 + size, first, epoch)
        new = Entry(first, first, first + count, epoch, -1, placed, cache.peek_admitted_bytes())
        if ends is None:
            entries, room = list(p.entries), cache.used_bytes <= cache.high_water_bytes
            assert not room or p.insert(new, cache.batch_max_bytes) != "store"
            p.entries = entries
        else:
            assert p.insert(new, cache.batch_max_bytes) == "store"
            assert ends == cache.contiguous_end(p.slot, first) >= first + count
        self.forget_evicted()

    @rule(
        which=SLOTS,
        first=OFFSETS,
        count=st.integers(1, 4),
        epoch=st.integers(0, 1),
        size=st.integers(61, 1500),
        acknowledged=st.booleans(),
        keep=st.booleans(),
    )
    def receive(
        self,
        which: int,
        first: int,
        count: int,
        epoch: int,
        size: int,
        acknowledged: bool,
        keep: bool,
    ) -> None:
        """A request into lent memory: its batch comes in where it lies, however full the cache is, or not at all."""
        p, cache = self.partitions[which], self.cache
        memory = cache.reserve(size + 20)
        self.forget_evicted()
        if memory is None:
            return
        sent = build_batch(0, count, epoch=-1, size=size)
        memory[:] = b"h" * 10 + sent + b"t" * 10
        if acknowledged:
            placed = struct.pack(">q", first) + sent[8:12] + struct.pack(">i", epoch) + sent[16:]
            ends = append(cache, p.slot, memory, 10, 10 + size, first, epoch)
            new = Entry(first, first, first + count, epoch, -1, placed, cache.peek_admitted_bytes())
            stored, entries = bytes(memory[10:-10]), list(p.entries)
            assert (p.insert(new, cache.batch_max_bytes) == "store") == (ends is not None)
            assert stored == (placed if ends is not None else sent)
            p.entries = p.entries if ends is not None else entries
            self.forget_evicted()
        if keep:
            self.lent.append((memory, bytes(memory)))

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        memory, written = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        assert memory == written

    @rule(
        which=SLOTS,
        offset=OFFSETS,
        limit=st.one_of(st.just(1000), OFFSETS),
        max_bytes=st.integers(0, 4000),
        one=st.booleans(),
        keep=st.booleans(),
        releases=st.booleans(),
    )
    def lookup(
        self,
        which: int,
        offset: int,
        limit: int,
        max_bytes: int,
        one: bool,
        keep: bool,
        releases: bool,
    ) -> None:
        p = self.partitions[which]
        callback = self.let_go if releases else None
        hit = self.cache.lookup(p.slot, offset, limit, max_bytes, one, callback)
        run = p.covering(offset)
        if not run and self.cache.tail(p.slot)[1] != offset:
            assert hit is None
            return
        taken = b""
        next_offset = offset
        for e in run:
            if e.end > limit or (len(taken) + len(e.data) > max_bytes and not (one and not taken)):
                break
            taken, next_offset = taken + e.data, e.end
        assert hit is not None
        assert (b"".join(hit.views), hit.size_bytes, hit.next_offset) == (
            taken,
            len(taken),
            next_offset,
        )
        self.held.append((hit, taken))
        if not keep:
            self.let_go(hit)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.let_go(data.draw(st.sampled_from(self.held))[0])

    @rule(which=SLOTS, offset=OFFSETS)
    def truncate(self, which: int, offset: int) -> None:
        p = self.partitions[which]
        self.cache.truncate(p.slot, offset)
        p.entries = [e for e in p.entries if e.end <= offset]
        assert self.cache.tail(p.slot)[1] <= offset

    @rule(which=SLOTS, ahead=SMALL)
    def advance_start(self, which: int, ahead: int) -> None:
        p = self.partitions[which]
        p.log_start += ahead
        self.cache.advance_start(p.slot, p.log_start)
        p.entries = [e for e in p.entries if e.end > p.log_start]
        if ahead and p.entries and p.entries[0].covers_from < p.log_start:
            e = p.entries[0]
            p.entries[0] = replace(e, covers_from=max(e.covers_from, min(e.base, p.log_start)))

    @rule(which=SLOTS)
    def drop(self, which: int) -> None:
        self.cache.drop(self.partitions[which].slot)
        self.partitions[which] = Partition(self.cache.open(bytes(16), which))

    @rule(kibibytes=st.integers(0, 48))
    def evict_to(self, kibibytes: int) -> None:
        self.cache.evict_to(kibibytes * 1024)
        statistics = self.cache.statistics()
        assert statistics.block_bytes_used <= kibibytes * 1024 or statistics.blocks == 0
        self.forget_evicted()

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        statistics = self.cache.statistics()
        entries = [e for p in self.partitions for e in p.entries]
        assert statistics.entries == len(entries)
        assert statistics.live_record_bytes == sum(len(e.data) for e in entries)
        assert statistics.pins == sum(hit.pins for hit, _ in self.held) + len(self.lent)
        units = [(HEAD_BYTES + len(memory) + 1023) // 1024 for memory, _ in self.lent]
        assert statistics.lent_bytes == 1024 * sum(units) <= statistics.lent_limit_bytes
        assert statistics.pinned_bytes <= statistics.pin_limit_bytes
        for p in self.partitions:
            for e in p.entries:
                assert find_batch(self.cache, p.slot, e.base) == (e.covers_from, e.base, e.end - 1)
                assert self.cache.age_bytes(
                    p.slot, e.base
                ) == self.cache.peek_admitted_bytes() - e.admitted + len(e.data)
                assert (
                    self.cache.contiguous_end(p.slot, e.covers_from) == p.covering(e.base)[-1].end
                )

    @invariant()
    def agrees_on_edges(self) -> None:
        for p in self.partitions:
            starts = [e.covers_from for e in p.entries if p.end_before(e.base) != e.covers_from]
            tail = self.cache.tail(p.slot)
            if p.entries:
                assert tail == (starts[-1], p.entries[-1].end)
                assert self.cache.last_epoch(p.slot) == p.entries[-1].epoch
            else:
                assert tail[0] == tail[1] and self.cache.last_epoch(p.slot) == -1

    def teardown(self) -> None:
        while self.held:
            self.let_go(self.held[0][0])
        self.lent.clear()
        statistics = self.cache.statistics()
        assert statistics.pins == statistics.limbo_blocks == statistics.pinned_bytes == 0
        assert statistics.lent_bytes == statistics.reserved_blocks == 0
        self.cache.check()
        self.cache.close()


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_cache_is_its_model = CacheMachine.TestCase
