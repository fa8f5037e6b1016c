"""The access log's writer: values queued where they arise; formatted, written and compressed by a thread of its own.

Owns the line formats (the schema's fields, in their order), the bounded queue and the thread. Knows no socket
and no clock but the one it is given. Formatting is the thread's on purpose (docs/decisions/0026): a line
formatted by itself pays for cold caches, many in a row do not; after each batch of them, a tenth of a
millisecond, it pauses, so that nobody waits for the interpreter's lock for a whole switch interval. Invariants:
`put` and its like never block and never raise: where the queued lines would name more than `queue_lines`
partitions, after `close`, or when the disk fails, lines are dropped and counted (a line alone may name more);
what is put is one line; written + dropped + queued = handed in, but for a batch in the thread's hands; every file
starts with a `log` line.
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
BATCH_PARTITIONS = 256
"""A batch ends with the line by which it names so many partitions."""
WRITING, COMPRESSING = "writing", "compressing"
_PAUSE_S = 0.0002
_WAKE_AT_PARTITIONS = 4096
_NO_TOPIC_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of the log.

    Lines waiting in memory, each as many as it names partitions; bytes at which a file is followed by the next; files
    and bytes kept; longest time between a line and its writing.
    """

    queue_lines: int = 65_536
    rotate_bytes: int = 64 << 20
    max_files: int = 1000
    max_total_bytes: int = 1 << 30
    flush_interval_s: float = 0.25


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Counts since the start. `queued_partitions`: named by the lines that wait, 1 for a line that names none.
    `last_error`: the last OSError's text, empty while the disk never failed.
    """

    written_lines: int
    written_bytes: int
    dropped_lines: int
    queued_partitions: int
    queue_limit_partitions: int
    files: int
    pending_files: int
    last_error: str


class AnsweredPartition(NamedTuple):
    """One partition of a response; meaning and units in ANSWER_FIELDS and PARTITION_FIELDS. `high_watermark` -1: there
    is none.
    """

    topic: str | None
    topic_id: bytes | None
    result: str
    reason: str
    partition: int
    offset: int
    bytes: int
    high_watermark: int
    age_bytes: int | None
    timestamp_ms: int | None = None
    delay_us: int | None = None
    would_hit_bytes: int | None = None


class ResponseLine(NamedTuple):
    """Partitions of one response, at least one and at most RESPONSE_PARTITIONS; see RESPONSE_FIELDS. `answers`: a list
    of `AnsweredPartition`s or of the plain tuples of their fields, which must not change any more.
    """

    ts: int
    listener: str
    connection: int
    client_id: str | None
    group: str | None
    api_version: int
    isolation: int
    wait_ms: float
    total_ms: float
    admitted_bytes: int
    answers: "list[AnswerValues]"


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


AnswerValues = tuple[
    str | None,
    bytes | None,
    str,
    str,
    int,
    int,
    int,
    int,
    int | None,
    int | None,
    int | None,
    int | None,
]
"""An `AnsweredPartition`'s."""
ResponseValues = tuple[
    int,
    str,
    int,
    str | None,
    str | None,
    int,
    int,
    float,
    float,
    int,
    list[AnswerValues],
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
"""A `ResponseLine`'s, a `BlockLine`'s, and an `EmptyLine`'s."""
QueuedLine = ResponseValues | BlockValues | EmptyValues | CountersLine


class KeeperMark(NamedTuple):
    """No line: those behind it name this keeper."""

    boot: str


def _count_named(line: QueuedLine) -> int:
    """Partitions in the line, in an `empty` line each as often as it has a lag of its own; 1 for other lines."""
    last = line[-1]
    if isinstance(last, list):
        return len(last)
    return sum(map(len, last.values())) if isinstance(last, dict) else 1


class AccessLog:
    """Writes lines into rotated files below `directory`; `boot` becomes part of lines and names."""

    def __init__(
        self,
        directory: Path,
        boot: str,
        *,
        now_ms: Callable[[], int],
        keeper: str | None = None,
        cache_size_bytes: int = 0,
        limits: LogLimits | None = None,
        on_state: Callable[[str, str], None] = lambda doing, error: None,
    ) -> None:
        """Starts the thread, which calls `on_state` when what it is doing begins to fail, with the error, and when it
        is well again, with "". `keeper`: "" in one of several workers, until `learn_keeper`. OSError: the directory
        cannot be used. ValueError: a boot id unfit for names.
        """
        self._limits = limits or LogLimits()
        self._boot = boot
        self._keeper = keeper
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
        self._queue: deque[QueuedLine | KeeperMark] = deque()
        self._put_partitions = 0  # named by lines; each number is written by one thread
        self._taken_partitions = 0
        queue_lines = self._limits.queue_lines
        self._wake_at_partitions = min(
            max(1, min(_WAKE_AT_PARTITIONS, queue_lines // 2)), queue_lines
        )
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

    def put(self, line: QueuedLine, named: int = 1) -> None:
        """Queue a line, or the plain tuple of its fields, which is cheaper to make. `named`: partitions that it names;
        1 for a run of batches. Called from one thread only.
        """
        queued = self._put_partitions - self._taken_partitions + named
        if (queued <= self._wake_at_partitions and not self._closing) or self._has_room(
            queued, named
        ):
            self._put_partitions += named
            self._queue.append(line)

    def put_empty(self, line: EmptyValues) -> None:
        """`put` a sum of partitions without records. The maps in it must not change any more."""
        self.put(line, _count_named(line))

    def put_counters(self, line: CountersLine) -> None:
        """`put` the counters: all lines put before are of an earlier section than those put from now on. Dropped as
        others are; the section is longer then.
        """
        self.put(line)

    def learn_listeners(self, listeners: Sequence[ListenerAddress]) -> None:
        """Show these listeners in `log` lines. Call before the first line is put."""
        shown = [one._asdict() for one in listeners]
        self._listeners = json.dumps(shown, separators=(",", ":"))

    def learn_node(self, node_id: int) -> None:
        """Show this node id of the broker in `log` lines from now on, and in one more in a file that is open."""
        self._node_id = node_id

    def learn_keeper(self, boot: str) -> None:
        """Lines that are put from now on have the clock of the keeper with this boot id."""
        self._queue.append(KeeperMark(boot))

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
            queued_partitions=self._put_partitions - self._taken_partitions,
            queue_limit_partitions=self._limits.queue_lines,
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

    def _has_room(self, queued: int, named: int) -> bool:
        """Whether a line may be queued with which the queue names `queued` partitions, `named` of them its own."""
        limit = self._limits.queue_lines
        if self._closing or (queued > limit and (queued > named or not limit)):
            self._refused_lines += 1
            self._wake.set()
            return False
        if not self._wake.is_set():
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
            if isinstance(self._queue[0], KeeperMark):
                self._keeper = self._queue.popleft().boot  # type: ignore[union-attr]
                left -= 1
                continue
            batch = self._take_batch()
            left -= len(batch)
            text = format_lines(self._boot, self._section, batch, self._keeper)
            data = text.encode("ascii")
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
        """Remove the lines of one batch; the queue begins with one. A line of counters is the last of its batch, and so
        is what stands before a mark.
        """
        batch: list[QueuedLine] = []
        named = 0
        for _ in range(min(len(self._queue), BATCH_LINES)):
            if isinstance(self._queue[0], KeeperMark):
                break
            line = cast("QueuedLine", self._queue.popleft())
            batch.append(line)
            named += _count_named(line)
            if named >= BATCH_PARTITIONS or isinstance(line, CountersLine):
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
            f',"section":{self._section},"keeper":{_quoted(self._keeper)}'
            f',"event":"{event}","sequence":{self._files.sequence}'
            f',"cacheSizeBytes":{self._cache_size_bytes},"writtenLines":{self._written_lines}'
            f',"droppedLines":{self.dropped_lines},"nodeId":{node_id},"listeners":{self._listeners}}}\n'
        ).encode("ascii")


def cut_text(text: str | None) -> str | None:
    """What a line has of a text that a client chooses. Cut it before it is handed in: the queue and the caches of what
    lines have in common hold it.
    """
    return text if text is None or len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS]


_BLOCK_FORMAT = (
    f'{{"v":{SCHEMA_VERSION},"type":"block","boot":"%s","ts":%d,"section":%d,"keeper":%s,%s,"baseOffset":%d'
    ',"nextOffset":%d,"bytes":%d,"source":"%s","admittedBytes":%d,"batches":%d,"beganBytes":%d,"endedBytes":%d'
    ',"points":[%s],"heldBytes":%s}\n'
)


_EMPTY_FORMAT = (
    f'{{"v":{SCHEMA_VERSION},"type":"empty","boot":"%s","ts":%d,"section":%d,"keeper":%s,"firstMs":%d,%s'
    ',"result":"%s","reason":"%s","responses":%d,"partitions":%d,"admittedBytes":%d,"counts":[%s]}\n'
)


_COUNTERS_FORMAT = (
    f'{{"v":{SCHEMA_VERSION},"type":"counters","boot":"%s","ts":%d,"section":%d,"keeper":%s,"event":"%s","number":%d'
    ',"results":[%s],"upstream":[%s],"wouldHitBytes":%d,"leaseLapses":%d,"producedBytes":%d'
    ',"droppedLines":%d,"admittedBytes":%d}\n'
)


def format_lines(
    boot: str, section: int, lines: Sequence[QueuedLine], keeper: str | None = None
) -> str:
    """The lines of a batch, in its order, each with its newline, in ASCII. `boot` is a plain word."""
    shown = _quoted(keeper)
    texts: list[str] = []
    for line in lines:
        if isinstance(line[-1], list):
            texts.append(format_response(boot, section, line, shown))
        elif isinstance(line[-1], dict):
            texts.append(format_empty(boot, section, line, shown))
        elif isinstance(line, CountersLine):
            texts.append(format_counters(boot, section, line, shown))
        else:
            texts.append(format_block(boot, section, cast("BlockValues", line), shown))
    return "".join(texts)


def format_response(boot: str, section: int, line: ResponseValues, keeper: str = "null") -> str:
    """One line of type response with its newline, ASCII. `keeper`: in JSON. Partitions of one topic, result and reason
    that follow each other are one answer; the values of most are the same objects, which costs least.
    """
    (
        ts,
        listener,
        connection,
        client_id,
        group,
        version,
        isolation,
        wait_ms,
        total_ms,
        admitted,
        answers,
    ) = line
    texts = [
        f'{{"v":{SCHEMA_VERSION},"type":"response","boot":"{boot}","ts":{ts},"section":{section}'
        f',"keeper":{keeper},{_response_head(listener, connection, client_id, group, version)}'
        f',"isolation":{isolation},"waitMs":{wait_ms:.3f},"totalMs":{total_ms:.3f}'
        f',"admittedBytes":{admitted},"answers":['
    ]
    topic = topic_id = result = reason = None
    begin = ""
    for (
        this_topic,
        this_id,
        this_result,
        this_reason,
        partition,
        offset,
        size_bytes,
        high_watermark,
        age_bytes,
        timestamp_ms,
        delay_us,
        would_hit_bytes,
    ) in answers:
        if (
            (this_id is not topic_id and this_id != topic_id)
            or (this_topic is not topic and this_topic != topic)
            or (this_reason is not reason and this_reason != reason)
            or (this_result is not result and this_result != result)
        ):
            topic, topic_id, result, reason = this_topic, this_id, this_result, this_reason
            head = _answer_head(topic, topic_id, result, reason)
            begin = f"]]}},{head}" if begin else head
        texts.append(
            f"{begin}[{partition},{offset},{size_bytes}"
            f",{'null' if high_watermark < 0 else high_watermark}"
            f",{'null' if age_bytes is None else age_bytes}"
            f",{'null' if timestamp_ms is None else timestamp_ms}"
            f",{'null' if delay_us is None else delay_us}"
            f",{'null' if would_hit_bytes is None else would_hit_bytes}"
        )
        begin = "],"
    texts.append("]]}]}\n")
    return "".join(texts)


def format_block(boot: str, section: int, line: BlockValues, keeper: str = "null") -> str:
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
        keeper,
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


def format_empty(boot: str, section: int, line: EmptyValues, keeper: str = "null") -> str:
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
        keeper,
        first_ms,
        _empty_head(listener, connection, client_id, group, topic, topic_id),
        result,
        reason,
        responses,
        sum([number * len(partitions) for (_, number), partitions in groups.items()]),
        admitted,
        shown,
    )


def format_counters(boot: str, section: int, line: CountersLine, keeper: str = "null") -> str:
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
    head = boot, line.ts, section, keeper, line.event, line.number
    return _COUNTERS_FORMAT % (*head, *lists, *line[5:])


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
def _response_head(
    listener: str,
    connection: int,
    client_id: str | None,
    group: str | None,
    api_version: int,
) -> str:
    """What the responses to a connection have in common."""
    return (
        f'"listener":{_quoted(listener)},"connection":{connection},"clientId":{_quoted(client_id)}'
        f',"group":{_quoted(group)},"apiVersion":{api_version}'
    )


@lru_cache(maxsize=8192)
def _answer_head(topic: str | None, topic_id: bytes | None, result: str, reason: str) -> str:
    """What the partitions of an answer have in common, up to the first of them."""
    return (
        f'{{"topic":{_quoted(topic)},"topicId":{_quoted_id(topic_id)}'
        f',"result":"{result}","reason":"{reason}","partitions":['
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
