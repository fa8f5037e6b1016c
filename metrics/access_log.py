"""The access log's writer: values queued where they arise; formatted, written and compressed by a thread of its own.

Owns the line formats (the schema's fields, in their order), the bounded queue and the thread. Knows no socket
and no clock but the one it is given. Formatting is the thread's on purpose (docs/decisions/0026): a line
formatted by itself pays for cold caches, many in a row do not; after each batch of them, a tenth of a
millisecond, it pauses, so that nobody waits for the interpreter's lock for a whole switch interval. Invariants:
`put`, `put_all` and `put_empty` never block and never raise: at `queue_lines` queued lines, after `close`, or when
the disk fails, lines are dropped and counted; `empty` lines also where the queued ones would name more than
`queue_lines` partitions; written + dropped + queued = handed in, but for a batch in the thread's hands; every
file starts with a `log` line.
"""

import base64
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import NamedTuple, cast

from metrics.access_log_schema import SCHEMA_VERSION
from metrics.log_files import LogFiles

MAX_TEXT_CHARS = 256
BATCH_LINES = 64
"""Formatted and written in one go."""
BATCH_PARTITIONS = 512
"""A batch ends with the `empty` line by which it names so many partitions."""
WRITING, COMPRESSING = "writing", "compressing"
_PAUSE_S = 0.0002
_WAKE_AT_LINES = 4096
_NO_TOPIC_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of the log.

    Lines waiting in memory; bytes at which a file is followed by the next; files and bytes kept; longest time
    between a line and its writing.
    """

    queue_lines: int = 65_536
    rotate_bytes: int = 64 << 20
    max_files: int = 1000
    max_total_bytes: int = 1 << 30
    flush_interval_s: float = 0.25


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Counts since the start. `last_error`: the last OSError's text, empty while the disk never failed."""

    written_lines: int
    written_bytes: int
    dropped_lines: int
    queued_lines: int
    queue_limit_lines: int
    files: int
    pending_files: int
    last_error: str


class FetchResponseLine(NamedTuple):
    """What the lines of one response have in common; meaning and units in FETCH_FIELDS."""

    ts: int
    listener: str
    connection: int
    client_id: str | None
    group: str | None
    api_version: int
    wait_ms: float
    total_ms: float
    admitted_bytes: int


class FetchLine(NamedTuple):
    """One partition of one Fetch; meaning and units in FETCH_FIELDS. `response`: the same object in all lines of a
    response, a `FetchResponseLine` or its plain tuple. `high_watermark` -1: there is none.
    """

    response: "ResponseValues"
    topic: str | None
    topic_id: bytes | None
    partition: int
    offset: int
    isolation: int
    result: str
    reason: str
    bytes: int
    high_watermark: int
    age_bytes: int | None
    delay_ms: float | None = None
    would_hit_bytes: int | None = None
    timestamp_ms: int | None = None


class BlockLine(NamedTuple):
    """One run of batches admitted to the cache; see BLOCK_FIELDS. `points`: offsets between the first and the end, and
    the clock before the batch there.
    """

    ts: int
    listener: str
    topic: str | None
    topic_id: bytes | None
    partition: int
    base_offset: int
    next_offset: int
    bytes: int
    source: str
    admitted_bytes: int
    batches: int
    began_bytes: int
    ended_bytes: int
    points: tuple[tuple[int, int], ...]
    held_bytes: int | None


EmptyCounts = Mapping[int | None, Mapping[int, int]]
"""Lag as in COUNT_FIELDS -> partition index -> number of responses."""


class EmptyLine(NamedTuple):
    """Partitions answered without records; see EMPTY_FIELDS. `ts` and `first_ms` are of the last and first response."""

    ts: int
    first_ms: int
    listener: str
    connection: int
    client_id: str | None
    group: str | None
    topic: str | None
    topic_id: bytes | None
    result: str
    reason: str
    responses: int
    admitted_bytes: int
    counts: EmptyCounts


class CountersLine(NamedTuple):
    """The process's counters; see COUNTERS_FIELDS. `results`: result, reason, partitions, bytes, unwritten partitions.
    `number` is greater than that of every such line before it.
    """

    ts: int
    event: str
    number: int
    results: Sequence[tuple[str, str, int, int, int]]
    upstream: Sequence[tuple[str, int]]
    would_hit_bytes: int
    lease_lapses: int
    produced_bytes: int
    dropped_lines: int
    admitted_bytes: int


class ListenerAddress(NamedTuple):
    """A listener as `log` lines show it; see LISTENER_FIELDS."""

    name: str
    address: str
    upstream: str


ResponseValues = tuple[int, str, int, str | None, str | None, int, float, float, int]
"""A `FetchResponseLine`'s."""
FetchValues = tuple[
    ResponseValues,
    str | None,
    bytes | None,
    int,
    int,
    int,
    str,
    str,
    int,
    int,
    int | None,
    float | None,
    int | None,
    int | None,
]
BlockValues = tuple[
    int,
    str,
    str | None,
    bytes | None,
    int,
    int,
    int,
    int,
    str,
    int,
    int,
    int,
    int,
    tuple[tuple[int, int], ...],
    int | None,
]
EmptyValues = tuple[
    int,
    int,
    str,
    int,
    str | None,
    str | None,
    str | None,
    bytes | None,
    str,
    str,
    int,
    int,
    EmptyCounts,
]
"""A `FetchLine`'s, a `BlockLine`'s, and an `EmptyLine`'s."""
QueuedLine = FetchValues | BlockValues | EmptyValues | CountersLine


def _is_empty(line: QueuedLine) -> bool:
    return isinstance(line[-1], dict)


class AccessLog:
    """Writes lines into rotated files below `directory`; `boot` becomes part of lines and names."""

    def __init__(
        self,
        directory: Path,
        boot: str,
        *,
        now_ms: Callable[[], int],
        cache_size_bytes: int = 0,
        limits: LogLimits | None = None,
        on_state: Callable[[str, str], None] = lambda doing, error: None,
    ) -> None:
        """Starts the thread, which calls `on_state` when what it is doing begins to fail, with the error, and when it
        is well again, with "". OSError: the directory cannot be used. ValueError: a boot id unfit for names.
        """
        self._limits = limits or LogLimits()
        self._boot = boot
        self._now_ms = now_ms
        self._cache_size_bytes = cache_size_bytes
        self._listeners = "[]"
        self._node_id: int | None = None
        self._told_node_id: int | None = None  # in the file that is open
        self._section = 0
        self._files = LogFiles(
            directory,
            boot,
            now_ms=now_ms,
            rotate_bytes=self._limits.rotate_bytes,
            max_files=self._limits.max_files,
            max_total_bytes=self._limits.max_total_bytes,
        )
        self._queue: deque[QueuedLine] = deque()
        self._put_partitions = 0  # named by `empty` lines; each number is written by one thread
        self._taken_partitions = 0
        queue_lines = self._limits.queue_lines
        self._wake_at_lines = min(max(1, min(_WAKE_AT_LINES, queue_lines // 2)), queue_lines)
        self._wake = threading.Event()
        self._closing = False
        self._refused_lines = 0
        self._lost_lines = 0
        self._written_lines = 0
        self._written_bytes = 0
        self._last_error = ""
        self._on_state = on_state
        self._failing: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def put(self, line: FetchValues | BlockValues) -> None:
        """Queue one partition of a Fetch, or one admitted run of batches: a `FetchLine`, a `BlockLine`, or the plain
        tuple of its fields, which is cheaper to make. Called from one thread only.
        """
        queue = self._queue
        if (len(queue) < self._wake_at_lines and not self._closing) or self._has_room():
            queue.append(line)

    def put_all(self, lines: Sequence[FetchValues]) -> None:
        """`put`, of what came to pass together."""
        queue = self._queue
        if len(queue) + len(lines) <= self._wake_at_lines and not self._closing:
            queue.extend(lines)
            return
        for line in lines:
            self.put(line)

    def put_empty(self, line: EmptyValues) -> None:
        """Queue a sum of partitions without records: an `EmptyLine`, or the plain tuple of its fields. The maps in it
        must not change any more. Called from the thread of `put`.
        """
        named = _count_named(line)
        queued = self._put_partitions - self._taken_partitions
        if queued and queued + named > self._limits.queue_lines:
            self._refused_lines += 1
            self._wake.set()
        elif self._has_room():
            self._put_partitions += named
            self._queue.append(line)

    def put_counters(self, line: CountersLine) -> None:
        """Queue the counters: all lines put before are of an earlier section than those put from now on. Dropped as
        others are; the section is longer then. Called from the thread of `put`.
        """
        if self._has_room():
            self._queue.append(line)

    def learn_listeners(self, listeners: Sequence[ListenerAddress]) -> None:
        """Show these listeners in `log` lines. Call before the first line is put."""
        shown = [one._asdict() for one in listeners]
        self._listeners = json.dumps(shown, separators=(",", ":"))

    def learn_node(self, node_id: int) -> None:
        """Show this node id of the broker in `log` lines from now on, and in one more in a file that is open."""
        self._node_id = node_id

    @property
    def dropped_lines(self) -> int:
        """Lines dropped so far; up to a batch behind."""
        return self._refused_lines + self._lost_lines

    def statistics(self) -> LogStatistics:
        """Counts; exact once closed, otherwise up to a batch behind."""
        return LogStatistics(
            written_lines=self._written_lines,
            written_bytes=self._written_bytes,
            dropped_lines=self.dropped_lines,
            queued_lines=len(self._queue),
            queue_limit_lines=self._limits.queue_lines,
            files=self._files.sequence,
            pending_files=self._files.pending_files,
            last_error=self._last_error,
        )

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued, end the file, stop. False: it took over `timeout_s`. Idempotent."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _has_room(self) -> bool:
        queued_lines = len(self._queue)
        if queued_lines >= self._limits.queue_lines or self._closing:
            self._refused_lines += 1
            self._wake.set()
            return False
        if queued_lines >= self._wake_at_lines and not self._wake.is_set():
            self._wake.set()
        return True

    def _run(self) -> None:
        busy = False
        while not self._closing:
            if not busy:
                self._wake.wait(self._limits.flush_interval_s)
            self._wake.clear()
            self._write_batches()
            busy = self._compress()
        self._write_batches()
        if self._files.is_open:
            self._attempt(lambda: self._files.write(self._log_line("close")), WRITING)
        self._attempt(self._files.close, WRITING)

    def _write_batches(self) -> None:
        """Write what is queued now, in batches; a batch that the disk refused is lost and counted."""
        left = len(self._queue)
        while left > 0:
            batch = self._take_batch()
            left -= len(batch)
            data = format_lines(self._boot, self._section, batch).encode("ascii")
            if self._attempt(lambda data=data: self._write(data), WRITING):  # type: ignore[misc]
                self._tell_well(WRITING)
                self._written_lines += len(batch)
                self._written_bytes += len(data)
            else:
                self._lost_lines += len(batch)
            if isinstance(batch[-1], CountersLine):
                self._section = batch[-1].number
            if left > 0 and not self._closing:
                time.sleep(_PAUSE_S)

    def _take_batch(self) -> list[QueuedLine]:
        """Remove the lines of one batch; the queue is not empty. A line of counters is the last of its batch."""
        batch, named = [], 0
        for _ in range(min(len(self._queue), BATCH_LINES)):
            line = self._queue.popleft()
            batch.append(line)
            if isinstance(line, CountersLine):
                break
            if _is_empty(line):
                named += _count_named(cast("EmptyValues", line))
                if named >= BATCH_PARTITIONS:
                    break
        self._taken_partitions += named
        return batch

    def _write(self, data: bytes) -> None:
        if self._files.wants_rotation:
            self._files.write(self._log_line("close"))
            self._files.rotate()
        if not self._files.is_open:
            self._files.open()
            self._told_node_id = self._node_id
            data = self._log_line("open") + data
        elif self._told_node_id != self._node_id:
            self._told_node_id = self._node_id
            data = self._log_line("node") + data
        self._files.write(data)

    def _compress(self) -> bool:
        more = False

        def step() -> None:
            nonlocal more
            more = self._files.compress_step()

        if self._attempt(step, COMPRESSING) and more:
            self._tell_well(COMPRESSING)
        return more

    def _attempt(self, action: Callable[[], None], doing: str) -> bool:
        try:
            action()
        except OSError as error:
            self._last_error = str(error)[:MAX_TEXT_CHARS]
            if doing not in self._failing:
                self._failing.add(doing)
                self._on_state(doing, self._last_error)
            return False
        return True

    def _tell_well(self, doing: str) -> None:
        if doing in self._failing:
            self._failing.discard(doing)
            self._on_state(doing, "")

    def _log_line(self, event: str) -> bytes:
        node_id = "null" if self._told_node_id is None else self._told_node_id
        return (
            f'{{"v":{SCHEMA_VERSION},"type":"log","boot":"{self._boot}","ts":{self._now_ms()}'
            f',"section":{self._section},"event":"{event}","sequence":{self._files.sequence}'
            f',"cacheSizeBytes":{self._cache_size_bytes},"writtenLines":{self._written_lines}'
            f',"droppedLines":{self.dropped_lines},"nodeId":{node_id},"listeners":{self._listeners}}}\n'
        ).encode("ascii")


def cut_text(text: str | None) -> str | None:
    """What a line has of a text that a client chooses. Cut it before it is handed in: the queue and the caches of what
    lines have in common hold it.
    """
    return text if text is None or len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS]


_BLOCK_FORMAT = (
    f'{{"v":{SCHEMA_VERSION},"type":"block","boot":"%s","ts":%d,"section":%d,%s,"baseOffset":%d'
    ',"nextOffset":%d,"bytes":%d,"source":"%s","admittedBytes":%d,"batches":%d,"beganBytes":%d,"endedBytes":%d'
    ',"points":[%s],"heldBytes":%s}\n'
)


_EMPTY_FORMAT = (
    f'{{"v":{SCHEMA_VERSION},"type":"empty","boot":"%s","ts":%d,"section":%d,"firstMs":%d,%s'
    ',"result":"%s","reason":"%s","responses":%d,"partitions":%d,"admittedBytes":%d,"counts":[%s]}\n'
)


_COUNTERS_FORMAT = (
    f'{{"v":{SCHEMA_VERSION},"type":"counters","boot":"%s","ts":%d,"section":%d,"event":"%s","number":%d'
    ',"results":[%s],"upstream":[%s],"wouldHitBytes":%d,"leaseLapses":%d,"producedBytes":%d'
    ',"droppedLines":%d,"admittedBytes":%d}\n'
)


def format_lines(boot: str, section: int, lines: Sequence[QueuedLine]) -> str:
    """The lines of a batch, in its order, each with its newline, in ASCII. `boot` is a plain word. Lines of one
    response that follow each other are formatted together.
    """
    texts: list[str] = []
    at, end = 0, len(lines)
    while at < end:
        line = lines[at]
        if isinstance(line[0], tuple):
            after = at + 1
            while after < end and lines[after][0] is line[0]:
                after += 1
            texts += format_response(boot, section, cast("Sequence[FetchValues]", lines[at:after]))
            at = after
            continue
        if _is_empty(line):
            texts.append(format_empty(boot, section, cast("EmptyValues", line)))
        elif isinstance(line, CountersLine):
            texts.append(format_counters(boot, section, line))
        else:
            texts.append(format_block(boot, section, cast("BlockValues", line)))
        at += 1
    return "".join(texts)


def format_response(boot: str, section: int, lines: Sequence[FetchValues]) -> list[str]:
    """The lines of type fetch of one response. The lag is derived here."""
    response = lines[0][0]
    ts, listener, connection, client_id, group, version, wait_ms, total_ms, admitted = response
    begin = f'{{"v":{SCHEMA_VERSION},"type":"fetch","boot":"{boot}","ts":{ts},"section":{section},'
    times = f',"waitMs":{wait_ms:.3f},"totalMs":{total_ms:.3f},"admittedBytes":{admitted}'
    last_topic, last_id, head = None, None, ""
    texts = []
    for (
        _,
        topic,
        topic_id,
        partition,
        offset,
        isolation,
        result,
        reason,
        size_bytes,
        high_watermark,
        age_bytes,
        delay_ms,
        would_hit_bytes,
        timestamp_ms,
    ) in lines:
        if not head or topic_id is not last_id or topic is not last_topic:
            last_topic, last_id = topic, topic_id
            client = listener, connection, client_id, group
            head = begin + _fetch_head(*client, version, topic, topic_id)
        if high_watermark < 0:
            ends = '"highWatermark":null,"lag":null'
        else:
            lag = high_watermark - offset if high_watermark > offset else 0
            ends = f'"highWatermark":{high_watermark},"lag":{lag}'
        texts.append(
            f'{head},"partition":{partition},"offset":{offset},"isolation":{isolation}'
            f',"result":"{result}","reason":"{reason}","bytes":{size_bytes},{ends}'
            f',"ageBytes":{"null" if age_bytes is None else age_bytes}{times}'
            f',"delayMs":{"null" if delay_ms is None else f"{delay_ms:.3f}"}'
            f',"wouldHit":{"null" if would_hit_bytes is None else would_hit_bytes}'
            f',"timestamp":{"null" if timestamp_ms is None else timestamp_ms}}}\n'
        )
    return texts


def format_block(boot: str, section: int, line: BlockValues) -> str:
    """One line of type block with its newline, ASCII."""
    (
        ts,
        listener,
        topic,
        topic_id,
        partition,
        base_offset,
        next_offset,
        size_bytes,
        source,
        admitted,
        batches,
        began,
        ended,
        points,
        held,
    ) = line
    return _BLOCK_FORMAT % (
        boot,
        ts,
        section,
        _block_head(listener, topic, topic_id, partition),
        base_offset,
        next_offset,
        size_bytes,
        source,
        admitted,
        batches,
        began,
        ended,
        ",".join([f"{offset - base_offset},{clock - began}" for offset, clock in points]),
        "null" if held is None else held,
    )


def format_empty(boot: str, section: int, line: EmptyValues) -> str:
    """One line of type empty with its newline, ASCII. Partitions of one lag and one number stand together."""
    ts, first_ms, listener, connection, client_id, group, topic, topic_id = line[:8]
    result, reason, responses, admitted, counts = line[8:]
    groups: dict[tuple[int | None, int], list[int]] = {}
    for lag, by_partition in counts.items():
        for partition, number in by_partition.items():
            groups.setdefault((lag, number), []).append(partition)
    shown = ",".join(
        [
            f'{{"lag":{"null" if lag is None else lag},"responses":{number}'
            f',"partitions":[{",".join(map(str, partitions))}]}}'
            for (lag, number), partitions in groups.items()
        ]
    )
    return _EMPTY_FORMAT % (
        boot,
        ts,
        section,
        first_ms,
        _empty_head(listener, connection, client_id, group, topic, topic_id),
        result,
        reason,
        responses,
        sum([number * len(partitions) for (_, number), partitions in groups.items()]),
        admitted,
        shown,
    )


def format_counters(boot: str, section: int, line: CountersLine) -> str:
    """One line of type counters with its newline, ASCII."""
    results = [
        f'{{"result":"{result}","reason":"{reason}","partitions":{partitions},"bytes":{size_bytes}'
        f',"unwritten":{unwritten}}}'
        for result, reason, partitions, size_bytes, unwritten in line.results
    ]
    upstream = [
        f'{{"purpose":"{purpose}","bytes":{size_bytes}}}' for purpose, size_bytes in line.upstream
    ]
    lists = ",".join(results), ",".join(upstream)
    return _COUNTERS_FORMAT % (boot, line.ts, section, line.event, line.number, *lists, *line[5:])


def _count_named(line: EmptyValues) -> int:
    """Partitions in the line, each as often as it has a lag of its own."""
    return sum(map(len, line[-1].values()))


@lru_cache(maxsize=8192)
def _empty_head(
    listener: str,
    connection: int,
    client_id: str | None,
    group: str | None,
    topic: str | None,
    topic_id: bytes | None,
) -> str:
    """What the sums of a connection's topic have in common."""
    return (
        f'"listener":{_quoted(listener)},"connection":{connection},"clientId":{_quoted(client_id)}'
        f',"group":{_quoted(group)}'
        f',"topic":{_quoted(topic)},"topicId":{_quoted_id(topic_id)}'
    )


@lru_cache(maxsize=8192)
def _block_head(listener: str, topic: str | None, topic_id: bytes | None, partition: int) -> str:
    """What the lines of a partition have in common."""
    return (
        f'"listener":{_quoted(listener)},"topic":{_quoted(topic)},"topicId":{_quoted_id(topic_id)}'
        f',"partition":{partition}'
    )


@lru_cache(maxsize=8192)
def _fetch_head(
    listener: str,
    connection: int,
    client_id: str | None,
    group: str | None,
    api_version: int,
    topic: str | None,
    topic_id: bytes | None,
) -> str:
    """What the lines of a connection's topic have in common."""
    return (
        f'"listener":{_quoted(listener)},"connection":{connection},"clientId":{_quoted(client_id)}'
        f',"group":{_quoted(group)}'
        f',"apiVersion":{api_version},"topic":{_quoted(topic)},"topicId":{_quoted_id(topic_id)}'
    )


@lru_cache(maxsize=8192)
def _quoted(text: str | None) -> str:
    """JSON's form in ASCII: whatever a client calls itself stays one line."""
    return "null" if text is None else encode_basestring_ascii(text[:MAX_TEXT_CHARS])


@lru_cache(maxsize=8192)
def _quoted_id(topic_id: bytes | None) -> str:
    """Kafka's Uuid.toString: url-safe base64 of the 16 bytes without padding."""
    if topic_id is None or topic_id == _NO_TOPIC_ID:
        return "null"
    return '"' + base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii") + '"'
