"""One run: clients at work while things go wrong, then a time to recover, then the judgement.

Owns the order of these, the topics and who reads and writes what. Must not know how a fault is made or a
history judged. Invariants: once faults are over, each client has PATIENCE_S to come to the end; the brokers
themselves are read last, past Forebay, and are judged by the same rules.
"""

from __future__ import annotations

import gc
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from tests.chaos import readers
from tests.chaos.broker_logs import read_senders
from tests.chaos.changing import ChangingTopics
from tests.chaos.checker import check
from tests.chaos.cluster import Sidecars, is_back
from tests.chaos.faults import USUAL, Faults, Pace
from tests.chaos.history import Group, History, Outcome, Place
from tests.chaos.java_reader import JavaReader
from tests.chaos.leaks import find_leaks
from tests.chaos.phoenix import Phoenix
from tests.chaos.pipeline import Pipeline
from tests.chaos.readers import Member, find_ends, read_all
from tests.chaos.writers import BulkWriter, IdempotentWriter, TransactionalWriter, Writer
from tests.kit.broker.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

PARTITIONS = 3
PLAIN, TXN, SINK, BULK = "plain", "txn", "sink", "bulk"
WRITTEN = (PLAIN, TXN, BULK)
TOPICS = (*WRITTEN, SINK)
PATIENCE_S = 180.0
LEAST_KINDS = 5
"""Of the kinds of faults of processes and wires: a slow machine does not come to all of them."""
CHANGES = (
    "recreate_topic",
    "delete_records",
    "change_timestamp_type",
    "change_codec",
    "change_cleanup",
    "move_cleanly",
    "elect_uncleanly",
)
"""Of these each must have happened."""
BOUNCE_AFTER_S = 45.0
"""Of PATIENCE_S: a member that does not close within HUNG_S is expelled 45 s later at most, by Kafka's defaults."""
MISSING_WITHIN_S = 180.0
"""A run goes on for this long after its minutes while a kind of fault has not happened."""
LEAST_COMMITTED = 3
"""Transactions, once faults are over if not before: without them a run says nothing of what is exactly once."""
HUNG_CONSUMERS = 1
"""More that do not close, in one run, are no chance; whether Forebay owes one an answer is for `find_leaks` to see."""
UNEQUAL = re.compile("memory (served other bytes|told a read_committed client)")
"""What the verifier says of an answer from memory that the broker gives otherwise."""
MISMATCHES = ("forebay_verify_samples_total", "mismatch")
PROGRESS_S = 10.0
POLL_S = 0.5
PIPELINE = "pipeline"


class Run:
    """`bypass`: clients go past Forebay, to tell what is Kafka's or the clients' own. `workers`: of each Forebay.

    `problems`: every broken promise and every leak, after `run`.
    """

    def __init__(
        self,
        seed: int,
        minutes: float,
        directory: Path,
        say: Callable[[str], None] = print,
        *,
        bypass: bool = False,
        pace: Pace = USUAL,
        workers: int = 1,
    ) -> None:
        self._seed, self._minutes = seed, minutes
        self._pace = pace
        self._say = say
        self._bypass = bypass
        self._sidecars = Sidecars(directory, pace.cache_size, workers, bypass=bypass)
        self.history = History(pipelines={SINK: TXN})
        self.problems: list[str] = []
        self.faults: dict[str, int] = {}
        self.hit_bytes = self.evictions = 0.0

    def run(self) -> list[str]:
        with self._sidecars as sidecars:
            self._say(
                f"seed {self._seed}: brokers {sidecars.direct}, through Forebay {sidecars.through}"
            )
            for topic in TOPICS:
                create_topic(sidecars.direct, topic, partitions=PARTITIONS, replication_factor=3)
            over = threading.Event()
            self._changing = ChangingTopics(
                self._seed, sidecars, over, self._say, self._pace.batch_pause_s
            )
            self._begin()
            places, topics = self._places(TOPICS), self._changing.at_work
            faults = Faults(
                self._seed,
                sidecars,
                places,
                self._members,
                topics,
                over,
                self._say,
                self._pace,
            )
            try:
                self._trouble(faults)
                self._end()
                self._judge()
            finally:
                faults.close()
                self._java.stop()
        return self.problems

    def _places(self, topics: Iterable[str]) -> list[Place]:
        return [Place(topic, partition) for topic in topics for partition in range(PARTITIONS)]

    def _begin(self) -> None:
        through, rate = self._sidecars.through, self._pace.records_per_s
        plan = (
            (Writer, "plain-0", PLAIN, rate),
            (IdempotentWriter, "idempotent-0", PLAIN, rate),
            (IdempotentWriter, "idempotent-1", TXN, rate / 2),
            (TransactionalWriter, "transactional-0", TXN, rate),
            (TransactionalWriter, "transactional-1", TXN, rate),
            (BulkWriter, "bulk-0", BULK, self._pace.bulk_per_s),
        )
        self._writers = [
            kind(name, through, topic, PARTITIONS, each, self._seed)
            for kind, name, topic, each in plan
        ]
        groups = (
            (Group("old-uncommitted", (PLAIN, TXN, BULK), False), readers.CLASSIC, 2),
            (Group("old-committed", (TXN, SINK), True), readers.CLASSIC, 1),
            (Group("new-uncommitted", (PLAIN, TXN), False, True), readers.NEW_PROTOCOL, 2),
            (Group("new-committed", TOPICS, True, True), readers.NEW_PROTOCOL, 1),
        )
        self._members = []
        for group, protocol, members in groups:
            group.reached = dict.fromkeys(self._places(group.topics), 0)
            self.history.groups.append(group)
            self._members += [Member(group, through, protocol) for _ in range(members)]
        self._pipeline = self._open_pipeline()
        self._java = JavaReader("java-committed", through, TXN, self._sidecars.directory)
        self._phoenix = Phoenix(self._sidecars, random.Random(f"{self._seed}/phoenix"))
        for thread in (*self._writers, *self._members, self._pipeline, self._phoenix):
            thread.start()
        self._changing.begin()

    def _open_pipeline(self) -> Pipeline:
        return Pipeline(PIPELINE, self._sidecars.through, TXN, SINK, self._sidecars.directory)

    def _trouble(self, faults: Faults) -> None:
        faults.start()
        ends = time.monotonic() + self._minutes * 60
        while (left_s := ends - time.monotonic()) > 0:
            time.sleep(min(PROGRESS_S, left_s))
            self._say(self._progress(left_s))
        while faults.goes_on and faults.missing and time.monotonic() < ends + MISSING_WITHIN_S:
            time.sleep(POLL_S)
        faults.heal()
        self.faults = faults.done
        self.history.stuck += faults.failed
        self._say(f"faults: {faults.done}")
        self._await("transactions", lambda: self._committed() >= LEAST_COMMITTED)

    def _committed(self) -> int:
        """Transactions so far that are known to be committed."""
        return sum(
            one is Outcome.COMMITTED
            for writer in self._writers
            for one in tuple(writer.outcomes.values())
        )

    def _progress(self, left_s: float) -> str:
        sent = sum(len(writer.sent) for writer in self._writers)
        acknowledged = sum(writer.acknowledged for writer in self._writers)
        read = sum(len(reads) for group in self.history.groups for _, reads in group.runs)
        said = f"{left_s:.0f} s left: {sent} sent, {acknowledged} acknowledged, {read} read"
        return f"{said}; {self._changing.progress()}"

    # -- the end -------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Everybody comes to the end, each after those whose work it reads."""
        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(lambda: list(self._changing.end(PATIENCE_S)))
            self._end_lasting()
            self.history.stuck += changing.result()

    def _end_lasting(self) -> None:
        """Those of the topics that keep what they have."""
        history = self.history
        self._finish([*self._writers, self._phoenix])
        for writer in self._writers:
            history.kinds[writer.name] = writer.kind
            history.sent += writer.sent
            history.outcomes |= writer.outcomes
            if len(writer.producer) and isinstance(writer, IdempotentWriter):
                history.stuck.append(
                    f"{writer.name}: {len(writer.producer)} records are not acknowledged"
                )
            writer.close()
        self._await_copies()
        self._finish([self._pipeline])
        history.ends = find_ends(self._sidecars.direct, self._places(TOPICS), PATIENCE_S)
        self._await_readers()
        self._finish(self._members)
        clients: tuple[Writer | Member | Pipeline, ...] = (
            *self._writers,
            *self._members,
            self._pipeline,
        )
        for client in clients:
            self._say(f"{client.name} was told: {client.errors}")
        not_closed = sum(client.errors.get(readers.NOT_CLOSED, 0) for client in clients)
        if not_closed > HUNG_CONSUMERS:
            history.stuck.append(f"{not_closed} consumers have not closed")

    def _await_readers(self) -> None:
        """Members of a group that is late leave and come back: librdkafka may have stopped asking for anything, with
        all that it had asked answered (`HUNG_S`). No riddle is a group that is late all the same if one does not close.
        """
        ends = self.history.ends
        began, are_bounced = time.monotonic(), False

        def is_late(group: Group) -> bool:
            return any(offset < ends[place] for place, offset in group.reached.items())

        while late := [group for group in self.history.groups if is_late(group)]:
            waited_s = time.monotonic() - began
            if waited_s > PATIENCE_S:
                break
            if waited_s > BOUNCE_AFTER_S and not are_bounced:
                are_bounced = True
                self._say(f"readers: {[group.name for group in late]} leave and come back")
                for member in self._members:
                    if member.group in late:
                        member.bounce()
            time.sleep(POLL_S)
        for group in late:
            group.has_hung = self._has_hung(group)
        stuck = [group.name for group in late if not group.has_hung]
        if stuck:
            self.history.stuck.append(f"readers: {stuck} not at the end after {PATIENCE_S:.0f} s")
        self._say(f"readers: waited for {time.monotonic() - began:.1f} s")

    def _has_hung(self, group: Group) -> bool:
        return any(
            one.group is group and one.errors.get(readers.NOT_CLOSED) for one in self._members
        )

    def _finish(self, threads: Iterable[threading.Thread]) -> None:
        for thread in threads:
            thread.finish()  # type: ignore[attr-defined]
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
            if thread.is_alive():
                self.history.stuck.append(f"{thread.name} has not come to its end")

    def _await(self, what: str, holds: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not holds():
            if time.monotonic() > began + PATIENCE_S:
                self.history.stuck.append(f"{what}: not at the end after {PATIENCE_S:.0f} s")
                return
            time.sleep(POLL_S)
        self._say(f"{what}: at the end after {time.monotonic() - began:.1f} s")

    def _await_copies(self) -> None:
        """Until Java's reader and the pipeline have what is the last record of each partition of their topic."""
        last = {
            place: max(
                one.offset + 1
                for one in self.history.sent
                if one.place == place and self.history.outcome_of(one) is Outcome.COMMITTED
            )
            for place in self._places([TXN])
        }
        self._await("java", lambda: has_come_to(self._java.read(), last))
        self._java.stop()
        self.history.groups.append(self._java.read())
        asking = Consumer(
            {"bootstrap.servers": self._sidecars.direct, "group.id": PIPELINE, "log_level": 0}
        )
        wanted = [TopicPartition(*place) for place in last]

        def copied() -> bool:
            if self._pipeline.hangs and "pipeline made anew" not in self.faults:
                self.faults["pipeline made anew"] = 1
                self._say(
                    f"pipeline: hung in librdkafka, made anew; it was told {self._pipeline.errors}"
                )
                self._pipeline.finish()
                self._pipeline = self._open_pipeline()
                self._pipeline.start()
            found = {
                Place(one.topic, one.partition): one.offset for one in asking.committed(wanted, 20)
            }
            return all(found[place] >= offset for place, offset in last.items())

        self._await(PIPELINE, copied)
        asking.close()

    # -- the judgement -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        history, sidecars = self.history, self._sidecars
        for way, bootstrap in (("through", sidecars.through), ("direct", sidecars.direct)):
            for committed in (False, True):
                name = f"{way} at last, {readers.isolation(committed)}"
                history.groups.append(
                    read_all(name, bootstrap, TOPICS, history.ends, committed, PATIENCE_S)
                )
        log_dirs = [sidecars.cluster.log_dir(node) for node in sidecars.nodes]
        history.batches = read_senders(log_dirs, TOPICS)
        running = sidecars.sidecars.values()
        self._await("Forebays", lambda: all(is_back(one, sidecars.workers) for one in running))
        for sidecar in running:
            metrics = sidecar.metrics()
            self.hit_bytes += sidecar.fetch_counts().get(("hit", ""), 0)
            self.evictions += metrics["forebay_cache_evictions_total", "room"]
        self.problems += [f"{one.rule}: {one.what}" for one in check(history)]
        self.problems += [f"stale: {what}" for what in self._phoenix.stale]
        self.problems += self._changing.judge()
        gc.collect()  # a client that an error's traceback holds is still connected
        self.problems += [f"leak: {what}" for what in find_leaks(sidecars, PATIENCE_S)]
        for node, sidecar in sidecars.sidecars.items():
            said = sidecar.log_path.read_text(errors="replace")
            if "Traceback" in said:
                self.problems.append(f"trace: the log of Forebay {node} has one")
            unequal = [line for line in said.splitlines() if UNEQUAL.search(line)]
            self.problems += [
                f"unequal: Forebay {node}: {line}"
                for line in unequal
                if not self._changing.explains(line)
            ]
            if (counted := sidecar.metrics()[MISMATCHES]) > len(unequal):
                self.problems.append(
                    f"unequal: Forebay {node} counts {counted:.0f} and tells {len(unequal)}"
                )
        self.problems += [f"idle: {what}" for what in self._idle()]
        outcomes = {one.value: sum(x is one for x in history.outcomes.values()) for one in Outcome}
        self._say(
            f"{len(history.sent)} records, transactions {outcomes}, {self._phoenix.incarnations} incarnations, "
            f"{self.hit_bytes / 2**20:.0f} MiB from memory since the last restarts, {self.evictions:.0f} evictions"
        )

    def _idle(self) -> Iterator[str]:
        """What did not happen, and without which a run says nothing."""
        sidecars = self._sidecars.sidecars
        yield from find_unhappened(self.faults)
        if Outcome.COMMITTED not in self.history.outcomes.values():
            yield "no transaction was committed"
        if not self.hit_bytes and not self._bypass:
            yield "nothing was served from memory"
        yield from self._changing.idle(
            [path for one in sidecars.values() for path in sorted(one.log_directory.iterdir())]
        )
        for group in self.history.groups:
            if not any(reads for _, reads in group.runs):
                yield f"{group.name} has read nothing"


def find_unhappened(faults: Mapping[str, int]) -> Iterator[str]:
    """What ought to have gone wrong and has not."""
    if len(faults.keys() - set(CHANGES)) < LEAST_KINDS:
        yield f"only this went wrong: {dict(faults)}"
    yield from (f"{kind} did not happen" for kind in CHANGES if kind not in faults)


def has_come_to(group: Group, last: Mapping[Place, int]) -> bool:
    """Whether it has read up to these offsets, or beyond."""
    reached = {
        place: max(reads[-1].offset for at, reads in group.runs if at == place)
        for place, _ in group.runs
    }
    return all(reached.get(place, -1) + 1 >= offset for place, offset in last.items())
