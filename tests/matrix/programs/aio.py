"""aiokafka: `python -m tests.matrix.programs.aio BOOTSTRAP RUN STEP...`.

Owns a thread with the event loop, on which all calls run, so that heartbeats and fetches go on between them. Must not
know Forebay.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from tests.matrix.programs.api import PATIENCE_S, TIME_TYPES, Shown, build_record, show
from tests.matrix.programs.steps import perform

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

LOOP = asyncio.new_event_loop()


def do(call: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, run on the loop's thread."""
    return asyncio.run_coroutine_threadsafe(asyncio.wait_for(call, PATIENCE_S), LOOP).result()


async def make(build: Any) -> Any:
    """An object that must be built where the loop runs, started."""
    made = build()
    await made.start()
    return made


def check(error_code: int) -> None:
    """Raises an answer's error."""
    if error_code:
        raise for_code(error_code)


class Aio:
    """The library, bound to a cluster."""

    def __init__(self, bootstrap: str, run: str) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": run}
        self.client = do(make(partial(AIOKafkaAdminClient, **self.common)))
        self.lacks = {"group-consumer": "aiokafka has only the classic group protocol"}

    def produce(self, codec: str = "none", transactional_id: str | None = None) -> AioProducer:
        options = self.common | {
            "compression_type": None if codec == "none" else codec,
            "linger_ms": 20,
        }
        options |= {"acks": "all", "enable_idempotence": True, "transactional_id": transactional_id}
        return AioProducer(do(make(partial(AIOKafkaProducer, **options))))

    def read(
        self,
        *,
        committed: bool = False,
        group: str | None = None,
        protocol: str = "classic",
        reset: bool = True,
    ) -> AioReader:
        assert protocol == "classic"
        options = self.common | {
            "group_id": group,
            "enable_auto_commit": False,
            "isolation_level": "read_committed" if committed else "read_uncommitted",
            "auto_offset_reset": "earliest" if reset else "none",
            "heartbeat_interval_ms": 500,
        }
        return AioReader(do(make(partial(AIOKafkaConsumer, **options))))

    def create(self, topic: str, partitions: int) -> None:
        answer = do(self.client.create_topics([NewTopic(topic, partitions, 1)]))
        check(answer.topic_errors[0][1])

    def count_nodes(self) -> int:
        return len(do(self.client.describe_cluster())["brokers"])

    def count_partitions(self, topic: str) -> int:
        (described,) = do(self.client.describe_topics([topic]))
        check(described["error_code"])
        return len(described["partitions"])

    def add_partitions(self, topic: str, total: int) -> None:
        answer = do(self.client.create_partitions({topic: NewPartitions(total)}))
        check(answer.topic_errors[0][1])

    def alter_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        for answer in do(self.client.alter_configs([resource])):
            for one in answer.resources:
                check(one[0])

    def read_config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: ""})
        (answer,) = do(self.client.describe_configs([resource]))
        ((code, _message, _type, _name, entries),) = answer.resources
        check(code)
        return {entry[0]: entry[1] for entry in entries}.get(name)

    def delete_records(self, topic: str, before: int) -> int:
        place = TopicPartition(topic, 0)
        return int(do(self.client.delete_records({place: RecordsToDelete(before)}))[place])

    def groups(self) -> list[str]:
        return [one[0] for one in do(self.client.list_consumer_groups())]

    def committed(self, group: str, topic: str, partitions: int) -> dict[str, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        found = do(self.client.list_consumer_group_offsets(group, partitions=places))
        return {
            f"{place.topic}-{place.partition}": one.offset for place, one in sorted(found.items())
        }

    def topics(self) -> list[str]:
        return list(do(self.client.list_topics()))

    def delete_topic(self, topic: str) -> None:
        check(do(self.client.delete_topics([topic])).topic_error_codes[0][1])

    def name_of(self, error: Exception) -> str | None:
        return type(error).__name__ if isinstance(error, KafkaError) else None


class AioProducer:
    """Producer of api.Producing."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.producer = producer

    def send(self, topic: str, partition: int, numbers: Iterable[int]) -> list[int]:
        async def send() -> list[int]:
            sent = []
            for number in numbers:
                one = build_record(number)
                options = {
                    "partition": partition,
                    "timestamp_ms": one.timestamp_ms,
                    "headers": one.headers,
                }
                sent.append(await self.producer.send(topic, one.value, one.key, **options))
            return [(await one).offset for one in sent]

        offsets: list[int] = do(send())
        return offsets

    def init(self) -> None:
        """aiokafka does it when it starts."""

    def begin(self) -> None:
        do(self.producer.begin_transaction())

    def send_offsets(self, topic: str, offset: int, group: str) -> None:
        do(self.producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group))

    def commit(self) -> None:
        do(self.producer.commit_transaction())

    def abort(self) -> None:
        do(self.producer.abort_transaction())

    def close(self) -> None:
        do(self.producer.stop())


class AioReader:
    """Consumer of api.Reading."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer
        self.place = TopicPartition("", 0)

    def assign(self, topic: str, offset: int) -> None:
        self.place = TopicPartition(topic, 0)
        LOOP.call_soon_threadsafe(self.consumer.assign, [self.place])
        self.seek(offset)

    def seek(self, offset: int) -> None:
        LOOP.call_soon_threadsafe(self.consumer.seek, self.place, offset)

    def to_beginning(self) -> int:
        do(self.consumer.seek_to_beginning(self.place))
        return int(do(self.consumer.position(self.place)))

    def to_end(self) -> int:
        do(self.consumer.seek_to_end(self.place))
        return int(do(self.consumer.position(self.place)))

    def poll(self) -> list[Shown]:
        found = do(self.consumer.getmany(timeout_ms=200))
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
        LOOP.call_soon_threadsafe(self.consumer.subscribe, [topic])

    def count_assigned(self) -> int:
        return len(self.consumer.assignment())

    def commit(self) -> None:
        do(self.consumer.commit())

    def find_time(self, topic: str, timestamp_ms: int) -> Any:
        place = TopicPartition(topic, 0)
        found = do(self.consumer.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else [found.offset, found.timestamp]

    def ends(self, topic: str) -> list[int]:
        place = TopicPartition(topic, 0)
        return [
            do(self.consumer.beginning_offsets([place]))[place],
            do(self.consumer.end_offsets([place]))[place],
        ]

    def close(self) -> None:
        do(self.consumer.stop())


if __name__ == "__main__":
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    perform(Aio(sys.argv[1], sys.argv[2]), sys.argv[2], sys.argv[3:])
    sys.stdout.flush()
    os._exit(0)
