"""A producer whose requests are its own: one Produce over all partitions that a broker leads, by name or by topic id.

Owns a thread, its connections and the batches that it makes. Must not know what is done to the topics, nor who reads.
What it writes is no promise to anybody: what the brokers' logs hold of it is the truth (`broker_logs`). A changed
setting shows where several partitions come in one request, which no client library promises. Invariants: a record
names its producer and number; batches are not compressed and bear the producer's clock.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol.errors import BadFrame
from tests.chaos.history import Name, build_value
from tests.chaos.raw_reader import ANSWER_S, find_leaders
from tests.chaos.readings import digest_sent
from tests.kit.raw_fetch import RawClient
from tests.protocol import oracle
from tests.protocol.golden_capture import make

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from tests.chaos.raw_reader import Leader

PRODUCE = 0
VERSION_BY_NAME, VERSION_BY_ID = 9, 13
PACE_S = 0.15
STAYS = 40
"""Requests, until the leaders are asked for again."""
MOST_RECORDS = 3
SIZES_BYTES = (60, 700)
KEYS = 12
TOMBSTONES = 0.2
BY_ID_SHARE = 0.4
PAST_SHARE = 0.1
"""Of the rounds: who writes past Forebay is seen by the watch alone."""
BATCH_BYTES = 1 << 16
MAGIC = 2
NO_END = 1 << 63


def writes(topic: str) -> str:
    """How a topic stands among the hushed ones when nobody shall write to it."""
    return f"writes to {topic}"


class RawWriter(threading.Thread):
    """Writes to all partitions of a topic until `finish`, not while `hushed` has its `writes`; sometimes past Forebay
    (`direct`). `keyed`: few keys, and tombstones among the values. `until`: the offset at which it stops until the
    topic is made again. `pause_s`: between two requests.
    """

    def __init__(
        self,
        name: str,
        through: str,
        direct: str,
        topic: str,
        rng: random.Random,
        hushed: Collection[str] = (),
        *,
        keyed: bool = False,
        until: int = NO_END,
        pause_s: float = PACE_S,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._through, self._direct, self._topic = through.split(","), direct.split(","), topic
        self._rng, self._hushed, self._keyed, self._until = rng, hushed, keyed, until
        self._full, self._pause_s = b"", pause_s
        self._finishing = threading.Event()
        self._number = 0
        self.acknowledged = 0
        self.sent: set[bytes] = set()
        self.errors: dict[str, int] = {}

    def finish(self) -> None:
        self._finishing.set()

    def run(self) -> None:
        while not self._finishing.wait(self._pause_s):
            if writes(self._topic) in self._hushed:
                continue
            clients: dict[str, RawClient] = {}
            nodes = self._direct if self._rng.random() < PAST_SHARE else self._through
            try:
                with RawClient(self._rng.choice(nodes), self.name, ANSWER_S) as client:
                    leaders = find_leaders(client, self._topic)
                if self._full in {one.topic_id for one in leaders.values()}:
                    continue
                for address in {one.address for one in leaders.values()}:
                    clients[address] = RawClient(address, self.name, ANSWER_S)
                self._write_on(clients, leaders)
            except (OSError, BadFrame) as failed:
                self._count(type(failed).__name__)
            finally:
                for client in clients.values():
                    client.close()

    def _count(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    def _write_on(self, clients: dict[str, RawClient], leaders: Mapping[int, Leader]) -> None:
        """Until something is refused: somebody else may lead by then."""
        by_id = self._rng.random() < BY_ID_SHARE
        for _ in range(STAYS):
            for address, client in clients.items():
                mine = {
                    place: one.topic_id for place, one in leaders.items() if one.address == address
                }
                if (
                    writes(self._topic) in self._hushed
                    or not self._write(client, by_id, mine)
                    or self._full in mine.values()
                ):
                    return
            if self._finishing.wait(self._pause_s):
                return

    def _write(self, client: RawClient, by_id: bool, topic_ids: Mapping[int, bytes]) -> bool:
        """One request; whether nothing was refused."""
        version = VERSION_BY_ID if by_id else VERSION_BY_NAME
        module = load_payload_module(PRODUCE, version, EntityType.request)
        batches = tuple(
            make(module, "PartitionProduceData", {"index": place, "records": self._build_batch()})
            for place in topic_ids
        )
        (topic_id, *_) = topic_ids.values()
        topic = {"name": self._topic, "topic_id": UUID(bytes=topic_id), "partition_data": batches}
        values = {
            "transactional_id": None,
            "acks": -1,
            "timeout": timedelta(seconds=5),
            "topic_data": (make(module, "TopicProduceData", topic),),
        }
        frame = oracle.request_frame(make(module, "ProduceRequest", values), 3, self.name)
        answer = oracle.read_response(PRODUCE, version, client.call(frame))[1]
        codes = [
            int(said.error_code) for one in answer.responses for said in one.partition_responses
        ]
        for code in filter(None, codes):
            self._count(f"error {code}")
        self.acknowledged += codes.count(0)
        if (
            max(
                int(said.base_offset)
                for one in answer.responses
                for said in one.partition_responses
            )
            >= self._until
        ):
            self._full = topic_id
        return not any(codes)

    def _build_batch(self) -> bytes:
        builder = DefaultRecordBatchBuilder(MAGIC, 0, False, -1, -1, -1, BATCH_BYTES)
        for index in range(self._rng.randint(1, MOST_RECORDS)):
            value = build_value(
                Name(self.name, self._number), -1, self._rng.randint(*SIZES_BYTES), self._rng
            )
            key = b"k%d" % (self._rng.randrange(KEYS) if self._keyed else self._number)
            dies = self._keyed and self._rng.random() < TOMBSTONES
            self._number += 1
            builder.append(
                index,
                timestamp=int(time.time() * 1000),
                key=key,
                value=None if dies else value,
                headers=[],
            )
        data = bytes(builder.build())
        self.sent.add(digest_sent(data))
        return data
