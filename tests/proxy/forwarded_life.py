"""The life of a few partitions whose batches are produced over several connections, and a plain reference beside it.

Owns the reference: the docstrings of `forwarded`, `store`, `producer_state` and `stored_runs` in plain Python, with a
dictionary of batches for a cache. A life is long and random, since a producer is believed after five batches only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from random import Random
from struct import pack
from types import SimpleNamespace
from typing import Any

from proxy.partitions._rows import lib

from protocol.batch import scan_batches
from protocol.primitives import build_uvarint
from protocol.produce_rows import scan_produced, scan_request
from proxy.accounting.stored_runs import StoredRuns
from proxy.partitions import store
from proxy.partitions.forwarded import forward_batches
from proxy.partitions.leader_state import REFRESH_EPOCH_S
from proxy.partitions.partition_row import NO_ROW, RUN_ROWS
from proxy.partitions.table import HOLE_PATIENCE_S
from proxy.partitions.transactions import Transactions
from tests.kit.cache_batches import read
from tests.protocol.batches import batch_v2, message_v1
from tests.proxy.followed_partition import LEADERS, QuietBroker, known
from tests.proxy.partitions.test_store_bytes import as_stored, said_to_be

NAMED, BY_ID = 9, 13
MOST, STEPS, INDEXES = 10_000, 250, 3
GZIP, ZSTD, TRANSACTIONAL = 1, 4, 0x10
SEQUENCES, RETAINED, PRODUCERS = 1 << 31, 5, 3
APPENDED_MS = 1_800_000_000_000
FIELDS = (
    *("epoch", "led_epoch", "high_watermark", "last_stable_offset", "log_start_offset"),
    *("frozen", "is_followed", "zstd", "tail", "probe_offset", "acknowledged_end"),
    *("produced_from", "young_from"),
)


class Life:
    """Two topics with equal partition numbers, several connections, and the reference beside."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.broker = Truncating()
        self.lines: list[tuple[object, ...]] = []
        if rng.random() < 0.7:
            log: Any = SimpleNamespace(put=lambda line: self.lines.append(line[3:9]))
            queue_lines = 4 * rng.choice((2, 100))
            self.broker.stored_runs = StoredRuns(log, self.broker.cache, queue_lines, RUN_ROWS)
        self.runs = Runs(self.broker.stored_runs)
        self.told: list[tuple[Mirror, str]] = []
        self.counts: Counter[str] = Counter()
        self.mirrors: dict[tuple[str, int], Mirror] = {}
        self.all: list[Mirror] = []
        self.in_flight: list[Request] = []
        self.ids = 0
        for name in ("a", "b"):
            self.topic_is_created(name)

    # -- the world around --------------------------------------------------------------------------

    def topic_is_created(self, name: str = "a") -> None:
        """Once more: its partitions are others from now on, and batches of the old ones are in flight."""
        broker = self.broker
        self.ids += 1
        replaced = broker.topics.learn(name, bytes((self.ids,)) * 16, LEADERS)
        for partition in [one for one in broker.partitions if one.topic is replaced]:
            broker.partitions.forget(partition)
        topic = known(broker.topics.find(name))
        topic.fidelity.learn(False)
        topic.fidelity.trust(0)
        for index in range(INDEXES):
            self.follow(name, index)

    def follow(self, name: str, index: int) -> None:
        partition = known(
            self.broker.partitions.follow(known(self.broker.topics.find(name)), index)
        )
        partition.row.ledger.limit = PRODUCERS
        partition.leader_state.learn(1, 0, 0, 0, self.broker.clock_s + 1)
        partition.leader_state.frozen = False
        partition.tail = self.rng.choice((0, 0, -1))
        mirror = self.mirrors[name, index] = Mirror(partition)
        self.all.append(mirror)
        if self.rng.random() < 0.8:
            mirror.show(0, self.broker.clock_s)

    def pick(self) -> Mirror:
        return self.mirrors[self.rng.choice("ab"), self.rng.randrange(INDEXES)]

    def partition_is_forgotten(self) -> None:
        name, index = self.rng.choice("ab"), self.rng.randrange(INDEXES)
        self.broker.partitions.forget(self.mirrors[name, index].partition)
        self.mirrors[name, index].stored.clear()
        self.follow(name, index)

    def epoch_changes(self) -> None:
        mirror = self.pick()
        partition = mirror.partition
        mirror.log_end = self.rng.randint(max(0, mirror.high_watermark), mirror.log_end)
        self.broker.invalidate(partition, mirror.log_end, "divergence")
        mirror.truncate(mirror.log_end)
        epoch, shown = partition.leader_state.epoch + 1, max(0, mirror.high_watermark)
        partition.leader_state.learn(epoch, shown, shown, 0, self.broker.clock_s + 1)
        partition.leader_state.frozen = self.rng.random() < 0.2

    def high_watermark_grows(self) -> None:
        mirror = self.pick()
        shown = self.rng.randint(max(0, mirror.high_watermark), mirror.log_end)
        state = mirror.partition.leader_state
        state.learn(state.epoch, shown, shown, 0, self.broker.clock_s + 1)
        mirror.show(shown, self.broker.clock_s)

    def offsets_are_forgotten(self) -> None:
        self.pick().partition.leader_state.high_watermark = -1

    def frozen_or_not(self) -> None:
        mirror = self.pick()
        mirror.partition.leader_state.frozen = not mirror.partition.leader_state.frozen

    def tail_moves(self) -> None:
        mirror = self.pick()
        mirror.partition.tail = self.rng.choice((mirror.partition.tail, mirror.log_end, -1))

    def topic_is_believed(self) -> None:
        fidelity = known(self.broker.topics.find(self.rng.choice("ab"))).fidelity
        fidelity.learn(self.rng.random() < 0.1)
        for codec in (0, self.rng.choice((GZIP, ZSTD))):
            fidelity.trust(codec)

    def generation_begins(self) -> None:
        known(self.broker.topics.find(self.rng.choice("ab"))).fidelity.begin_generation()

    def zstd_is_known(self) -> None:
        self.pick().partition.note_zstd()

    def gap_is_filled(self) -> None:
        """The replica fetcher saw all up to the end."""
        mirror = self.pick()
        start = self.rng.randint(0, mirror.log_end)
        for transactions in mirror.transactions:
            transactions.observed(b"", (), start, mirror.log_end)

    def time_passes(self) -> None:
        self.broker.clock_s += self.rng.choice((1, 5, REFRESH_EPOCH_S + 2))

    def waiter_comes_or_goes(self) -> None:
        partition = self.pick().partition
        if not partition.parked:
            partition.parked[Waiter()] = None
        else:
            partition.parked.clear()

    def runs_end(self) -> None:
        if self.broker.stored_runs is not None:
            self.broker.stored_runs.tick(0.0)
            self.runs.tick()

    # -- requests and responses --------------------------------------------------------------------

    def request_is_forwarded(self) -> None:
        if len(self.in_flight) > 6:
            return self.response_arrives()
        request = Request(self)
        for mirror in self.all:
            mirror.read_row()
        request.forward()
        self.in_flight.append(request)
        return None

    def response_arrives(self) -> None:
        if not self.in_flight:
            return
        request = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        answer, said = request.build_answer()
        for mirror in self.all:
            mirror.read_row()
        request.expect(said)
        if request.batches is not None:
            produced = known(scan_produced(answer, request.version))
            broker: Any = self.broker
            frame, now = request.frame, self.broker.clock_s
            store.admit_response(broker, frame, request.batches, answer, produced, now)
        self.check()

    def check(self) -> None:
        for mirror in self.all:
            mirror.check(self.broker)
        told = self.broker.told
        assert [(mirror.partition, what) for mirror, what in self.told] == told
        assert {name: count for name, count in self.counts.items() if count} == {
            name: count for name, count in self.broker.counters.produce.batches.items() if count
        }
        assert self.lines == self.runs.lines
        if self.broker.stored_runs is not None:
            assert len(self.broker.stored_runs) == len(self.runs.open)

    # -- what the reference does at a surprise -----------------------------------------------------

    def distrust(self, topic: Any) -> None:
        for mirror in self.mirrors.values():
            if mirror.partition.topic is topic:
                if mirror.produced_from >= 0:
                    mirror.truncate(mirror.produced_from)
                known_end = max(mirror.high_watermark, mirror.acknowledged_end)
                mirror.young_from = max(mirror.young_from, known_end)


class Truncating(QuietBroker):
    """Its `told` are the calls of the replica fetcher and the wake-ups, in order."""

    def __init__(self) -> None:
        super().__init__(8 << 20)
        self.told: list[tuple[object, str]] = []
        self.replica_fetcher: Any = SimpleNamespace(
            produced=lambda partition, _now: self.told.append((partition, "produced")),
            doubt=lambda partition: self.told.append((partition, "doubt")),
        )

    def invalidate(self, partition, from_offset, reason):
        self.cache.truncate(partition.slot, from_offset)
        partition.truncate(from_offset, partition.has_stored(self.cache))


class Waiter:
    def wake(self, partition):
        """Nothing to evaluate."""

    def note_acknowledged(self, partition):
        """Nothing to note."""


class Runs:
    """Runs of the access log, one dictionary entry for each, with the parts ahead of it: first offset, the one behind,
    bytes. All are small and soon after each other, so that a part goes on wherever its offsets do.
    """

    def __init__(self, product: StoredRuns | None) -> None:
        self.limit = product.limit if product is not None else 0
        self.open: dict[Any, list[list[int]]] = {}
        self.lines: list[tuple[object, ...]] = []
        self.due: deque[Any] = deque()

    def extend(self, partition: Any, first: int, following: int, size_bytes: int) -> bool:
        run = self.open.get(partition)
        if run is None or first < run[0][1]:
            return False
        if any(first < part[1] and part[0] < following for part in run[1:]):
            return False
        before = [part for part in run if part[1] == first]
        if not before and len(run) > lib.PT_AHEAD:
            return False
        if before:
            before[0][1:] = following, before[0][2] + size_bytes
        else:
            run[1:] = sorted([*run[1:], [first, following, size_bytes]])
        while len(run) > 1 and run[1][0] == run[0][1]:
            _, *ends = run.pop(1)
            run[0][1:] = ends[0], run[0][2] + ends[1]
        return True

    def add(self, partition: Any, first: int, following: int, size_bytes: int) -> None:
        if not self.limit or self.extend(partition, first, following, size_bytes):
            return
        if partition in self.open and following <= self.open[partition][0][0]:
            run = first, following, size_bytes
            self.lines.append((partition.topic.id, partition.index, *run, "produce"))
            return
        if partition in self.open:
            self.end(partition)
        elif len(self.open) >= self.limit:
            self.end(next(iter(self.open)))
        self.open[partition] = [[first, following, size_bytes]]

    def tick(self) -> None:
        if not self.due:
            self.due.extend(self.open)
        if self.due:
            self.end(self.due.popleft())

    def end(self, partition: Any) -> None:
        if partition in self.open:
            for run in self.open.pop(partition):
                self.lines.append((partition.topic.id, partition.index, *run, "produce"))


class Mirror:
    """A partition as it must be. `stored`: bytes by base offset; `log_end`: of the broker's log."""

    epoch: int
    led_epoch: int
    high_watermark: int
    log_start_offset: int
    frozen: bool
    is_followed: bool
    zstd: bool
    tail: int
    probe_offset: int
    acknowledged_end: int
    produced_from: int
    young_from: int
    proven_at: float

    def __init__(self, partition: Any) -> None:
        self.partition = partition
        self.stored: dict[int, tuple[int, bytes]] = {}
        self.log_end = 0
        self.producers: OrderedDict[int, list[int]] = OrderedDict()
        self.leader_epoch = -1
        self.alone = Transactions(100, HOLE_PATIENCE_S)
        self.read_row()

    @property
    def transactions(self) -> tuple[Transactions, Transactions]:
        return self.partition.transactions, self.alone

    def read_row(self) -> None:
        """Other events have changed the row; their own tests look at that."""
        for name in (*FIELDS, "proven_at"):
            setattr(self, name, getattr(self.partition.row, name))

    def show(self, stable: int, now: float) -> None:
        for transactions in self.transactions:
            transactions.shown(max(stable, self.high_watermark), stable, 0, now)

    def check(self, broker: QuietBroker) -> None:
        row = self.partition.row
        assert {name: getattr(self, name) for name in FIELDS} == {
            name: getattr(row, name) for name in FIELDS
        }
        known_producers = [row.ledger.producers[at] for at in range(row.ledger.count)]
        assert [(one.id, one.epoch, one.next_sequence) for one in known_producers] == [
            (number, epoch, following)
            for number, (epoch, following, _) in reversed(self.producers.items())
        ]
        product, alone = self.transactions
        assert (product.end, product.known_from) == (alone.end, alone.known_from)
        assert (product.statistics(), product.has_hole) == (alone.statistics(), alone.has_hole)
        assert row.has_gap == (product.statistics().pieces > row.ahead_count)
        assert not (row.has_gap and row.ahead_count)
        if row.is_followed:
            self.check_stored(broker)

    def check_stored(self, broker: QuietBroker) -> None:
        for base, (following, sent) in self.stored.items():
            found = read(broker.cache, self.partition.slot, base, following)
            assert found == sent, (base, found)
        if not self.stored:
            assert not self.partition.has_stored(broker.cache)

    def contiguous_end(self, offset: int) -> int:
        while offset in self.stored:
            offset = self.stored[offset][0]
        return offset

    def truncate(self, offset: int) -> None:
        self.stored = {base: one for base, one in self.stored.items() if one[0] <= offset}
        self.tail = min(self.tail, offset) if self.stored else -1
        self.produced_from = -1 if self.produced_from >= offset else self.produced_from
        self.alone.truncate(offset)

    def note(self, row: Any) -> str:
        """What a broker may take the batch for, as `ProducerLedger` says."""
        if row.producer_id < 0:
            return "fresh"
        if self.leader_epoch != self.epoch:
            self.leader_epoch = self.epoch
            self.producers.clear()
        epoch, following, forwarded = self.producers.pop(row.producer_id, (-1, -1, 0))
        if epoch != row.producer_epoch:
            epoch, following, forwarded = row.producer_epoch, -1, 0
        answer, ahead = "", (row.base_sequence - following) % SEQUENCES
        if following >= 0 and ahead > SEQUENCES // 2:
            answer = "resent"
        else:
            forwarded = 1 if following >= 0 and ahead else forwarded + 1
            following = (row.base_sequence + row.record_count) % SEQUENCES
        self.producers[row.producer_id] = [epoch, following, forwarded]
        if len(self.producers) > PRODUCERS:
            self.producers.popitem(last=False)
        return answer or ("fresh" if forwarded > RETAINED else "warm-up")


class Noted:
    """A batch in flight as the reference has it."""

    def __init__(self, mirror: Mirror, row: Any, sent: bytes) -> None:
        self.mirror, self.row, self.sent = mirror, row, sent
        self.check = mirror.note(row)
        self.epoch, self.high_watermark = mirror.epoch, mirror.high_watermark
        self.generation = mirror.partition.topic.fidelity.generation
        self.base = mirror.log_end
        mirror.log_end += max(1, row.last_delta + 1)

    def judge(self, generation: int, log_append_time: bool | None, codecs: set[int]) -> str:
        """ "as-sent", "stamped", "sample", or why nothing is stored."""
        mirror, row = self.mirror, self.row
        if row.magic < 2:
            return "old-format"
        if self.epoch < 0 or self.epoch != mirror.epoch or mirror.frozen or not mirror.is_followed:
            return "no-epoch"
        if self.check != "fresh":
            return self.check
        if self.base < max(0, self.high_watermark, mirror.log_start_offset):
            return "below-hw"
        if log_append_time is None or self.generation != generation:
            return "unlike"
        codec = row.attributes & 7
        if codec not in codecs:
            return "sample"
        is_other = log_append_time or row.attributes & 0x30 or (codec == ZSTD and not mirror.zstd)
        return "stamped" if is_other else "as-sent"


class Request:
    """One Produce, its frame, and the batches that the broker writes of it: the last one of a partition that it names
    twice counts (KafkaApis.handleProduceRequest: authorizedRequestInfo is a map, filled in the order of the request).
    """

    def __init__(self, life: Life) -> None:
        self.life, self.rng = life, life.rng
        self.version = self.rng.choice((NAMED, BY_ID))
        self.named: list[tuple[str, list[tuple[int, bytes]]]] = []
        for name in self.rng.sample("ab", 2) * self.rng.choice((1, 1, 1, 2)):
            indexes = self.rng.choices(range(INDEXES + 1), k=self.rng.randint(0, INDEXES))
            self.named.append(
                (name, [(index, self.build_records(name, index)) for index in indexes])
            )
        self.named.append(("unknown", [(0, batch_v2(1))]))
        self.ids = {
            name: known(life.broker.topics.find(name)).id if name in "ab" else b"?" * 16
            for name in ("a", "b", "unknown")
        }
        self.frame = self.build_frame()
        self.batches: Any = None
        self.noted: dict[tuple[str, int], Noted] = {}

    def build_records(self, name: str, index: int) -> bytes:
        rng, kind = self.rng, self.rng.random()
        mirror = self.life.mirrors.get((name, index))
        producer = -1, -1, -1
        if rng.random() < 0.6 and mirror is not None:
            number = rng.choice((1, 1, 1, 1, 2, 2, 3, 4))
            epoch, following, _ = mirror.producers.get(number, (0, SEQUENCES - 12, 0))
            jump = rng.choice((*(0,) * 12, -3, -6, 7, 1 << 30, -(1 << 30)))
            producer = number, epoch + (rng.random() < 0.03), (following + jump) % SEQUENCES
        count, value = rng.randint(1, 3), rng.randbytes(4)
        sent = batch_v2(
            count, producer=producer, value=value, transactional=producer[0] > 0 and kind < 0.1
        )
        if kind > 0.97:
            return message_v1() if kind > 0.985 else sent + sent
        return said_to_be(rng.choice((GZIP, ZSTD, ZSTD)), sent) if kind > 0.85 else sent

    def write_topic(self, name: str) -> bytes:
        return self.ids[name] if self.version == BY_ID else bytes((len(name) + 1,)) + name.encode()

    def build_frame(self) -> bytes:
        out = pack(">hhih", 0, self.version, 7, -1) + b"\0\0" + pack(">hi", -1, 1000)
        out += build_uvarint(len(self.named) + 1)
        for name, partitions in self.named:
            out += self.write_topic(name) + build_uvarint(len(partitions) + 1)
            for index, records in partitions:
                out += pack(">i", index) + build_uvarint(len(records) + 1) + records + b"\0"
            out += b"\0"
        return pack(">i", len(out) + 1) + out + b"\0"

    def forward(self) -> None:
        _, rows = known(scan_request(self.frame, len(self.frame), MOST))
        targets: list[Any] = []
        asked = [(name, *one) for name, partitions in self.named for one in partitions]
        for (name, index, _), row in zip(asked, rows, strict=True):
            mirror = self.life.mirrors.get((name, index))
            if mirror is None:
                targets.append(SimpleNamespace(partition=None, row=NO_ROW))
                continue
            partition = mirror.partition
            targets.append(SimpleNamespace(partition=partition, row=partition.row))
            if row.magic >= 0:
                if (name, index) in self.noted:
                    mirror.log_end = self.noted[name, index].base
                self.noted[name, index] = Noted(mirror, row, self.frame[row.start : row.end])
        self.batches = forward_batches(rows.native, targets)
        assert (0 if self.batches is None else self.batches.number) == len(self.noted)
        for one in self.noted.values():
            one.mirror.check(self.life.broker)

    def build_answer(self) -> tuple[bytes, list[tuple[Noted, int]]]:
        """The response, and the batches that it acknowledges in its order with their log append times."""
        rng, said, topics = self.rng, [], b""
        names = [name for name, _ in self.named]
        names = list(dict.fromkeys(rng.sample(names, len(names))))
        for name in names:
            indexes = rng.sample(range(-1, INDEXES + 1), INDEXES + 2)
            topics += self.write_topic(name) + build_uvarint(len(indexes) + 1)
            for index in indexes:
                noted, error, time_ms = self.noted.get((name, index)), 0, -1
                base = 5 if noted is None else self.place(noted)
                if rng.random() < 0.06:
                    error = 6
                elif rng.random() < 0.02 or (noted and self.has_append_time(noted)):
                    time_ms = APPENDED_MS
                if noted is not None and not error:
                    said.append((noted, time_ms))
                topics += pack(">ihqqq", index, error, base, time_ms, 0) + b"\1\0\0"
            topics += b"\0"
        body = (
            pack(">i", 7) + b"\0" + build_uvarint(len(names) + 1) + topics + pack(">i", 0) + b"\0"
        )
        return pack(">i", len(body)) + body, said

    def has_append_time(self, noted: Noted) -> bool:
        return bool(noted.mirror.partition.topic.fidelity.log_append_time)

    def place(self, noted: Noted) -> int:
        """Where the broker says that the batch lies: a duplicate lies at an old offset."""
        if noted.check == "resent" or self.rng.random() < 0.03:
            noted.base = self.rng.choice((-1, max(0, noted.high_watermark) - 1))
        return noted.base

    # -- what a response must do -------------------------------------------------------------------

    def expect(self, said: list[tuple[Noted, int]]) -> None:
        belief = Belief(self.life)
        for one, _ in said:
            self.expect_acknowledged(one)
        for one, time_ms in said:
            if time_ms >= 0:
                self.expect_singly(one, time_ms, belief)
        plain = [one for one, time_ms in said if time_ms < 0]
        judged = [(one, one.judge(*belief.of(one))) for one in plain]
        as_sent = [one for one, verdict in judged if verdict == "as-sent"]
        left = [(one, self.expect_stored(one)) for one in as_sent]
        for one, is_run in left:
            if not is_run:
                self.life.runs.add(one.mirror.partition, *one_run(one))
            mirror = one.mirror
            is_old = self.life.broker.clock_s - mirror.proven_at > REFRESH_EPOCH_S
            if mirror.partition.parked or is_old:
                self.life.told.append((mirror, "produced"))
        for one, verdict in judged:
            if verdict != "as-sent":
                self.expect_singly(one, -1, belief)

    def expect_acknowledged(self, one: Noted) -> None:
        mirror = one.mirror
        if 0 <= one.epoch != mirror.epoch:
            return
        mirror.led_epoch = max(mirror.led_epoch, one.epoch)
        mirror.probe_offset = max(mirror.probe_offset, one.base)
        mirror.young_from = one.base if mirror.young_from < 0 else mirror.young_from
        mirror.acknowledged_end = max(mirror.acknowledged_end, one.base + one.row.record_count)

    def expect_stored(self, one: Noted) -> bool:
        """Whether its run of the access log goes on."""
        mirror, (first, following, size_bytes) = one.mirror, one_run(one)
        mirror.stored[first] = following, as_stored(one.sent, first, one.epoch)
        if mirror.produced_from < 0 or first < mirror.produced_from:
            mirror.produced_from = first
        if first <= mirror.tail:
            ends = mirror.contiguous_end(first), mirror.contiguous_end(mirror.tail)
            mirror.tail = max(mirror.tail, *ends)
        mirror.alone.observed(b"", (), first, following)
        self.life.counts["store"] += 1
        return self.life.runs.extend(mirror.partition, first, following, size_bytes)

    def expect_singly(self, one: Noted, time_ms: int, belief: Belief) -> None:
        life, mirror = self.life, one.mirror
        if 0 <= one.base < one.high_watermark and one.check != "resent":
            life.told.append((mirror, "doubt"))
        if one.check == "fresh" and belief.is_surprise(one, time_ms >= 0):
            belief.begin(one)
            life.distrust(mirror.partition.topic)
        verdict = one.judge(*belief.of(one))
        life.counts["store" if verdict in ("stamped", "as-sent") else verdict] += 1
        if verdict in ("stamped", "as-sent"):
            self.expect_stamped(one, time_ms if belief.of(one)[1] else None)
        life.told.append((mirror, "produced"))

    def expect_stamped(self, one: Noted, append_time_ms: int | None) -> None:
        mirror, (first, following, size_bytes) = one.mirror, one_run(one)
        sent = as_stored(one.sent, first, one.epoch, append_time_ms)
        mirror.stored[first] = following, sent
        mirror.zstd = mirror.zstd or one.row.attributes & 7 == ZSTD
        mirror.produced_from = (
            first if not 0 <= mirror.produced_from <= first else mirror.produced_from
        )
        if first <= mirror.tail:
            mirror.tail = max(mirror.tail, mirror.contiguous_end(mirror.tail))
        batches = scan_batches(sent, 0, len(sent)) if one.row.attributes & 0x30 else ()
        mirror.alone.observed(sent, batches, first, following)
        self.life.runs.add(mirror.partition, first, following, size_bytes)


class Belief:
    """Generation, timestamp type and codecs of topics, as they change while a response is processed."""

    def __init__(self, life: Life) -> None:
        topics = {one.partition.topic: one.partition.topic.fidelity for one in life.all}
        self.known: dict[Any, tuple[int, bool | None, set[int]]] = {
            topic: (said.generation, said.log_append_time, said.equal_codecs)
            for topic, said in topics.items()
        }

    def of(self, one: Noted) -> tuple[int, bool | None, set[int]]:
        return self.known[one.mirror.partition.topic]

    def is_surprise(self, one: Noted, log_append_time: bool) -> bool:
        return self.of(one)[1] not in (None, log_append_time)

    def begin(self, one: Noted) -> None:
        self.known[one.mirror.partition.topic] = self.of(one)[0] + 1, None, set()


def one_run(one: Noted) -> tuple[int, int, int]:
    return one.base, one.base + one.row.last_delta + 1, len(one.sent)


WEIGHTS = {
    Life.request_is_forwarded: 40,
    Life.response_arrives: 36,
    Life.high_watermark_grows: 4,
    Life.topic_is_believed: 3,
    Life.tail_moves: 1,
    Life.gap_is_filled: 3,
    Life.time_passes: 1,
    Life.waiter_comes_or_goes: 1,
    Life.runs_end: 2,
    Life.zstd_is_known: 1,
    Life.epoch_changes: 0.5,
    Life.offsets_are_forgotten: 0.4,
    Life.frozen_or_not: 0.6,
    Life.generation_begins: 0.2,
    Life.partition_is_forgotten: 0.3,
    Life.topic_is_created: 0.1,
}


def live(seed: int) -> Life:
    rng = Random(seed)
    life = Life(rng)
    for step in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
        step(life)
    return life
