"""Processes that share an arena and are killed at random: `python -m tests.blockcache.sharing --readers 4 --kills 200`.

Owns the processes, which it forks: a keeper that inserts, truncates, moves the log start and evicts, and readers that
look up, hold what they found for a while, copy it, send it. Every byte is compared with what `build_batch` gives for
the offset and epoch that stand before it. Invariant: whoever finds a wrong byte ends with WRONG, which ends the run.
Prints what it counted as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from blockcache._pyfastcache import ffi

from blockcache.arena_file import HOLDERS, ArenaError, ArenaMemory, open_memory
from blockcache.cache import BlockCache
from blockcache.errors import ArenaTorn, StaleSlot
from tests.kit.cache_batches import FOREVER, HEADER, TOPIC, build_batch, insert

if TYPE_CHECKING:
    from blockcache.arena import Hit

SIZE = 512 * 1024
PARTITIONS = 4
SIZES = (200, 700, 3000, 9000)
"""Of a batch, by its offset and epoch: what a reader must know to tell a right one."""
WRONG, TORN, REFUSED, CLOSED = 70, 71, 72, 73
"""Exit codes: of a reader that came between two keepers, CLOSED."""
CHANGES_AT = ffi.offsetof("fc_arena", "changes")
HELD_MAX = 6
END_MAX, EPOCHS = 300, 8
"""Logs begin anew at END_MAX, and epochs at EPOCHS, so that each batch is built once."""


class Board:
    """How far each process is, one counter for each, and the keeper's slots, in memory that all share."""

    def __init__(self) -> None:
        words = memoryview(mmap.mmap(-1, 4096)).cast("Q")
        self._words, self.slots = words[:HOLDERS], words[HOLDERS : HOLDERS + PARTITIONS]

    def add(self, holder: int) -> None:
        """One step more."""
        self._words[holder] += 1

    def wait_for(self, holder: int, more: int, pid: int) -> bool:
        """Until the process has done `more` steps. False: it has ended."""
        end, descriptor = self._words[holder] + more, os.pidfd_open(pid)
        try:
            while self._words[holder] < end:
                if select.select([descriptor], [], [], 0.001)[0]:
                    return False
        finally:
            os.close(descriptor)
        return True

    def total(self) -> int:
        """Of all."""
        return sum(self._words)


def size_of(offset: int, epoch: int) -> int:
    """Of the batch at this offset."""
    return SIZES[random.Random(offset * 31 + epoch).randrange(len(SIZES))]


@cache
def build(offset: int, epoch: int) -> bytes:
    """The batch at this offset."""
    return build_batch(offset, epoch=epoch, size=size_of(offset, epoch))


def compare(found: bytes, first_offset: int) -> None:
    """Ends the process unless these are whole batches from `first_offset` on."""
    at, offset = 0, first_offset
    while at < len(found):
        base, epoch = HEADER.unpack_from(found, at)[0], HEADER.unpack_from(found, at)[2]
        expected = build(offset, epoch)
        if base != offset or found[at : at + len(expected)] != expected:
            print(f"wrong bytes at {offset}", file=sys.stderr)
            os._exit(WRONG)
        at, offset = at + len(expected), offset + 1


class Reader:
    """What a reader does until it is killed."""

    def __init__(self, cache: BlockCache, source: random.Random, board: Board) -> None:
        self._cache = cache
        self._random = source
        self._held: list[tuple[Hit, bytes]] = []
        self._slots = board.slots
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)

    def step(self) -> None:
        """One lookup, or more."""
        slot = self._slots[self._random.randrange(PARTITIONS)]
        start, end = self._cache.tail(slot)
        if end <= start:
            return
        offset = self._random.randrange(max(start, end - 200), end)
        kind = self._random.random()
        if kind < 0.5:
            self._hold(slot, offset)
        elif kind < 0.8:
            self._send(slot, offset)
        else:
            self._ask(slot, offset)

    def _hold(self, slot: int, offset: int) -> None:
        hit = self._cache.lookup(slot, offset, FOREVER, self._random.choice((1, 5000, 60000)))
        if hit is not None:
            found = b"".join(hit.views)
            compare(found, offset)
            self._held.append((hit, found))
        while len(self._held) > HELD_MAX or (self._held and self._random.random() < 0.3):
            former, seen = self._held.pop(self._random.randrange(len(self._held)))
            if b"".join(former.views) != seen:
                print("held bytes have changed", file=sys.stderr)
                os._exit(WRONG)
            former.release()

    def _send(self, slot: int, offset: int) -> None:
        sender = self._cache.sender
        wanted = (slot, offset, FOREVER, 20000) + (slot, offset, FOREVER, 9000) * 20
        sizes = sender.find_all(wanted, 40000, False).sizes
        if not sender.hits:
            return
        found = [size for size in sizes if size > 0]
        whole = sum(found) + 1
        cuts = [0] * sender.hits
        sent = sender.send(self._pipe[1], b"|", cuts)
        got = os.read(self._pipe[0], 1 << 20) if sent > 0 else b""
        rest = b"".join(b"".join(hit.views) for hit in self._keep(sender.hold()))
        bytes_of_hits = got[:-1] if sent == whole else got + rest[max(0, sent) :]
        at = 0
        for size in found:
            compare(bytes_of_hits[at : at + size], offset)
            at += size

    def _keep(self, hits: list[Hit]) -> list[Hit]:
        for hit in hits:
            self._held.append((hit, b"".join(hit.views)))
        return hits

    def _ask(self, slot: int, offset: int) -> None:
        cache = self._cache
        head = cache.peek_head(slot, offset)
        if head is not None:
            epoch = HEADER.unpack_from(head)[2]
            if head != build(offset, epoch)[:61]:
                print(f"wrong head at {offset}", file=sys.stderr)
                os._exit(WRONG)
        if cache.contiguous_end(slot, offset) < offset or cache.statistics().pins < 0:
            os._exit(WRONG)
        cache.age_bytes(slot, offset)
        cache.span(slot, offset, FOREVER, 100000)


def read_until_killed(fd: int, holder: int, seed: int, board: Board) -> NoReturn:
    """The process of a reader."""
    try:
        try:
            cache = BlockCache.attach(ArenaMemory(os.dup(fd)), holder)
        except ArenaError:
            os._exit(CLOSED)
        reader = Reader(cache, random.Random(seed), board)
        while not cache._a.torn:
            with contextlib.suppress(StaleSlot):
                reader.step()
            board.add(holder)
        os._exit(TORN)
    except ArenaTorn:
        os._exit(TORN)


class Writer:
    """What a keeper does. `ends` and `epochs` are of each partition."""

    def __init__(self, cache: BlockCache, source: random.Random, board: Board) -> None:
        self.cache = cache
        self._random = source
        self._board = board
        self.slots = [cache.open(TOPIC, i) for i in range(PARTITIONS)]
        for place, slot in enumerate(self.slots):
            board.slots[place] = slot
        tails = [cache.tail(slot)[1] for slot in self.slots]
        self.ends = [max(0, end) for end in tails]
        self.epochs = [max(0, cache.last_epoch(slot)) for slot in self.slots]
        self._held: list[Hit] = []

    def step(self) -> None:
        """Insertions, and one of the rarer things."""
        place = self._random.randrange(PARTITIONS)
        slot, kind = self.slots[place], self._random.random()
        run = b""
        for _ in range(self._random.randrange(1, 12)):
            run += build(self.ends[place], self.epochs[place])
            self.ends[place] += 1
        insert(self.cache, slot, run)
        if self.ends[place] > END_MAX - 12:
            self.cache.drop(slot)
            self.slots[place] = self._board.slots[place] = self.cache.open(TOPIC, place)
            self.ends[place] = 0
        elif kind < 0.1 and self.ends[place] > 30:
            self.ends[place] -= self._random.randrange(30)
            self.epochs[place] = (self.epochs[place] + 1) % EPOCHS
            self.cache.truncate(slot, self.ends[place])
            self.cache.expect(slot, self.ends[place])
        elif kind < 0.2:
            self.cache.advance_start(slot, max(0, self.ends[place] - 100))
        elif kind < 0.3:
            self.cache.evict_to(self.cache.used_bytes // 2)
        elif kind < 0.6:
            hit = self.cache.lookup(slot, self.ends[place] - 1, FOREVER, 1)
            self._held += [hit] if hit is not None else []
        while len(self._held) > 3:
            self._held.pop(0).release()


def open_keeper(fd: int) -> BlockCache:
    """The cache, taken over or new. Ends the process where it cannot be had."""
    cache = BlockCache(SIZE, ArenaMemory(os.dup(fd)), pin_limit_bytes=SIZE // 8)
    if cache.is_pending:
        if not cache.try_lock():
            os._exit(WRONG)
        left = cache.inspect_left()
        if left.refusal == "unfinished":
            os._exit(REFUSED)
        if left.refusal:
            print(left, file=sys.stderr)
            os._exit(WRONG)
        cache.take_over(left)
    cache.share()
    return cache


def keep_until_killed(fd: int, seed: int, board: Board) -> NoReturn:
    """The process of a keeper."""
    try:
        writer = Writer(open_keeper(fd), random.Random(seed), board)
        writer.cache.check()
        while True:
            writer.step()
            board.add(0)
    except ArenaTorn:
        os._exit(TORN)


class Run:
    """All processes: this one watches. `living`: their ids by holder."""

    def __init__(self, readers: int, seed: int) -> None:
        self.readers = range(1, readers + 1)
        self.memory = open_memory()
        self.board = Board()
        for offset in range(END_MAX):
            for epoch in range(EPOCHS):
                build(offset, epoch)
        self.counts: Counter[str] = Counter()
        self.living: dict[int, int] = {}
        self.random = random.Random(seed)

    def start(self, holder: int) -> None:
        """Forks the process of a holder."""
        seed, pid = self.random.getrandbits(40), os.fork()
        if pid == 0:
            try:
                if holder == 0:
                    keep_until_killed(self.memory.fd, seed, self.board)
                read_until_killed(self.memory.fd, holder, seed, self.board)
            except BaseException as failure:
                print(f"holder {holder}: {failure!r}", file=sys.stderr)
                os._exit(WRONG)
        self.living[holder] = pid

    def start_readers(self) -> None:
        """Those that are not there, or were refused."""
        for holder in self.readers:
            descriptor = os.pidfd_open(self.living[holder]) if holder in self.living else -1
            if descriptor >= 0 and select.select([descriptor], [], [], 0)[0]:
                self.counts["closed"] += self.reap(holder) == CLOSED
            if descriptor >= 0:
                os.close(descriptor)
            if holder not in self.living:
                self.start(holder)

    def reap(self, holder: int) -> int:
        """What the process ended with: its exit code, or minus the signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.living.pop(holder), 0)[1])
        if code == WRONG:
            self.stop()
            raise SystemExit(f"holder {holder} has found what is not right")
        return code

    def kill(self, holder: int) -> None:
        """At a random moment of its work."""
        self.board.wait_for(holder, self.random.randrange(1, 6), self.living[holder])
        if holder == 0 and self.random.random() < 0.5:
            self.wait_for_change()
        else:
            time.sleep(self.random.random() * 0.004)  # where within its work, not whether
        os.kill(self.living[holder], signal.SIGKILL)
        self.counts["killed"] += self.reap(holder) == -signal.SIGKILL

    def wait_for_change(self) -> None:
        """Until the keeper stands within a change, or has ended."""
        descriptor = os.pidfd_open(self.living[0])
        while os.pread(self.memory.fd, 1, CHANGES_AT)[0] % 2 == 0:
            os.sched_yield()
            if select.select([descriptor], [], [], 0)[0]:
                break
        os.close(descriptor)

    def stop(self) -> None:
        """Ends all."""
        for pid in self.living.values():
            os.kill(pid, signal.SIGKILL)
        for holder in list(self.living):
            os.waitpid(self.living.pop(holder), 0)


def kill_readers(run: Run, kills: int) -> None:
    """One keeper, here, which the deaths must not disturb."""
    cache = BlockCache(SIZE, ArenaMemory(os.dup(run.memory.fd)), pin_limit_bytes=SIZE // 8)
    cache.share()
    writer = Writer(cache, run.random, run.board)
    for _ in range(30):
        writer.step()
    for holder in run.readers:
        run.start(holder)
    while run.counts["killed"] < kills:
        for _ in range(run.random.randrange(1, 30)):
            writer.step()
        holder = run.random.choice(list(run.readers))
        run.board.wait_for(holder, 1, run.living[holder])
        run.counts["refused_to_release"] += not cache.release_holder(holder)
        os.kill(run.living[holder], signal.SIGKILL)
        run.counts["killed"] += run.reap(holder) == -signal.SIGKILL
        run.counts["pins_released"] += cache._a.pins_of[holder]
        if not cache.release_holder(holder) or cache._a.pins_of[holder]:
            raise SystemExit("a dead reader's pins stay")
        cache.check()
        run.start(holder)
    statistics = cache.statistics()
    run.stop()
    for holder in run.readers:
        cache.release_holder(holder)
    for hit in writer._held:
        hit.release()
    cache.evict_to(0)
    cache.check()
    if cache.used_bytes or cache.statistics().pins:
        raise SystemExit("something stays pinned")
    run.counts["limbo"] = statistics.limbo_entered
    run.counts["evicted"] = statistics.evicted_blocks_room + statistics.evicted_blocks_water


def kill_keepers(run: Run, kills: int) -> None:
    """Keepers die, and readers now and then; an arena that was left half changed makes way for another one."""
    run.start(0)
    run.board.wait_for(0, 5, run.living[0])
    while run.counts["killed"] < kills:
        run.start_readers()
        if run.random.random() < 0.2:
            run.kill(run.random.choice(list(run.readers)))
        if run.living.get(0) is not None:
            run.kill(0)
        run.start(0)
        if run.board.wait_for(0, 2, run.living[0]):
            run.counts["taken_over"] += 1
            continue
        if run.reap(0) != REFUSED:
            raise SystemExit("a keeper ended by itself")
        run.counts["torn"] += 1
        for holder in list(run.living):
            code = run.reap(holder)
            if code not in (TORN, CLOSED):
                raise SystemExit(f"a reader of a torn arena ended with {code}")
        run.memory.renew()
        run.start(0)
        run.board.wait_for(0, 5, run.living[0])
    run.stop()


def main() -> int:
    """Runs one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--keepers", action="store_true", help="kill keepers, not readers alone")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run = Run(options.readers, options.seed)
    try:
        (kill_keepers if options.keepers else kill_readers)(run, options.kills)
    finally:
        run.stop()
    run.counts["steps"] = run.board.total()
    print(json.dumps(run.counts))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArenaError as failure:
        sys.exit(str(failure))
