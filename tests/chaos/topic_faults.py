"""What an operator does to topics while they are read, and an election that loses records.

Owns the topics that are changed, their settings, each kind of change as a fault of the seeded schedule, and what the
judge is told of it. Must not know who reads or writes, nor the rules. Invariants: a change stands in `changes` with
`settled_at` NEVER until every broker knows of it; the topics that lose records are topics of their own; readers leave
a hushed topic alone.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from protocol import control
from tests.chaos import orders
from tests.chaos.history import Place
from tests.chaos.raw_reader import ANSWER_S, LATEST, find_leaders, find_offset, reads_by_id
from tests.chaos.raw_writer import writes
from tests.chaos.readings import NEVER, Cut, Election, Incarnation
from tests.kit.raw_fetch import METADATA_VERSION, RawClient
from tests.protocol import oracle

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable

    from tests.chaos.cluster import Sidecars
    from tests.chaos.readings import Changes
    from tests.chaos.topic_orders import TopicOrders

SETTINGS, KEYED, REMADE, UNCLEAN = "settings", "keyed", "remade", "unclean"
PARTITIONS = {SETTINGS: 8, KEYED: 2, REMADE: 2, UNCLEAN: 1}
SMALL = {"segment.bytes": str(1 << 20)}
CONFIG = {
    SETTINGS: SMALL,
    KEYED: SMALL
    | {
        "segment.ms": "2000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "3000",
        "max.compaction.lag.ms": "3000",
    },
    REMADE: SMALL,
    UNCLEAN: SMALL | {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
}
STAMPS = ("CreateTime", "LogAppendTime")
CODECS = ("producer", "gzip")
POLICIES = ("delete", "compact", "compact,delete")
QUIET_S = 12.5
"""Longer than Forebay follows what nobody reads."""
QUIET_SHARE = 0.6
LEAST_RECORDS = 12
END_S = 15.0
ALONE_S = 2.0
METADATA = 3
PATIENCE_S = 60.0
POLL_S = 0.2
WRITE_S = 2.0


class TopicFaults:
    """The faults are methods as those of `Faults`: a source of chance in, what was done out."""

    def __init__(
        self,
        sidecars: Sidecars,
        orders_: TopicOrders,
        changes: Changes,
        hushed: set[str],
        over: threading.Event,
        rng: random.Random,
    ) -> None:
        self._sidecars, self._orders, self._changes = sidecars, orders_, changes
        self._hushed, self._over = hushed, over
        self._settings = {"message.timestamp.type": 0, "compression.type": 0, "cleanup.policy": 0}
        self._pair = rng.sample(sidecars.nodes, 2)

    @property
    def faults(self) -> tuple[Callable[[random.Random], str], ...]:
        return (
            self.recreate_topic,
            self.delete_records,
            self.change_timestamp_type,
            self.change_codec,
            self.change_cleanup,
            self.move_cleanly,
        )

    def create(self) -> None:
        """Make all topics, as they are at first."""
        for topic in PARTITIONS:
            topic_id = self._orders.create(topic, CONFIG[topic], self._assign(topic))
            self._changes.incarnations.append(Incarnation(topic, topic_id, NEVER))

    def _assign(self, topic: str) -> list[list[int]]:
        """Replicas by partition. A topic made again has the same: who led a former incarnation leads the next."""
        if topic == UNCLEAN:
            return [self._pair]
        nodes = list(self._sidecars.nodes)
        turned = (place % len(nodes) for place in range(PARTITIONS[topic]))
        return [nodes[turn:] + nodes[:turn] for turn in turned]

    def recreate_topic(self, rng: random.Random) -> str:
        """With the name known or unknown in between. Where there is quiet, nobody reads or writes for a while, and then
        nobody reads the new topic before it is longer than the former one. By name it may be read first.
        """
        quiet, waits = rng.random() < QUIET_SHARE, rng.random() < 0.5
        former = self._changes.ids_of(REMADE)[-1]
        self._await_end(REMADE, LEAST_RECORDS)
        former_end = self._find_end(REMADE, 0)
        if quiet:
            self._hushed |= {REMADE, writes(REMADE)}
            self._over.wait(QUIET_S)
        try:
            self._orders.delete(REMADE)
            if waits:
                self._orders.await_each(lambda client: not find_leaders(client, REMADE))
            self._orders.create(REMADE, CONFIG[REMADE], self._assign(REMADE))
            topic_id = self._orders.await_id(REMADE, former)
            self._hushed.discard(writes(REMADE))
            self._changes.incarnations.append(Incarnation(REMADE, topic_id, NEVER))
            place = len(self._changes.incarnations) - 1
            settled_at = self._orders.await_served(REMADE, topic_id, PARTITIONS[REMADE])
            self._changes.incarnations[place] = Incarnation(REMADE, topic_id, settled_at)
            if quiet:
                self._await_end(REMADE, former_end + 1)
            if rng.random() < 0.5:
                self._hushed.add(reads_by_id(REMADE))
                self._hushed.discard(REMADE)
                self._over.wait(ALONE_S)
        finally:
            self._hushed -= {REMADE, writes(REMADE), reads_by_id(REMADE)}
        said = (
            f"{topic_id.hex()}, {'seen gone' if waits else 'at once'}, {former_end} records before"
        )
        return f"{said}, after {QUIET_S:.0f} s of quiet" if quiet else said

    def _await_end(self, topic: str, least: int) -> None:
        """Until partition 0 has so many records, or END_S are over: writers may stand still."""
        deadline = time.monotonic() + END_S
        while (
            self._find_end(topic, 0) < least
            and time.monotonic() < deadline
            and not self._over.is_set()
        ):
            self._over.wait(POLL_S)

    def delete_records(self, rng: random.Random) -> str:
        """Of one partition, some or all."""
        partition, whole = rng.randrange(PARTITIONS[SETTINGS]), rng.random() < 0.3
        (topic_id,) = self._changes.ids_of(SETTINGS)
        end = self._find_end(SETTINGS, partition)
        if end <= 0:
            return f"{SETTINGS}-{partition} is empty"
        before = end if whole else rng.randint(end // 2 + 1, end)
        self._orders.delete_records(SETTINGS, partition, before)
        self._changes.cuts.append(Cut(topic_id, partition, before, NEVER))
        place = len(self._changes.cuts) - 1
        settled_at = self._orders.await_start(topic_id, partition, before)
        self._changes.cuts[place] = Cut(topic_id, partition, before, settled_at)
        return f"{SETTINGS}-{partition} below {before} of {end}"

    def _find_end(self, topic: str, partition: int) -> int:
        ends: list[int] = []

        def known(client: RawClient) -> bool:
            ends.append(find_offset(client, topic, partition, LATEST))
            return True

        self._orders.await_each(known, least=1)
        return ends[-1]

    def change_timestamp_type(self, _rng: random.Random) -> str:
        return self._turn(SETTINGS, "message.timestamp.type", STAMPS)

    def change_codec(self, _rng: random.Random) -> str:
        return self._turn(SETTINGS, "compression.type", CODECS)

    def change_cleanup(self, _rng: random.Random) -> str:
        return self._turn(KEYED, "cleanup.policy", POLICIES)

    def _turn(self, topic: str, name: str, values: tuple[str, ...]) -> str:
        self._settings[name] += 1
        value = values[self._settings[name] % len(values)]
        self._orders.configure(topic, name, value)
        return f"{topic}: {name}={value} at {time.monotonic():.2f}"

    def move_cleanly(self, rng: random.Random) -> str:
        """The same replicas in another order, the first of which leads then."""
        said = []
        for topic in (SETTINGS, KEYED, REMADE):
            place = Place(topic, rng.randrange(PARTITIONS[topic]))
            replicas = rng.sample(self._sidecars.nodes, len(self._sidecars.nodes))
            said.append(
                f"{place} to {replicas} {self._order(rng, orders.reassign, place, replicas)}"
            )
            self._over.wait(rng.uniform(0.2, 1))
            said.append(self._order(rng, orders.elect, [place]))
        return ", ".join(one for one in said if one)

    def _order(self, rng: random.Random, order: Callable[..., str], *what: object) -> str:
        """What a broker says to it; of one that does not answer another is asked."""
        said = ""
        for node in rng.sample(self._sidecars.nodes, len(self._sidecars.nodes)):
            host, port = self._sidecars.cluster.address(node_id=node)
            try:
                return order(f"{host}:{port}", *what)
            except OSError as failed:
                said = f"{failed}"
        return said

    # -- an unclean election -------------------------------------------------------------------------------

    def elect_uncleanly(self, rng: random.Random) -> str:
        """The follower is frozen while records are written, and leads without them while the leader is frozen. At last
        the former leader, cut to the log of the other, leads again. Readers are there all the time, or only when
        records of the last epoch have been written.
        """
        leader, behind = self._pair if rng.random() < 0.5 else self._pair[::-1]
        quiet = rng.random() < 0.5
        cluster = self._sidecars.cluster
        (topic_id,) = self._changes.ids_of(UNCLEAN)
        other = next(node for node in self._sidecars.nodes if node not in self._pair)
        self._lead(other, leader, behind)
        former = self._state(other)[1]
        cluster.stall(behind)
        try:
            self._wait("the follower is missed", lambda: self._state(other)[2] == {leader})
            self._over.wait(WRITE_S)
            cluster.stall(leader)
        finally:
            cluster.wake(behind)
        try:
            self._wait("the other leads", lambda: self._state(other)[0] == behind)
            epoch = self._state(other)[1]
            self._changes.elections.append(Election(topic_id, 0, epoch, NEVER))
            self._over.wait(WRITE_S)
            if quiet:
                self._hushed.add(UNCLEAN)
        finally:
            cluster.wake(leader)
        try:
            self._wait(
                "the former leader is back", lambda: self._state(other)[2] == set(self._pair)
            )
            self._orders.await_each(
                lambda client: max(find_leaders(client, UNCLEAN)[0].epochs.values()) >= epoch
            )
            self._changes.elections[-1] = Election(topic_id, 0, epoch, time.monotonic())
            self._lead(other, leader, behind)
            self._over.wait(WRITE_S if quiet else 0)
        finally:
            self._hushed.discard(UNCLEAN)
        return (
            f"broker {leader} in epoch {former}, {behind} without its last in {epoch}, "
            f"{leader} again{', and nobody reads' if quiet else ''}"
        )

    def _lead(self, asked: int, leader: int, other: int) -> None:
        """Have `leader` lead, with both in sync."""
        host, port = self._sidecars.cluster.address(node_id=asked)
        place = Place(UNCLEAN, 0)

        def leads() -> bool:
            now, _, in_sync = self._state(asked)
            if now != leader:
                with contextlib.suppress(OSError):
                    orders.reassign(f"{host}:{port}", place, [leader, other])
                    orders.elect(f"{host}:{port}", [place])
            return now == leader and in_sync == {leader, other}

        self._wait(f"broker {leader} leads", leads)

    def _state(self, asked: int) -> tuple[int, int, set[int]]:
        """(leader, its epoch, in-sync replicas) of the topic, as a broker knows; (-1, -1, {}) where it does not say."""
        host, port = self._sidecars.cluster.address(node_id=asked)
        request = control.build_metadata_request(METADATA_VERSION, 4, UNCLEAN, topics=[UNCLEAN])
        try:
            with RawClient(f"{host}:{port}", timeout_s=ANSWER_S) as client:
                said = oracle.read_response(METADATA, METADATA_VERSION, client.call(request))[1]
        except OSError:
            return -1, -1, set()
        if not said.topics[0].partitions:
            return -1, -1, set()
        (found,) = said.topics[0].partitions
        return int(found.leader_id), int(found.leader_epoch), {int(one) for one in found.isr_nodes}

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(what)
            time.sleep(POLL_S)
