"""Topics whose leader may lose what it acknowledged: two replicas that are led to disagree, and made one again.

Owns three brokers' worth of orders (the third votes), the topics, and the waits until an election is over. It must not
know what is stored where. Invariant: Forebay stands before FIRST; what is written past it goes to whoever leads.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.history import Place
from tests.chaos.orders import elect
from tests.e2e.test_invalidation import wait_ready, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.sidecar import Pair

FIRST, BEHIND = 1, 2
CLUSTER: dict[str, Any] = {
    "size": 3,
    "heap_mb": 256,
    "overrides": {"broker.session.timeout.ms": 6000, "broker.heartbeat.interval.ms": 1000},
}
CONFIG = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
PATIENCE_S = 240.0
"""A broker that starts beside much else takes a minute, and so does an election of its controllers."""
POLL_S = 0.2
ASK_S = 2.0
"""librdkafka keeps to the broker that it asked first, though that goes away: who asks anew is told by another."""
UNKNOWN = -1


class Lossy:
    """`topics` of one partition on FIRST and BEHIND, which may be led by whoever is there."""

    def __init__(self, pair: Pair, count: int = 1) -> None:
        self._pair = pair
        self._admin = AdminClient({"bootstrap.servers": pair.direct})
        self.topics = [f"unclean-{time.time_ns()}-{number}" for number in range(count)]
        wanted = [
            NewTopic(name, 1, replica_assignment=[[FIRST, BEHIND]], config=CONFIG)
            for name in self.topics
        ]
        for done in self._admin.create_topics(wanted).values():
            done.result(20)
        self._wait_state(
            "both are in sync",
            lambda leader, in_sync: (leader, in_sync) == (FIRST, {FIRST, BEHIND}),
        )

    def _state(self, topic: str) -> tuple[int, set[int]]:
        """Leader and replicas in sync."""
        try:
            found = self._admin.list_topics(topic, timeout=ASK_S).topics[topic].partitions.get(0)
        except KafkaException:
            found = None
        return (found.leader, set(found.isrs)) if found else (UNKNOWN, set())

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, what
            time.sleep(POLL_S)

    def _wait_state(self, what: str, holds: Callable[[int, set[int]], bool]) -> None:
        self._wait(what, lambda: all(holds(*self._state(topic)) for topic in self.topics))

    def leave_behind(self) -> None:
        """BEHIND goes away; what is written from now on FIRST alone has."""
        self._pair.broker.stop(BEHIND)
        self._wait_state(
            "the follower is missed", lambda leader, in_sync: (leader, in_sync) == (FIRST, {FIRST})
        )

    def swap(self, leaver: int, leader: int) -> None:
        """`leaver` goes away, `leader` comes back without what the other wrote meanwhile, and leads."""
        self._pair.broker.stop(leaver)
        self._pair.broker.start(leader)
        self.wait_led_by(leader)

    def restart_alone(self) -> None:
        """FIRST, which is alone, goes away and comes back: it leads in a newer epoch."""
        self._pair.broker.stop(FIRST)
        self._pair.broker.start(FIRST)
        self.wait_led_by(FIRST)

    def wait_led_by(self, node_id: int) -> None:
        """Until all are led by this one, and by nobody that is gone."""
        self._wait_state(
            f"{node_id} leads", lambda leader, in_sync: leader == node_id and in_sync == {node_id}
        )
        if node_id == FIRST:
            wait_ready(self._pair)

    def bring_first_back(self) -> None:
        """FIRST comes back, is cut to BEHIND's log, and leads."""
        self._pair.broker.start(FIRST)
        self._wait_state("the first has caught up", lambda _, in_sync: FIRST in in_sync)
        host, port = self._pair.broker.address(node_id=BEHIND)
        places = [Place(topic, 0) for topic in self.topics]
        self._wait(
            "the first leads",
            lambda: (
                not elect(f"{host}:{port}", places)
                or all(self._state(t)[0] == FIRST for t in self.topics)
            ),
        )
        self._wait_state("the first is known to lead", lambda leader, _: leader == FIRST)
        wait_ready(self._pair)

    def write_past(self, topic: str, word: str, records: int) -> None:
        """As `write`, past Forebay, to whoever leads."""
        write(cast("Pair", SimpleNamespace(through=self._pair.direct)), topic, word, records)
