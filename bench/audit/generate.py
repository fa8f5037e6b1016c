"""Synthetic access logs of any size, in the writer's own format.

Owns the invented load: brokers, topics, tailing and lagging consumers over a FIFO, in files of one boot each,
rotated and compressed as the sidecar does it. Must not know the audit. Invariants: the same arguments give the same
lines; each file begins and ends with its `log` line, whose `writtenLines` count what came before; ages are those of
a FIFO.
"""

import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from metrics.access_log import AnsweredPartition, BlockLine, EmptyLine, ResponseLine, format_lines
from metrics.access_log_schema import SCHEMA_VERSION

START_MS: Final = 1_763_683_200_000
FILE_ROWS: Final = 130_000
"""Of a file, in rows of the audit's table: a partition of a response, a run of stored batches, or a sum each."""
_LOG_LINE: Final = (
    '{"v":%d,"type":"log","boot":"%s","ts":%d,"section":0,"event":"%s","sequence":%d,"cacheSizeBytes":%d'
    ',"writtenLines":%d,"droppedLines":0,"nodeId":1,"listeners":[]}\n'
)
_CACHE_BYTES: Final = 8 << 30
_STEP_ROWS: Final = 20
"""Rows of one step of time: blocks, partitions of responses to tailing and lagging consumers, sums of empty ones."""
_RESPONSE_ROWS: Final = 4
"""Partitions of a response."""


class Load(NamedTuple):
    """One broker's traffic. `step_ms`: time in which _STEP_ROWS rows come to pass."""

    broker: int = 0
    topics: int = 40
    partitions: int = 12
    clients: int = 60
    step_ms: int = 20

    @property
    def boot(self) -> str:
        """The boot id of the broker's only start."""
        return f"{self.broker:016x}"


def write_boot(directory: Path, load: Load, rows: int, compressed: bool) -> list[Path]:
    """The files of one boot."""
    steps = _steps(load)
    paths, written, done = [], 0, 0
    for sequence in range(1, 1 + max(1, round(rows / FILE_ROWS))):
        name = f"access-20251121T000000Z-{load.boot}-{sequence:06d}.jsonl"
        path = directory / (name + ".gz" if compressed else name)
        with gzip.open(path, "wb", 3) if compressed else path.open("wb") as file:
            target = done + min(FILE_ROWS, rows)
            now_ms, opened = START_MS, False
            while done < target:
                now_ms, texts = next(steps)
                if not opened:
                    file.write(_log_line(load, now_ms, "open", sequence, written))
                    opened = True
                file.write(format_lines(load.boot, 0, texts).encode("ascii"))
                written += len(texts)
                done += _STEP_ROWS
            file.write(_log_line(load, now_ms, "close", sequence, written))
        paths.append(path)
    return paths


def copy_boot(paths: Sequence[Path], load: Load, broker: int) -> list[Path]:
    """The files of `load`'s boot once more, as those of another broker's: a tenth of the time of writing new ones."""
    other = load._replace(broker=broker)
    old, new = (f'"boot":"{one.boot}"'.encode("ascii") for one in (load, other))
    copies = []
    for path in paths:
        copy = path.with_name(path.name.replace(load.boot, other.boot))
        is_compressed = path.suffix == ".gz"
        data = path.read_bytes()
        lines = (gzip.decompress(data) if is_compressed else data).replace(old, new)
        copy.write_bytes(gzip.compress(lines, 3) if is_compressed else lines)
        copies.append(copy)
    return copies


def _steps(load: Load) -> Iterator[tuple[int, list[ResponseLine | BlockLine | EmptyLine]]]:
    """Each step's time and lines: three blocks, sixteen fetched partitions, one sum of empty answers."""
    draw = random.Random(load.broker)
    topics = [
        (f"topic-{number:03d}", draw.randbytes(16), draw.paretovariate(1.2))
        for number in range(load.topics)
    ]
    weights = [weight for _, _, weight in topics]
    admitted, step = 0, 0
    while True:
        now_ms = START_MS + step * load.step_ms
        lines: list[ResponseLine | BlockLine | EmptyLine] = []
        drawn = draw.choices(topics, weights, k=_STEP_ROWS)
        for topic, topic_id, _ in drawn[:3]:
            size = draw.randrange(20_000, 120_000)
            admitted += size
            partition, base = draw.randrange(load.partitions), step * 50
            lines.append(
                BlockLine(
                    now_ms,
                    "main",
                    topic,
                    topic_id,
                    partition,
                    base,
                    base + 40,
                    size,
                    "produce",
                    admitted,
                    40,
                    admitted - size,
                    admitted,
                    (),
                    min(admitted, _CACHE_BYTES),
                )
            )
        for first in range(3, 19, _RESPONSE_ROWS):
            client = draw.randrange(load.clients)
            answers: list[Any] = [
                _answer(draw, client % 20 == 19, topic, topic_id, load, step)
                for topic, topic_id, _ in drawn[first : first + _RESPONSE_ROWS]
            ]
            lines.append(
                ResponseLine(
                    now_ms + 1,
                    "main",
                    client + 1,
                    f"group-{client % 17}-consumer-{client}",
                    f"group-{client % 17}",
                    17,
                    0,
                    draw.random() * 400,
                    draw.random() * 500,
                    admitted,
                    answers,
                )
            )
        topic, topic_id, _ = drawn[19]
        counts: dict[int | None, dict[int, int]] = {
            0: dict.fromkeys(range(draw.randrange(1, load.partitions)), 9)
        }
        lines.append(
            EmptyLine(
                now_ms + 2,
                now_ms - 4000,
                "main",
                1 + draw.randrange(load.clients),
                "poller",
                "pollers",
                topic,
                topic_id,
                "hit",
                "",
                9,
                admitted,
                counts,
            )
        )
        yield now_ms, lines
        step += 1


def _answer(
    draw: random.Random, lags: bool, topic: str, topic_id: bytes, load: Load, step: int
) -> AnsweredPartition:
    """One partition of a response; one client in twenty lags."""
    age = int(draw.expovariate(1 / (30 << 30 if lags else 50 << 20)))
    lag = age // 500
    high_watermark = step * 50 + 40
    result, reason = ("hit", "") if age < _CACHE_BYTES else ("miss", "evicted")
    return AnsweredPartition(
        topic=topic,
        topic_id=topic_id,
        result=result,
        reason=reason,
        partition=draw.randrange(load.partitions),
        offset=max(0, high_watermark - lag),
        bytes=draw.randrange(2_000, 200_000),
        high_watermark=high_watermark,
        age_bytes=age,
        delay_us=None if result == "hit" else draw.randrange(200_000),
    )


def _log_line(load: Load, now_ms: int, event: str, sequence: int, written: int) -> bytes:
    line = _LOG_LINE % (
        SCHEMA_VERSION,
        load.boot,
        now_ms,
        event,
        sequence,
        _CACHE_BYTES,
        written,
    )
    return line.encode("ascii")
