"""Java's own clients on a topic of many partitions: one process with a producer and a consumer for each group.

Owns the process (`TailClients.java`), and what it is told and answers. Must not know rungs. Invariants: lateness counts
from when a record was due, by the clock of that process; the process ends with its owner.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from select import select

from bench.ladder.loads import Wrong
from tests.kit.broker.jars import KAFKA_4, kafka_jars
from tests.kit.broker.java import find_java
from tests.kit.broker.process import die_with_parent

SOURCE = Path(__file__).with_name("TailClients.java")
FLAGS = ("-Xmx384m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
MARGIN_S = 30.0
"""For the answer to a command beside the time that the command names: a JVM warms up."""


class JavaClients:
    """`Clients` of `bench.shape.tails`: one producer, `groups` consumers."""

    def __init__(
        self, address: str, topic: str, partitions: int, groups: int, record_bytes: int
    ) -> None:
        words = (address, topic, partitions, groups, record_bytes)
        self._child = subprocess.Popen(
            [find_java(), *FLAGS, "-cp", f"{kafka_jars(KAFKA_4)}/*", str(SOURCE), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )

    def settle(self, patience_s: float) -> None:
        """Write until each group stands at every tail. Wrong."""
        self._ask("settle", "settled", patience_s)

    def produce(self, rate: float, seconds: float) -> int:
        """Send on schedule, partition after partition, until all is acknowledged. Return the number sent. Wrong."""
        return int(self._ask(f"produce {rate} {seconds}", "sent", seconds)[0])

    def drain(self, patience_s: float) -> list[int]:
        """Wait until every group has what was produced last. Return each record's lateness in each group, in ns."""
        return [int(word) for word in self._ask(f"drain {patience_s}", "late", patience_s)]

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()

    def _ask(self, command: str, wanted: str, seconds: float) -> list[str]:
        """The words behind `wanted` of the answer. Wrong where there is another, or none."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{command}\n".encode())
        self._child.stdin.flush()
        is_answered, _, _ = select([self._child.stdout], [], [], seconds + MARGIN_S)
        said = self._child.stdout.readline().decode().split() if is_answered else []
        if said[:1] != [wanted]:
            raise Wrong(f"the Java clients answer {command!r} with {said[:20]}")
        return said[1:]
