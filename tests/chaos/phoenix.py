"""A topic that is deleted and made again all the time: nobody reads what was in a former one.

Owns a thread that does it, a writer and a reader of each incarnation, and one reader that stays. Must not
know which faults there are. Invariants: a record names its incarnation; an incarnation is judged only once
every broker names its topic id, since a broker that has not heard of it rightly serves the former one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from protocol.errors import BadFrame
from tests.chaos import readers, writers
from tests.chaos.history import Name, Place, Read, build_value, scan_name
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    import random

    from tests.chaos.cluster import Sidecars

TOPIC = "phoenix"
RECORDS = 60
PATIENCE_S = 60.0
PAUSE_S = 0.3


class Phoenix(threading.Thread):
    """`stale`: what was read that should not have been. `incarnations`: how many were judged."""

    def __init__(self, sidecars: Sidecars, rng: random.Random) -> None:
        super().__init__(name=TOPIC, daemon=True)
        self._sidecars, self._rng = sidecars, rng
        self._finishing = threading.Event()
        self._number = 0
        self.stale: list[str] = []
        self.incarnations = 0

    def finish(self) -> None:
        self._finishing.set()

    def run(self) -> None:
        staying = threading.Thread(target=self._stay, daemon=True)
        staying.start()
        former = b""
        while not self._finishing.is_set():
            self._number += 1
            self._create()
            born = self._await_birth(former)
            if born:
                former = born
                self._live()
            self._delete()
        staying.join(PATIENCE_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._sidecars.direct, "log_level": 0})

    def _create(self) -> None:
        topic = NewTopic(TOPIC, 1, len(self._sidecars.nodes))
        admin = self._admin()
        while not self._finishing.is_set():
            try:
                admin.create_topics([topic])[TOPIC].result(10)
                return
            except (KafkaException, TimeoutError) as failed:
                if is_error(failed, KafkaError.TOPIC_ALREADY_EXISTS):
                    return  # the answer to an earlier attempt was lost, or deleting has not reached all
                self._finishing.wait(PAUSE_S)

    def _delete(self) -> None:
        admin = self._admin()
        while not self._finishing.is_set():
            try:
                admin.delete_topics([TOPIC])[TOPIC].result(10)
                return
            except (KafkaException, TimeoutError) as failed:
                if is_error(failed, KafkaError.UNKNOWN_TOPIC_OR_PART):
                    return
                self._finishing.wait(PAUSE_S)

    def _await_birth(self, former: bytes) -> bytes:
        """The topic's id, the same with every broker and not the former; b"" if that did not come to be."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self._finishing.is_set():
            with contextlib.suppress(OSError, BadFrame):
                ids = {self._ask(node) for node in self._sidecars.nodes}
                if len(ids) == 1 and former not in ids:
                    return ids.pop()
            self._finishing.wait(PAUSE_S)
        return b""

    def _ask(self, node: int) -> bytes:
        host, port = self._sidecars.cluster.address(node_id=node)
        client = RawClient(f"{host}:{port}")
        with client:
            return client.topic(TOPIC).id

    def _live(self) -> None:
        """Write through Forebay, and have somebody new read it all through Forebay."""
        word = f"{TOPIC}-{self._number}"
        settings = writers.CLIENT | {
            "bootstrap.servers": self._sidecars.through,
            "message.timeout.ms": 20_000,
        }
        producer = Producer(settings | {"enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce(
                TOPIC, build_value(Name(word, number), -1, 2000, self._rng), partition=0
            )
            producer.poll(0.01)
        producer.flush(20)
        place = Place(TOPIC, 0)
        try:
            ends = readers.find_ends(self._sidecars.direct, [place], 10)
        except KafkaException:
            return
        group = readers.read_all(word, self._sidecars.through, [TOPIC], ends, False, 20)
        self._judge([read for _, reads in group.runs for read in reads], word)

    def _judge(self, reads: list[Read], word: str) -> None:
        self.incarnations += 1
        strangers = [read for read in reads if read.name.producer != word]
        if strangers:
            self.stale.append(
                f"a reader of {word} got {len(strangers)} records like {strangers[0]}"
            )

    def _stay(self) -> None:
        """Reads on through all incarnations: once it has seen one, it sees none before."""
        consumer = Consumer(
            readers.CLIENT
            | readers.CLASSIC
            | {
                "bootstrap.servers": self._sidecars.through,
                "group.id": TOPIC,
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        latest = 0
        while not self._finishing.is_set():
            message = consumer.poll(PAUSE_S)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            number = int(
                scan_name(value if isinstance(value, bytes) else b"").producer.split("-")[1]
            )
            if number < latest:
                self.stale.append(f"who had read incarnation {latest} got a record of {number}")
            latest = max(latest, number)
        consumer.close()


def is_error(failed: Exception, code: int) -> bool:
    return isinstance(failed, KafkaException) and failed.args[0].code() == code
