"""kafka-python: `python -m tests.matrix.programs.kpython BOOTSTRAP RUN STEP...`.

Owns how its clients are told what the programme asks. Must not know Forebay.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from tests.matrix.programs.api import PATIENCE_S, TIME_TYPES, Shown, build_record, show
from tests.matrix.programs.steps import perform

if TYPE_CHECKING:
    from collections.abc import Iterable


class Python:
    """The library, bound to a cluster."""

    def __init__(self, bootstrap: str, run: str) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": run}
        self.client = KafkaAdminClient(**self.common)
        self.lacks = {"group-consumer": "kafka-python has only the classic group protocol"}

    def produce(self, codec: str = "none", transactional_id: str | None = None) -> PythonProducer:
        options = self.common | {
            "compression_type": None if codec == "none" else codec,
            "linger_ms": 20,
        }
        options |= {"acks": "all", "enable_idempotence": True, "transactional_id": transactional_id}
        return PythonProducer(KafkaProducer(**options))

    def read(
        self,
        *,
        committed: bool = False,
        group: str | None = None,
        protocol: str = "classic",
        reset: bool = True,
    ) -> PythonReader:
        assert protocol == "classic"
        options = self.common | {
            "group_id": group,
            "enable_auto_commit": False,
            "isolation_level": "read_committed" if committed else "read_uncommitted",
            "auto_offset_reset": "earliest" if reset else "none",
            "heartbeat_interval_ms": 500,
        }
        return PythonReader(KafkaConsumer(**options))

    def create(self, topic: str, partitions: int) -> None:
        self.client.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}})

    def count_nodes(self) -> int:
        return len(self.client.describe_cluster()["brokers"])

    def count_partitions(self, topic: str) -> int:
        (described,) = self.client.describe_topics([topic])
        return len(described["partitions"])

    def add_partitions(self, topic: str, total: int) -> None:
        self.client.create_partitions({topic: total})

    def alter_config(self, topic: str, name: str, value: str) -> None:
        self.client.alter_configs([ConfigResource("topic", topic, {name: value})])

    def read_config(self, topic: str, name: str) -> str | None:
        found = self.client.describe_configs([ConfigResource("topic", topic, {name: None})])
        value: str | None = found["topic"][topic][name]["value"]
        return value

    def delete_records(self, topic: str, before: int) -> int:
        place = TopicPartition(topic, 0)
        return int(self.client.delete_records({place: before})[place]["low_watermark"])

    def groups(self) -> list[str]:
        return [one["group_id"] for one in self.client.list_groups()]

    def committed(self, group: str, topic: str, partitions: int) -> dict[str, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = self.client.list_group_offsets({group: places})[group]
        return {
            f"{place.topic}-{place.partition}": one.offset for place, one in sorted(found.items())
        }

    def topics(self) -> list[str]:
        return list(self.client.list_topics())

    def delete_topic(self, topic: str) -> None:
        self.client.delete_topics([topic])

    def name_of(self, error: Exception) -> str | None:
        return type(error).__name__ if isinstance(error, KafkaError) else None


class PythonProducer:
    """Producer of api.Producing."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer

    def send(self, topic: str, partition: int, numbers: Iterable[int]) -> list[int]:
        sent = []
        for number in numbers:
            one = build_record(number)
            options: dict[str, Any] = {"partition": partition, "timestamp_ms": one.timestamp_ms}
            headers = [
                (name, value or b"") for name, value in one.headers
            ]  # it takes no null in a header
            sent.append(self.producer.send(topic, one.value, one.key, headers, **options))
        return [one.get(PATIENCE_S).offset for one in sent]

    def init(self) -> None:
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send_offsets(self, topic: str, offset: int, group: str) -> None:
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(
            offsets, ConsumerGroupMetadata(group, -1, "", None)
        )

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=5)


class PythonReader:
    """Consumer of api.Reading."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer
        self.place = TopicPartition("", 0)

    def assign(self, topic: str, offset: int) -> None:
        self.place = TopicPartition(topic, 0)
        self.consumer.assign([self.place])
        self.seek(offset)

    def seek(self, offset: int) -> None:
        self.consumer.seek(self.place, offset)

    def to_beginning(self) -> int:
        self.consumer.seek_to_beginning(self.place)
        return int(self.consumer.position(self.place))

    def to_end(self) -> int:
        self.consumer.seek_to_end(self.place)
        return int(self.consumer.position(self.place))

    def poll(self) -> list[Shown]:
        # A poll that ends before the group has been joined begins the joining anew.
        found = self.consumer.poll(timeout_ms=200 if self.consumer.assignment() else 3000)
        return [
            show(
                one.partition,
                one.offset,
                one.key,
                one.value,
                one.headers,
                one.timestamp,
                TIME_TYPES[one.timestamp_type],
            )
            for place in sorted(found)
            for one in found[place]
        ]

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def count_assigned(self) -> int:
        return len(self.consumer.assignment())

    def commit(self) -> None:
        self.consumer.commit()

    def find_time(self, topic: str, timestamp_ms: int) -> Any:
        place = TopicPartition(topic, 0)
        found = self.consumer.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else [found.offset, found.timestamp]

    def ends(self, topic: str) -> list[int]:
        place = TopicPartition(topic, 0)
        return [
            self.consumer.beginning_offsets([place])[place],
            self.consumer.end_offsets([place])[place],
        ]

    def close(self) -> None:
        self.consumer.close()


if __name__ == "__main__":
    perform(Python(sys.argv[1], sys.argv[2]), sys.argv[2], sys.argv[3:])
    sys.stdout.flush()
    os._exit(0)
