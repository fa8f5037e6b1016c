"""Traffic of a pretended sidecar: a FIFO over a few partitions, logged by the real writer.

Owns the invented workload and the plain lists of what was logged, for tests to compute with. A reader's age
is exact by construction: admitted bytes now minus admitted bytes when its offset was admitted. Invariant: one traffic
gives the same numbers in either version of the log.
"""

import gzip
import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from metrics.access_log import AccessLog, BlockLine, EmptyLine, LogLimits
from metrics.access_log_schema import EMPTY_INTERVAL_MS, SCHEMA_VERSION
from tests.kit.log_lines import LoggedFetch, LoggedResponse, build_older_lines

START_MS = 1_763_700_000_000
TOPICS = ("orders", "payments", "clicks")
CLIENTS = ("billing", 'odd "name"\n', None, "replay")
BATCH_BYTES = 1000


@dataclass
class Traffic:
    """What was logged, in order: `fetches` has each partition of each response; of them, `summed` have no line of their
    own, but are in `empties`.
    """

    fetches: list[LoggedFetch] = field(default_factory=list)
    summed: list[LoggedFetch] = field(default_factory=list)
    empties: list[EmptyLine] = field(default_factory=list)
    blocks: list[BlockLine] = field(default_factory=list)


@dataclass
class _Sidecar:
    """`admitted_at[topic][n]`: admitted bytes before the n-th batch (of ten records) of the topic."""

    cache_size_bytes: int
    ghost_bytes: int
    random: random.Random
    admitted_bytes: int = 0
    admitted_at: dict[str, list[int]] = field(
        default_factory=lambda: {topic: [] for topic in TOPICS}
    )

    def produce(self, now_ms: int) -> BlockLine:
        topic = self.random.choice(TOPICS)
        log = self.admitted_at[topic]
        log.append(self.admitted_bytes)
        size_bytes = BATCH_BYTES + self.random.randrange(500)
        self.admitted_bytes += size_bytes
        base, topic_id = 10 * (len(log) - 1), topic.encode().ljust(16, b".")
        source = self.random.choice(("produce", "watch"))
        return BlockLine(
            now_ms,
            "main",
            topic,
            topic_id,
            0,
            base,
            base + 10,
            size_bytes,
            source,
            self.admitted_bytes,
            1,
            log[-1],
            self.admitted_bytes,
            (),
            None,
        )

    def fetch(self, now_ms: int) -> LoggedFetch:
        topic = self.random.choice(TOPICS)
        log = self.admitted_at[topic]
        client = self.random.choices(CLIENTS, (6, 3, 2, 1))[0]
        back = min(len(log), int(self.random.expovariate(0.2 if client != "replay" else 0.004)))
        batch = len(log) - back
        age_bytes = self.admitted_bytes - log[batch] if batch < len(log) else 0
        result, reason = self._judge(age_bytes, client)
        return LoggedFetch(
            LoggedResponse(
                ts=now_ms,
                listener="main",
                connection=CLIENTS.index(client),
                client_id=client,
                group="invoices" if client == "billing" else None,
                api_version=self.random.choice((11, 13, 17)),
                wait_ms=self.random.random() * 500,
                total_ms=self.random.random() * 600,
                admitted_bytes=self.admitted_bytes,
            ),
            topic=topic if self.random.random() < 0.95 else None,
            topic_id=topic.encode().ljust(16, b"."),
            partition=self.random.randrange(2),
            offset=10 * batch,
            isolation=0,
            result=result,
            reason=reason,
            bytes=0 if not back else BATCH_BYTES * self.random.randrange(1, 4),
            high_watermark=-1 if reason == "follower" else 10 * len(log),
            age_bytes=None if reason in ("cold", "follower") else age_bytes,
            delay_ms=500 * self.random.random() if reason == "evicted" and batch % 2 else None,
        )

    def _judge(self, age_bytes: int, client: str | None) -> tuple[str, str]:
        if client is None:
            return "pass", "follower"
        if age_bytes >= self.ghost_bytes:
            return "miss", "cold"
        if age_bytes >= self.cache_size_bytes:
            return "miss", "evicted"
        return ("miss", "unproven") if self.random.random() < 0.02 else ("hit", "")


def pretend(rounds: int, cache_size_bytes: int, seed: int = 1) -> Iterator[LoggedFetch | BlockLine]:
    """The lines of `rounds` steps of 50 ms: one batch produced, two fetches."""
    sidecar = _Sidecar(cache_size_bytes, 4 * cache_size_bytes, random.Random(seed))
    for step in range(rounds):
        now_ms = START_MS + 50 * step
        yield sidecar.produce(now_ms)
        yield sidecar.fetch(now_ms + 1)
        yield sidecar.fetch(now_ms + 2)


def sum_empty(lines: list[LoggedFetch]) -> Iterator[EmptyLine]:
    """The sums of lines without records: by interval, connection, client, topic, result and reason."""
    groups: dict[tuple[object, ...], list[LoggedFetch]] = defaultdict(list)
    for line in lines:
        who = *line.response[1:5], line.topic, line.topic_id
        interval = line.response.ts // EMPTY_INTERVAL_MS
        groups[(interval, *who, line.result, line.reason)].append(line)
    for group in groups.values():
        counts: dict[int | None, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for line in group:
            lag = line.high_watermark - line.offset
            decade = 10 ** math.floor(math.log10(lag)) if lag > 0 else 0
            counts[decade if line.high_watermark >= 0 else None][line.partition] += 1
        first, last = group[0], group[-1]
        yield EmptyLine(
            last.response.ts,
            first.response.ts,
            *first.response[1:5],
            first.topic,
            first.topic_id,
            first.result,
            first.reason,
            len(group),
            first.response.admitted_bytes,
            counts,
        )


def write_log(
    directory: Path,
    boot: str,
    rounds: int = 2000,
    cache_size_bytes: int = 200_000,
    version: int = SCHEMA_VERSION,
) -> Traffic:
    """Log the pretended traffic of one boot, some of it in compressed files; returns what was logged."""
    limits = LogLimits(rotate_bytes=1 << 18, flush_interval_s=0.001)
    traffic = Traffic()
    log = AccessLog(
        directory, boot, now_ms=lambda: START_MS, cache_size_bytes=cache_size_bytes, limits=limits
    )
    for line in pretend(rounds, cache_size_bytes, seed=len(boot)):
        if isinstance(line, BlockLine):
            traffic.blocks.append(line)
            log.put(line)
            continue
        traffic.fetches.append(line)
        if version == 1 or line.bytes or line.delay_ms is not None:
            log.put(line.line)
        else:
            traffic.summed.append(line)
    for empty in sum_empty(traffic.summed):
        traffic.empties.append(empty)
        log.put_empty(empty)
    assert log.close(timeout_s=30)
    assert log.statistics().dropped_lines == 0
    if version != SCHEMA_VERSION:
        for path in directory.glob(f"access-*-{boot}-*"):
            _state_version(path, version)
    return traffic


def _state_version(path: Path, version: int) -> None:
    """Give the lines of a file the form of an earlier version."""
    read, pack = (gzip.decompress, gzip.compress) if path.suffix == ".gz" else (bytes, bytes)
    lines = map(json.loads, read(path.read_bytes()).splitlines())
    older = [f"{text}\n" for line in lines for text in build_older_lines(line, version)]
    path.write_bytes(pack("".join(older).encode("ascii")))
