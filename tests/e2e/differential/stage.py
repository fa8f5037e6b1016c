"""The stage of a run: topics of many kinds on a broker, tailed through a Forebay, so that memory holds their ends.

Owns the topics, who writes to them, and the wait until Forebay knows of each what the broker knows. Must not know what
is asked. Invariants: while requests are compared nobody writes; a topic is cold (written before Forebay was asked for
it, past it) or tailed from before its newer records were written.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from kio.schema.alter_client_quotas.v1 import request as quotas
from kio.static.primitive import f64

from protocol import fetch
from protocol.batch import scan_batches
from tests.e2e.differential.cases import Place
from tests.e2e.differential.drawing import COLD
from tests.e2e.differential.logs import VERSION, Log, read_log
from tests.e2e.transactional import Writer
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient
from tests.kit.session_client import SessionClient
from tests.protocol import oracle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.kit.sidecar import Pair

TIMEOUT_S = 60
PATIENCE_S = 60.0
TRANSACTION_TIMEOUT_MS = 900_000
"""Nobody but a run ends an open transaction."""
POLL_S = 0.02
BROKER_MAX_BYTES = 150_000
OVERRIDES = {"fetch.max.bytes": BROKER_MAX_BYTES, "log.cleaner.backoff.ms": 200}
LIMITED = "limited"
"""A client id that may read QUOTA_BYTES a second."""
QUOTA_BYTES = 2000


class Kind(NamedTuple):
    """A kind of topic."""

    partitions: int
    config: dict[str, str]


KINDS = {
    "plain": Kind(3, {}),
    "transactional": Kind(1, {}),
    "open": Kind(1, {}),
    "moved": Kind(1, {}),
    "emptied": Kind(1, {}),
    "gzip": Kind(1, {"compression.type": "gzip"}),
    "zstd": Kind(1, {"compression.type": "zstd"}),
    "stamped": Kind(1, {"message.timestamp.type": "LogAppendTime"}),
    "rolled": Kind(1, {"segment.ms": "1"}),
    "compacted": Kind(
        1, {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    ),
    COLD: Kind(2, {}),
}
LARGE = Place(COLD, b"", 1)
"""Holds batches larger than what the quota allows in its whole window."""


class Tail:
    """A consumer at the tails of all partitions but cold ones, through Forebay, on a thread of its own."""

    def __init__(self, address: str, places: Sequence[Place]) -> None:
        self._client = RawClient(address, "tail")
        self._session = SessionClient(self._client, VERSION)
        for place in places:
            self._move(place.key(VERSION), 0)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _move(self, key: tuple[str | bytes, int], offset: int) -> None:
        self._session.want[key] = fetch.FetchPartition(*key, -1, offset, -1, -1, 1 << 20)

    def start(self, ends: dict[Place, int]) -> None:
        """Stand at these offsets from now on."""
        for place, end in ends.items():
            self._move(place.key(VERSION), end)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            answer, frame = self._session.poll(200)
            for one in answer.partitions:
                batches = scan_batches(frame, one.start, one.end) if one.end > one.start else ()
                if batches:
                    self._move((one.topic, one.partition), batches[-1].last_offset + 1)
                elif one.error_code == 1:
                    self._move((one.topic, one.partition), one.log_start_offset)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()


class Stage:
    """Prepared by `__enter__`; `grow` writes more. `logs` are those of all places, as the broker has them."""

    def __init__(self, pair: Pair, random: Random) -> None:
        self.pair = pair
        self.random = random
        self.logs: list[Log] = []
        self._admin = AdminClient({"bootstrap.servers": pair.direct})
        self._writers: dict[str, Writer] = {}
        self._places: list[Place] = []
        self._epochs: dict[Place, int] = {}
        self._direct = RawClient(pair.direct, "direct")
        self._tail: Tail | None = None
        self._producers: dict[tuple[str, str], Producer] = {}

    def __enter__(self) -> Stage:
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _prepare(self) -> None:
        for topic, kind in KINDS.items():
            create_topic(self.pair.direct, topic, partitions=kind.partitions, config=kind.config)
        self._write_history()
        self._restart()
        self._write_newer_history()
        self._tail = Tail(self.pair.through, [one for one in self._places if one.topic != COLD])
        self._read_logs()
        self._tail.start({log.place: log.end for log in self.logs if log.place.topic != COLD})
        self._limit()
        self._converge()
        self._write_through()
        self.grow()

    def __exit__(self, *_: object) -> None:
        if self._tail is not None:
            self._tail.stop()
        self._direct.close()

    def grow(self) -> None:
        """Write a little more, delete a little, and wait until Forebay knows."""
        random, through = self.random, self.pair.through
        for topic in ("plain", "gzip", "zstd", "stamped", "rolled", "moved", "compacted"):
            self._write(through, topic, 0, random.randint(1, 4))
        for topic in ("transactional", "open"):
            for name in ("a", "b"):
                writer = self._writer(topic, name)
                writer.write(random.randint(1, 3), random.randbytes(random.randint(10, 2000)))
                if topic == "transactional" or random.random() < 0.5:
                    writer.end(commits=random.random() < 0.5)
        self._writer("open", "c").write(1)
        self._read_logs()
        moved = next(log for log in self.logs if log.place.topic == "moved")
        self._delete("moved", min(moved.end - 1, moved.start + random.randint(0, 5)))
        self._read_logs()
        self._converge()

    # -- writing -------------------------------------------------------------------------------------------

    def _write_history(self) -> None:
        """In the first leader epoch, past Forebay."""
        direct = self.pair.direct
        for topic in ("plain", "moved", "rolled", "stamped", COLD):
            self._write(direct, topic, 0, 12)
        self._write(direct, "plain", 1, 2, 40_000)
        self._write(direct, LARGE.topic, LARGE.partition, 6, 30_000)
        for commits in (True, False):
            writer = Writer(direct, "transactional", f"early-{commits}")
            writer.write(2)
            writer.end(commits=commits)
        self._compact()

    def _write_newer_history(self) -> None:
        """In the second one."""
        for topic in ("plain", COLD):
            self._write(self.pair.direct, topic, 0, 8)

    def _write_through(self) -> None:
        """What memory takes in."""
        through = self.pair.through
        for topic in (
            "plain",
            "gzip",
            "zstd",
            "stamped",
            "rolled",
            "moved",
            "emptied",
            "compacted",
        ):
            self._write(through, topic, 0, 25)
        self._write(through, "plain", 1, 4, 40_000)
        for turn in range(6):
            for topic in ("transactional", "open"):
                for name in ("a", "b"):
                    writer = self._writer(topic, name)
                    writer.write(self.random.randint(1, 4), b"v" * self.random.randint(10, 1500))
                    if (turn + len(name + topic)) % 2 or name == "a":
                        writer.end(commits=turn % 3 != 1)
                self._write(through, topic, 0, 1)
        self._writer("transactional", "b").end(commits=False)
        self._writer("open", "b").end(commits=False)
        self._read_logs()
        ends = {log.place.topic: log.end for log in self.logs}
        self._delete("emptied", ends["emptied"])
        self._delete("moved", ends["moved"] - 20)

    def _writer(self, topic: str, name: str) -> Writer:
        key = f"{topic}-{name}"
        if key not in self._writers:
            self._writers[key] = Writer(
                self.pair.through, topic, name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            )
        return self._writers[key]

    def _write(
        self, address: str, topic: str, partition: int, count: int, size_bytes: int = 0
    ) -> None:
        """So many batches of a few records each, acknowledged one after the other."""
        codec = KINDS[topic].config.get("compression.type", "none")
        options = {
            "bootstrap.servers": address,
            "compression.type": codec,
            "linger.ms": 0,
            "log_level": 2,
        }
        if (address, codec) not in self._producers:
            self._producers[address, codec] = Producer(options)
        producer = self._producers[address, codec]
        for _ in range(count):
            for _ in range(self.random.randint(1, 5) if not size_bytes else 1):
                value = self.random.randbytes(size_bytes or self.random.randint(0, 1200))
                producer.produce(
                    topic, value, b"key-%d" % self.random.randrange(4), partition=partition
                )
            assert producer.flush(TIMEOUT_S) == 0

    def _compact(self) -> None:
        """Write few keys often, and wait for the log cleaner; then let it rest."""
        self._write(self.pair.direct, "compacted", 0, 30)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._read_logs()
            (log,) = (log for log in self.logs if log.place.topic == "compacted")
            if sum(one.record_count for one in log.batches) <= 12:
                break
            assert time.monotonic() < deadline, "the log cleaner does not come"
            time.sleep(POLL_S)
        self._configure("compacted", {"min.cleanable.dirty.ratio": "1.0", "segment.ms": "86400000"})

    def _configure(self, topic: str, config: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(TIMEOUT_S)

    def _delete(self, topic: str, offset: int) -> None:
        """DeleteRecords below `offset` of partition 0."""
        for done in self._admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            done.result(TIMEOUT_S)

    def _limit(self) -> None:
        """Give LIMITED its quota."""
        entity = quotas.EntityData(entity_type="client-id", entity_name=LIMITED)
        op = quotas.OpData(key="consumer_byte_rate", value=f64(float(QUOTA_BYTES)), remove=False)
        entry = quotas.EntryData(entity=(entity,), ops=(op,))
        body = quotas.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        self._direct.call(oracle.request_frame(body, 1, "direct"))

    def _restart(self) -> None:
        """The broker comes back in another leader epoch."""
        self._direct.close()
        self.pair.broker.stop(gracefully=True)
        self.pair.broker.start()
        self._admin = AdminClient({"bootstrap.servers": self.pair.direct})
        self._direct = RawClient(self.pair.direct, "direct")

    # -- knowing -------------------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        """Everything, as the broker has it now."""
        if not self._places:
            for topic, kind in KINDS.items():
                found = self._direct.topic(topic, kind.partitions)
                self._places += [Place(topic, found.id, index) for index in range(kind.partitions)]
        for topic, kind in KINDS.items():
            epochs = self._direct.topic(topic, kind.partitions).epochs
            self._epochs |= {
                one: epochs[one.partition] for one in self._places if one.topic == topic
            }
        starts = self._find_starts()
        self.logs = [
            read_log(self._direct, one, self._epochs[one], starts[one.topic, one.partition])
            for one in self._places
        ]

    def _find_starts(self) -> dict[tuple[str, int], int]:
        """Log start offsets. After a restart librdkafka asks with the old leader epoch once more."""
        deadline = time.monotonic() + TIMEOUT_S
        earliest = OffsetSpec.earliest()
        asked = {TopicPartition(one.topic, one.partition): earliest for one in self._places}
        while True:
            try:
                found = self._admin.list_offsets(asked)
                return {
                    (at.topic, at.partition): done.result(TIMEOUT_S).offset
                    for at, done in found.items()
                }
            except KafkaException:
                assert time.monotonic() < deadline, "no broker tells where its logs start"
                time.sleep(POLL_S)

    def _converge(self) -> None:
        """Wait until a consumer at any tail is told by memory what the broker tells. AssertionError."""
        deadline = time.monotonic() + PATIENCE_S
        missing = [(log, level) for log in self.logs if log.place.topic != COLD for level in (0, 1)]
        wrong: list[str] = []
        with RawClient(self.pair.through, "probe") as client:
            while missing:
                assert time.monotonic() < deadline, f"Forebay does not come to know: {wrong}"
                wrong = [self._probe(client, log, level) for log, level in missing]
                missing = [one for one, text in zip(missing, wrong, strict=True) if text]
                wrong = list(filter(None, wrong))

    def _probe(self, client: RawClient, log: Log, level: int) -> str:
        """What is wrong with an answer at the tail, or that memory does not give it; "" if nothing."""
        before = self._hits()
        text = probe(client, log, level)
        return text or (
            "" if self._hits() > before else f"{log.place}: no hit, isolation level {level}"
        )

    def _hits(self) -> float:
        return self.pair.sidecar.fetch_counts("partitions").get(("hit", ""), 0)


def probe(client: RawClient, log: Log, isolation_level: int) -> str:
    """What an answer at the tail says that is not so; "" if nothing."""
    place = log.place
    wanted = fetch.FetchPartition(
        place.topic_id, place.partition, log.epoch, log.end, -1, -1, 1 << 20
    )
    ((said, _),) = client.fetch(VERSION, [wanted], max_wait_ms=0, isolation_level=isolation_level)
    offsets = said.error_code, said.log_start_offset, said.last_stable_offset, said.high_watermark
    expected = 0, log.start, log.stable, log.end
    return "" if offsets == expected else f"{place}: {offsets}, not {expected}"
