"""The clients of the matrix: versions, how each is built, and what each cannot do.

Owns that table. Must not know how they are run or compared. Invariant: a limit is stated with the error that the
client gives; if it does not give it, on both ways, the run fails.
"""

from __future__ import annotations

import json
import re
from functools import partial
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, NamedTuple

from tests.kit.broker.jars import KAFKA_3, KAFKA_4
from tests.matrix.builds import (
    HERE,
    Program,
    build_codecs,
    build_go,
    build_java,
    build_librdkafka,
    build_node,
    build_python,
)
from tests.matrix.compare import Limit
from tests.matrix.programme import EXACTLY_ONCE, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Client(NamedTuple):
    """`limits`: (broker's version or "" for any, step) -> what it cannot do there. `sessions`: whether it fetches in
    sessions (KIP-227), by its own documents; a run says what was seen.
    """

    name: str
    version: str
    build: Callable[[Path], Program]
    steps: tuple[str, ...] = NAMES
    limits: dict[tuple[str, str], Limit] = {}  # noqa: RUF012

    def limits_on(self, broker: str) -> dict[str, Limit]:
        """Step -> limit, with that broker."""
        return {
            step: limit for (where, step), limit in self.limits.items() if where in ("", broker)
        }


def go_version(module: str) -> str:
    """As pinned in go.mod."""
    found = re.search(rf"{re.escape(module)} v(\S+)", (HERE / "go" / "go.mod").read_text())
    return found[1] if found else ""


def npm_version(package: str) -> str:
    """As pinned in package-lock.json."""
    lock = json.loads((HERE / "js" / "package-lock.json").read_text())
    return str(lock["packages"][f"node_modules/{package}"]["version"])


def java(version: str, lock: str = "") -> Client:
    """Kafka's own client."""
    return Client(
        f"Java {version.rpartition('.')[0]}", version, partial(build_java, version, lock=lock)
    )


def python(name: str, module: str, package: str) -> Client:
    """A library of this interpreter."""
    return Client(name, installed(package), lambda _folder: build_python(module))


def limit_39(error: str, instead: str) -> dict[tuple[str, str], Limit]:
    """KIP-848 on Kafka 3.9, which has version 0 of ConsumerGroupHeartbeat alone: without the client's own member id."""
    wants = "wants version 1 of ConsumerGroupHeartbeat (Kafka 4.0)"
    return {(KAFKA_3, "group-consumer"): Limit(error, f"{wants}; with Kafka 3.9 {instead}")}


CLIENTS = (
    java("2.1.1", "clients-2.1.1"),
    java("2.8.2", "clients-2.8.2"),
    java(KAFKA_3),
    java(KAFKA_4),
    Client(
        "Kafka Streams",
        KAFKA_4,
        partial(build_java, KAFKA_4, main="StreamsMatrix", lock=f"streams-{KAFKA_4}"),
        (EXACTLY_ONCE,),
    ),
    Client("librdkafka 1.9", "1.9.2", lambda _folder: build_librdkafka()),
    python("librdkafka", "confluent", "confluent-kafka")._replace(
        limits=limit_39("read 0 of 10 records", "librdkafka waits in silence and reads nothing")
    ),
    Client(
        "franz-go",
        go_version("github.com/twmb/franz-go"),
        partial(build_go, "franz"),
        limits=limit_39(
            "not of the consumer protocol", "franz-go takes the classic protocol without a word"
        ),
    ),
    Client("sarama", go_version("github.com/IBM/sarama"), partial(build_go, "sarama")),
    Client("KafkaJS", npm_version("kafkajs"), lambda _folder: build_node("steps.mjs")),
    Client("aiokafka", installed("aiokafka"), lambda _folder: build_codecs("aio")),
    Client("kafka-python", installed("kafka-python"), lambda _folder: build_codecs("kpython")),
)
