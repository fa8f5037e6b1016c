"""Kafka's console consumer as one more group: a Java client, read_committed, through Forebay.

Owns the process and the reading of what it prints. Must not know which faults there are. Invariants: it prints all it
reads in the order of reading; an offset that is not after the one before it began another assignment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.chaos.history import Group, Place, Read, digest_of, scan_name
from tests.kit.broker.jars import KAFKA_4
from tests.kit.broker.process import JVM_FLAGS, JavaProcess, java_command

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "org.apache.kafka.tools.consumer.ConsoleConsumer"
HEAP_MB = 96
LINE = re.compile(rb"Partition:(\d+)\tOffset:(\d+)\t([^\t]*)\t(.*)")


class JavaReader:
    """Reads one topic from its start until `stop`; `read` may be called at any time."""

    def __init__(self, name: str, bootstrap: str, topic: str, directory: Path) -> None:
        self.name, self.topic = name, topic
        self._log_path = directory / f"{name}.log"
        command = java_command(
            MAIN,
            *(
                "--bootstrap-server",
                bootstrap,
                "--topic",
                topic,
                "--from-beginning",
                "--group",
                name,
            ),
            *("--isolation-level", "read_committed"),
            *(
                word
                for shown in ("print.partition", "print.offset", "print.key")
                for word in ("--formatter-property", f"{shown}=true")
            ),
            version=KAFKA_4,
            heap_mb=HEAP_MB,
            log_level="error",
            flags=JVM_FLAGS,
        )
        self._process = JavaProcess(command, self._log_path)

    def stop(self) -> None:
        self._process.stop()

    def read(self) -> Group:
        """What it has printed so far. It does not say how far it has come beyond that."""
        group = Group(self.name, (self.topic,), committed=True)
        latest: dict[Place, list[Read]] = {}
        for line in self._log_path.read_bytes().splitlines():
            if (found := LINE.fullmatch(line)) is None:
                continue
            partition, offset, key, value = found.groups()
            place, read = (
                Place(self.topic, int(partition)),
                Read(int(offset), scan_name(value), digest_of(key, value)),
            )
            run = latest.get(place)
            if run is None or run[-1].offset >= read.offset:
                run = latest[place] = []
                group.runs.append((place, run))
            run.append(read)
        return group
