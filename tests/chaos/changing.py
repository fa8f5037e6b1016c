"""The topics of a run that change underneath: who writes and reads them, what is read at last, and the judgement.

Owns these threads, the history of changes, and which faults they need. Must not know how a change is made or judged.
Invariants: nobody else reads or writes these topics; what is read at last is read when nothing changes any more.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.chaos.broker_logs import BrokerLogs
from tests.chaos.log_checker import check_changes, tells_of_first_of_codec
from tests.chaos.raw_reader import BY_ID, BY_NAME, RawFollower
from tests.chaos.raw_writer import NO_END, RawWriter
from tests.chaos.readings import AT_LAST, Changes, Last
from tests.chaos.topic_faults import KEYED, PARTITIONS, REMADE, SETTINGS, UNCLEAN, TopicFaults
from tests.chaos.topic_orders import TopicOrders
from tests.chaos.whole_readers import WholeReader, read_by_id, read_by_name
from tests.kit.log_lines import unfold

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.chaos.cluster import Sidecars

LONGEST_REMADE = 16
"""Records of a partition: the next incarnation soon has more than the former one had."""
LAST_VERSIONS = (4, 8, 11, 12, 13, 16)


def list_followers() -> Iterator[tuple[str, dict[str, int], Sequence[int]]]:
    """(name, topics, versions): of each topic one by name and one by id that keep to it, and one each for all."""
    for word, versions in (("name", BY_NAME), ("id", BY_ID)):
        for topic, partitions in PARTITIONS.items():
            yield f"{word}-{topic}", {topic: partitions}, versions
        yield f"{word}-all", PARTITIONS, versions


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of an access log, but for what a killed process has left half, and compressed files."""
    for text in path.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line


class ChangingTopics:
    """`changes`: what was done and read. `faults` and `broker_faults` are for the schedule."""

    def __init__(
        self,
        seed: int,
        sidecars: Sidecars,
        over: threading.Event,
        say: Callable[[str], None],
        batch_pause_s: float,
    ) -> None:
        """`batch_pause_s`: of each writer between two requests."""
        self._sidecars, self._say = sidecars, say
        self._rng = random.Random(f"{seed}/changing")
        self._hushed: set[str] = set()
        self.changes = Changes(compacted=frozenset((KEYED,)), whole=frozenset((SETTINGS,)))
        self._logs = BrokerLogs(
            [sidecars.cluster.log_dir(node) for node in sidecars.nodes], frozenset(PARTITIONS)
        )
        self.at_work = TopicFaults(
            sidecars,
            TopicOrders(sidecars),
            self.changes,
            self._hushed,
            over,
            random.Random(f"{seed}/pair"),
        )
        self._writers = [
            RawWriter(
                f"raw-{topic}",
                sidecars.through,
                sidecars.direct,
                topic,
                self._derive(topic),
                self._hushed,
                keyed=topic == KEYED,
                until=LONGEST_REMADE if topic == REMADE else NO_END,
                pause_s=batch_pause_s,
            )
            for topic in PARTITIONS
        ]
        self._followers = [
            RawFollower(name, sidecars.through, topics, versions, self._derive(name), self._hushed)
            for name, topics, versions in list_followers()
        ]
        self._whole, self._whole_last = (
            WholeReader(
                name,
                sidecars.through,
                sidecars.direct,
                PARTITIONS,
                self._derive(name),
                self._hushed,
            )
            for name in ("whole", AT_LAST)
        )
        self._raw_last = RawFollower(AT_LAST, sidecars.through, {}, (), self._derive(AT_LAST))

    def _derive(self, name: str) -> random.Random:
        return random.Random(f"{self._rng.random()}/{name}")

    def begin(self) -> None:
        """Make the topics, and start everybody."""
        self.at_work.create()
        for thread in (self._logs, *self._writers, *self._followers, self._whole):
            thread.start()

    def progress(self) -> str:
        fetched = sum(len(one.fetched) for one in self._followers)
        return f"changing topics: {sum(one.acknowledged for one in self._writers)} batches written, {fetched} fetched"

    def end(self, patience_s: float) -> Iterator[str]:
        """Everybody stops, then everything is read once more; what did not come to its end."""
        yield from self._stop(self._writers, patience_s)
        yield from self._stop([*self._followers, self._whole], patience_s)
        try:
            self._read_last(patience_s)
        except TimeoutError as failed:
            yield f"{failed}"
        self._logs.finish()
        self._logs.join(patience_s)
        self._logs.scan()
        clients: tuple[RawWriter | RawFollower | WholeReader, ...] = (
            *self._writers,
            *self._followers,
            self._whole,
            self._whole_last,
        )
        for client in clients:
            self._say(f"{client.name} was told: {client.errors}")
        self.changes.sent[UNCLEAN] = self._writers[list(PARTITIONS).index(UNCLEAN)].sent
        for one in (*self._followers, self._raw_last):
            self.changes.fetched += one.fetched
        self.changes.delivered += self._whole.delivered + self._whole_last.delivered

    def _stop(
        self, threads: Sequence[RawWriter | RawFollower | WholeReader], patience_s: float
    ) -> Iterator[str]:
        deadline = time.monotonic() + patience_s
        for thread in threads:
            thread.finish()
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
            if thread.is_alive():
                yield f"{thread.name} has not come to its end"

    def _read_last(self, patience_s: float) -> None:
        rng = self._derive("versions")
        sidecars = self._sidecars
        directly = RawFollower("direct", sidecars.direct, {}, (), rng)
        for topic, partitions in PARTITIONS.items():
            for client in (read_by_id, read_by_name):
                self._whole_last.read(topic, client, patience_s)
            for partition in range(partitions):
                for version in rng.sample(LAST_VERSIONS, 2):
                    began = time.monotonic()
                    through, direct = (
                        tuple(
                            data
                            for one in reader.read_whole(
                                bootstrap, topic, partition, number, patience_s
                            )
                            for data in one.batches
                        )
                        for reader, bootstrap, number in (
                            (self._raw_last, sidecars.through, version),
                            (directly, sidecars.direct, 13),
                        )
                    )
                    took_s = time.monotonic() - began
                    self.changes.last.append(
                        Last(f"v{version}", topic, partition, through, direct, took_s)
                    )

    def judge(self) -> list[str]:
        """Every broken promise."""
        found = check_changes(self.changes, self._logs.held)
        brought = Counter(one.topic for one in self.changes.fetched)
        batches = sum(len(one) for one in self._logs.held.batches.values())
        self._say(
            f"changing topics: {dict(brought)} fetches with records, {len(self.changes.delivered)} whole readings, "
            f"{len(self.changes.incarnations)} incarnations, {batches} batches in logs, "
            f"{len(self.changes.cuts)} new log starts, {len(self.changes.elections)} unclean elections"
        )
        return [f"{one.rule}: {one.what}" for one in found]

    def explains(self, line: str) -> bool:
        """Whether what a verifier says is of a batch that may be served so."""
        return tells_of_first_of_codec(line, self._logs.held)

    def idle(self, access_logs: list[Path]) -> Iterator[str]:
        """What nobody read, or not from memory."""
        for topic in PARTITIONS:
            if not any(one.topic == topic for one in self.changes.fetched):
                yield f"nobody has read {topic}"
        hits: Counter[str] = Counter()
        for path in access_logs:
            for one in unfold(read_lines(path)):
                if one["type"] == "fetch" and one["result"] == "hit":
                    hits[one["topic"]] += one["bytes"]
        changing = {topic: hits[topic] for topic in PARTITIONS}
        self._say(f"changing topics: bytes from memory, as the access logs have it: {changing}")
        if not any(changing.values()) and not self._sidecars.bypass:
            yield "nothing of the changing topics was served from memory"
