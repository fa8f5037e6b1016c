"""librdkafka, by confluent-kafka: `python -m tests.matrix.programs.confluent BOOTSTRAP RUN STEP...`.

Owns what 1.9 and current call alike; what 1.9 has not is said (Lacks). Must not know Forebay. librdkafka has no fetch
sessions.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions
from confluent_kafka.cimpl import NewTopic

from tests.matrix.programs.api import PATIENCE_S, TIME_TYPES, Lacks, Shown, build_record, show
from tests.matrix.programs.steps import perform

if TYPE_CHECKING:
    from collections.abc import Iterable

IS_OLD = confluent_kafka.libversion()[1] < 0x02000000
EVENTS = {"log_level": 2}


class Confluent:
    """The library, bound to a cluster."""

    def __init__(self, bootstrap: str, run: str) -> None:
        self.common: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": run, **EVENTS}
        self.client = AdminClient(self.common)
        self.lacks = {"group-consumer": "librdkafka 1.9 is older than KIP-848"} if IS_OLD else {}

    def produce(
        self, codec: str = "none", transactional_id: str | None = None
    ) -> ConfluentProducer:
        settings = self.common | {
            "compression.type": codec,
            "acks": "all",
            "enable.idempotence": True,
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        return ConfluentProducer(settings)

    def read(
        self,
        *,
        committed: bool = False,
        group: str | None = None,
        protocol: str = "classic",
        reset: bool = True,
    ) -> ConfluentReader:
        settings = self.common | {
            "group.id": group or "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest" if reset else "error",
        }
        if protocol == "consumer":
            settings["group.protocol"] = protocol
        return ConfluentReader(settings)

    def create(self, topic: str, partitions: int) -> None:
        self.client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)

    def count_nodes(self) -> int:
        return len(self.client.list_topics(timeout=PATIENCE_S).brokers)

    def count_partitions(self, topic: str) -> int:
        return (
            len(self.client.list_topics(timeout=PATIENCE_S).topics[topic].partitions)
            if topic in self.topics()
            else 0
        )

    def add_partitions(self, topic: str, total: int) -> None:
        self.client.create_partitions([NewPartitions(topic, total)])[topic].result(PATIENCE_S)

    def alter_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource("topic", topic)
        resource.set_config(name, value)
        self.client.alter_configs([resource])[resource].result(PATIENCE_S)

    def read_config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource("topic", topic)
        found: str | None = (
            self.client.describe_configs([resource])[resource].result(PATIENCE_S)[name].value
        )
        return found

    def delete_records(self, topic: str, before: int) -> int:
        if IS_OLD:
            raise Lacks("confluent-kafka 1.9 has no DeleteRecords")
        place = TopicPartition(topic, 0, before)
        deleted = self.client.delete_records([place])[place].result(PATIENCE_S)
        return int(deleted.low_watermark)

    def groups(self) -> list[str]:
        return [str(one.id) for one in self.client.list_groups(timeout=PATIENCE_S)]

    def committed(self, group: str, topic: str, partitions: int) -> dict[str, int]:
        asking = Consumer(self.common | {"group.id": group})
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = asking.committed(places, timeout=PATIENCE_S)
        asking.close()
        return {f"{one.topic}-{one.partition}": one.offset for one in found}

    def topics(self) -> list[str]:
        return list(self.client.list_topics(timeout=PATIENCE_S).topics)

    def delete_topic(self, topic: str) -> None:
        self.client.delete_topics([topic])[topic].result(PATIENCE_S)

    def name_of(self, error: Exception) -> str | None:
        if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
            return str(error.args[0].name())
        return None


class ConfluentProducer:
    """Producer of api.Producing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer(settings | {"linger.ms": 20})

    def send(self, topic: str, partition: int, numbers: Iterable[int]) -> list[int]:
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        for number in numbers:
            one = build_record(number)
            self.producer.produce(
                topic,
                one.value,
                one.key,
                partition,
                headers=one.headers,  # type: ignore[arg-type]
                timestamp=one.timestamp_ms,
                on_delivery=told,
            )
        if self.producer.flush(PATIENCE_S):
            raise TimeoutError("not delivered in time")
        if errors:
            raise KafkaException(errors[0])
        return offsets

    def init(self) -> None:
        self.producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send_offsets(self, topic: str, offset: int, group: str) -> None:
        settings = self.settings_of_group(group)
        consumer = Consumer(settings)
        metadata = consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)], metadata, PATIENCE_S
        )
        consumer.close()

    def settings_of_group(self, group: str) -> dict[str, Any]:
        """Of a consumer that only names the group."""
        return {"bootstrap.servers": sys.argv[1], "group.id": group, **EVENTS}

    def commit(self) -> None:
        self.producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self.producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        self.producer.flush(1)


class ConfluentReader:
    """Consumer of api.Reading."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.consumer = Consumer(settings)
        self.place = TopicPartition("", 0)

    def assign(self, topic: str, offset: int) -> None:
        self.place = TopicPartition(topic, 0, offset)
        self.consumer.assign([self.place])

    def seek(self, offset: int) -> None:
        self.place = TopicPartition(self.place.topic, 0, offset)
        self.consumer.seek(self.place)

    def to_beginning(self) -> int:
        first = self.ends(self.place.topic)[0]
        self.seek(first)
        return first

    def to_end(self) -> int:
        last = self.ends(self.place.topic)[1]
        self.seek(last)
        return last

    def poll(self) -> list[Shown]:
        seen: list[Shown] = []
        for one in self.consumer.consume(500, 0.2):
            if (error := one.error()) is not None:
                raise KafkaException(error)
            kind, timestamp_ms = one.timestamp()
            partition, offset = one.partition(), one.offset()
            assert partition is not None
            assert offset is not None
            pairs: Any = one.headers()
            seen.append(
                show(
                    partition,
                    offset,
                    one.key(),
                    one.value(),
                    pairs,
                    timestamp_ms,
                    TIME_TYPES.get(kind - 1, "none"),
                )
            )
        return seen

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def count_assigned(self) -> int:
        return len(self.consumer.assignment())

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def find_time(self, topic: str, timestamp_ms: int) -> int:
        (found,) = self.consumer.offsets_for_times(
            [TopicPartition(topic, 0, timestamp_ms)], PATIENCE_S
        )
        return found.offset

    def ends(self, topic: str) -> list[int]:
        return list(self.consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S))

    def close(self) -> None:
        self.consumer.close()


if __name__ == "__main__":
    perform(Confluent(sys.argv[1], sys.argv[2]), sys.argv[2], sys.argv[3:])
    sys.stdout.flush()
    os._exit(0)  # librdkafka's threads of fenced producers do not hold the process
