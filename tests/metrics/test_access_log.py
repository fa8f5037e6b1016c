"""The access log's lines are the schema's, and its thread neither loses nor invents one without counting."""

import gzip
import json
import threading
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics import log_files
from metrics.access_log import (
    BATCH_LINES,
    BATCH_PARTITIONS,
    MAX_TEXT_CHARS,
    AccessLog,
    AnsweredPartition,
    BlockLine,
    CountersLine,
    EmptyLine,
    ListenerAddress,
    LogLimits,
    ResponseLine,
    format_block,
    format_empty,
    format_lines,
)
from metrics.access_log_schema import (
    ANSWER_FIELDS,
    BLOCK_FIELDS,
    COUNT_FIELDS,
    COUNTERS_FIELDS,
    EMPTY_FIELDS,
    LINE_TYPES,
    LOG_FIELDS,
    PARTITION_FIELDS,
    RESPONSE_BYTES,
    RESPONSE_FIELDS,
    RESPONSE_PARTITIONS,
    RESULT_FIELDS,
    RESULTS,
    UPSTREAM_FIELDS,
    Field,
)
from tests.kit.log_lines import ROW, unfold

NOW_MS = 1_700_000_000_000
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
}


def answer(**changes: object) -> AnsweredPartition:
    one = AnsweredPartition("orders", bytes(range(16)), "hit", "", 2, 100, 2048, 130, 4096)
    return one._replace(**changes)  # type: ignore[arg-type]


def response_line(count: int = 1, **changes: object) -> ResponseLine:
    """`changes`: of the line, or of its `count` partitions."""
    shared = {name: changes.pop(name) for name in ResponseLine._fields if name in changes}
    answers: list[Any] = [answer(**changes) for _ in range(count)]
    line = ResponseLine(NOW_MS, "main", 7, "consumer-1", "g1", 13, 1, 1.5, 2.25, 1 << 40, answers)
    return line._replace(**shared)  # type: ignore[arg-type]


def format_line(boot: str, line: ResponseLine) -> str:
    return format_lines(boot, 5, [line])


def block_line(**changes: object) -> BlockLine:
    line = BlockLine(
        NOW_MS,
        "main",
        "orders",
        bytes(range(16)),
        2,
        100,
        130,
        2048,
        "produce",
        1 << 40,
        3,
        1 << 39,
        1 << 40,
        ((110, (1 << 39) + 700),),
        None,
    )
    return line._replace(**changes)  # type: ignore[arg-type]


def empty_line(partitions: int = 3, **changes: object) -> EmptyLine:
    counts: dict[int | None, dict[int, int]] = {0: dict.fromkeys(range(partitions), 2)}
    line = EmptyLine(
        NOW_MS, NOW_MS - 5, "main", 7, "c", None, "orders", bytes(16), "hit", "", 2, 1 << 40, counts
    )
    return line._replace(**changes)  # type: ignore[arg-type]


def read_lines(directory: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for path in sorted(directory.iterdir()):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert data.endswith(b"\n")
        lines += [json.loads(line) for line in data.splitlines()]
    return lines


def offsets_of(lines: list[dict[str, Any]]) -> list[int]:
    """The fetch offsets of all partitions of responses."""
    return [one["offset"] for one in unfold(lines) if one["type"] == "fetch"]


def assert_fits(line: dict[str, object], fields: tuple[Field, ...]) -> None:
    assert list(line) == [field.name for field in fields]
    for field in fields:
        value = line[field.name]
        assert (value is None and field.nullable) or isinstance(value, TYPES[field.json_type]), (
            field
        )


ANSWERS = st.builds(
    AnsweredPartition,
    topic=st.none() | st.text(max_size=40),
    topic_id=st.none() | st.binary(min_size=16, max_size=16),
    result=st.just("miss"),
    reason=st.sampled_from(["cold", "evicted"]),
    partition=st.integers(-1, 2**31 - 1),
    offset=st.integers(-1, 2**62),
    bytes=st.integers(0, 2**62),
    high_watermark=st.integers(-1, 2**62),
    age_bytes=st.none() | st.integers(0, 2**62),
    timestamp_ms=st.none() | st.integers(-1, 2**62),
    delay_us=st.none() | st.integers(0, 2**40),
    would_hit_bytes=st.none() | st.integers(0, 2**40),
)


@given(
    client_id=st.none() | st.text(max_size=40),
    group=st.none() | st.text(max_size=40),
    answers=st.lists(ANSWERS, min_size=1, max_size=6),
)
@settings(max_examples=60)
def test_whatever_clients_call_themselves_a_response_is_one_line_of_the_schema(
    client_id, group, answers
) -> None:
    text = format_line("b1", response_line(client_id=client_id, group=group, answers=answers))
    assert text.isascii() and text.endswith("\n") and text.count("\n") == 1
    line = json.loads(text)
    assert_fits(line, RESPONSE_FIELDS)
    assert (line["clientId"], line["group"]) == (client_id, group)
    said = []
    for one in line["answers"]:
        assert_fits(one, ANSWER_FIELDS)
        for row in one["partitions"]:
            assert_fits(dict(zip(ROW, row, strict=True)), PARTITION_FIELDS)
            said.append((one["topic"], one["result"], one["reason"], *row))
    assert said == [
        (
            *(one.topic, one.result, one.reason, one.partition, one.offset, one.bytes),
            None if one.high_watermark < 0 else one.high_watermark,
            *(one.age_bytes, one.timestamp_ms, one.delay_us, one.would_hit_bytes),
        )
        for one in answers
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([b"1" * 16, None])), min_size=1))
def test_partitions_of_one_topic_that_follow_each_other_are_one_answer(drawn) -> None:
    answers = [answer(topic=topic, topic_id=topic_id) for topic, topic_id in drawn]
    said = json.loads(format_line("b1", response_line(answers=answers)))["answers"]
    runs = [(key, len(list(run))) for key, run in groupby(drawn)]
    assert [len(one["partitions"]) for one in said] == [count for _, count in runs]
    assert [one["topic"] for one in said] == [topic for (topic, _), _ in runs]


def test_partitions_of_every_result_stand_in_the_line_of_their_response() -> None:
    verdicts = [(result, reason) for result, reasons in RESULTS.items() for reason in reasons]
    answers = [answer(result=result, reason=reason) for result, reason in verdicts]
    said = json.loads(format_line("b1", response_line(answers=answers)))["answers"]
    assert [(one["result"], one["reason"]) for one in said] == verdicts


def test_a_line_at_its_bound_of_partitions_has_at_most_so_many_bytes() -> None:
    """Each has a name of the most bytes in JSON and the longest integers; then those of one topic."""
    name, most = "\U0001f600" * (MAX_TEXT_CHARS + 1), (1 << 63) - 1
    answers = [
        answer(
            topic=name,
            topic_id=index.to_bytes(16, "big"),
            result="miss",
            reason="unauthorized-yet",
            **dict.fromkeys(answer()._fields[4:], most),
        )
        for index in range(RESPONSE_PARTITIONS)
    ]
    texts: dict[str, Any] = {"client_id": name, "group": name, "listener": name}
    numbers: dict[str, Any] = {
        "wait_ms": 1e15,
        "total_ms": 1e15,
        "admitted_bytes": most,
        "ts": most,
    }
    line = response_line(answers=answers, **texts, **numbers)
    size_bytes = len(format_line("b" * 64, line))
    assert 0.9 * RESPONSE_BYTES < size_bytes <= RESPONSE_BYTES
    assert len(format_line("b1", response_line(RESPONSE_PARTITIONS))) < 10_000


def test_a_block_is_one_line_of_the_schema() -> None:
    line = json.loads(format_block("b1", 5, block_line()))
    assert_fits(line, BLOCK_FIELDS)
    assert (line["type"], line["baseOffset"], line["nextOffset"], line["source"]) == (
        "block",
        100,
        130,
        "produce",
    )
    block: Any = tuple(block_line())
    assert format_block("b1", 5, block) == format_block("b1", 5, block_line())
    assert (line["batches"], line["points"], line["heldBytes"]) == (3, [10, 700], None)
    full = json.loads(format_block("b1", 5, block_line(points=(), held_bytes=5)))
    assert (full["points"], full["heldBytes"]) == ([], 5)


@given(
    client_id=st.none() | st.text(max_size=40),
    topic=st.none() | st.text(max_size=40),
    counts=st.dictionaries(
        st.none() | st.sampled_from([0, 1, 10, 10**9]),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(1, 3), min_size=1, max_size=5),
        max_size=3,
    ),
)
@settings(max_examples=60)
def test_a_sum_is_one_line_of_the_schema_and_its_counts_are_what_was_summed(
    client_id, topic, counts
) -> None:
    text = format_empty("b1", 5, empty_line(client_id=client_id, topic=topic, counts=counts))
    assert text.isascii() and text.endswith("\n") and text.count("\n") == 1
    line = json.loads(text)
    assert_fits(line, EMPTY_FIELDS)
    assert (line["clientId"], line["topic"], line["firstMs"]) == (client_id, topic, NOW_MS - 5)
    found: dict[int | None, dict[int, int]] = {}
    for one in line["counts"]:
        assert_fits(one, COUNT_FIELDS)
        found.setdefault(one["lag"], {}).update(dict.fromkeys(one["partitions"], one["responses"]))
    assert found == counts
    total = sum(one["responses"] * len(one["partitions"]) for one in line["counts"])
    assert line["partitions"] == total == sum(sum(by.values()) for by in counts.values())


def test_partitions_of_one_lag_and_one_number_stand_together() -> None:
    """Thousands of partitions that are asked alike are one element."""
    counts: dict[int | None, dict[int, int]] = {0: {4: 2, 5: 2, 6: 3}, None: {9: 2}}
    assert json.loads(format_empty("b1", 5, empty_line(counts=counts)))["counts"] == [
        {"lag": 0, "responses": 2, "partitions": [4, 5]},
        {"lag": 0, "responses": 3, "partitions": [6]},
        {"lag": None, "responses": 2, "partitions": [9]},
    ]


@pytest.mark.parametrize("queue_lines", [0, 1, 3])
def test_the_queue_bounds_block_lines_too(tmp_path: Path, queue_lines: int) -> None:
    limits = LogLimits(queue_lines=queue_lines, flush_interval_s=30)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=limits)
    for offset in range(5):
        log.put(block_line(base_offset=offset))
    log.close(timeout_s=30)
    log.put(block_line())
    now = log.statistics()
    assert now.queued_partitions == 0
    assert now.written_lines + now.dropped_lines == 6
    assert now.dropped_lines >= (6 if queue_lines == 0 else 1)
    assert (
        len([line for line in read_lines(tmp_path) if line["type"] == "block"]) == now.written_lines
    )


@pytest.mark.parametrize(
    ("lines", "partitions"), [(1, 11), (3, 3), (4, 3), (2, 5), (2, 6), (10, 1)]
)
@pytest.mark.parametrize("kind", ["response", "empty"])
def test_queued_partitions_name_no_more_partitions_than_the_queue_has_lines(
    tmp_path: Path, monkeypatch, lines, partitions, kind
) -> None:
    """They are memory too; one that is larger is written where no other waits."""
    disk, held = threading.Event(), threading.Event()
    write = log_files.LogFiles.write

    def slow_write(self: log_files.LogFiles, data: bytes) -> None:
        held.set()
        assert disk.wait(30)
        write(self, data)

    monkeypatch.setattr(log_files.LogFiles, "write", slow_write)
    limits = LogLimits(queue_lines=10, flush_interval_s=0.001)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=limits)
    log.put(response_line())
    assert held.wait(30)
    for _ in range(lines):
        if kind == "empty":
            log.put_empty(empty_line(partitions))
        else:
            log.put(response_line(partitions), partitions)
    fits = min(lines, max(1, 10 // partitions))
    now = log.statistics()
    assert (now.queued_partitions, now.dropped_lines) == (fits * partitions, lines - fits)
    disk.set()
    assert log.close(timeout_s=30)
    written = read_lines(tmp_path)
    if kind == "empty":
        named = [line["partitions"] for line in written if line["type"] == "empty"]
        assert named == [2 * partitions] * fits
    else:
        assert len(offsets_of(written)) == 1 + partitions * fits


@pytest.mark.parametrize("closed", [False, True])
def test_sums_are_bounded_by_lines_and_dropped_after_close(tmp_path: Path, closed) -> None:
    limits = LogLimits(queue_lines=0 if not closed else 10)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=limits)
    if closed:
        assert log.close()
    log.put_empty(empty_line())
    assert log.statistics().dropped_lines == 1
    assert log.close()
    assert list(tmp_path.iterdir()) == []


def test_topic_ids_are_written_as_kafka_prints_them() -> None:
    # org.apache.kafka.common.Uuid: base64, url-safe, no padding; the zero id stands for none.
    assert (
        json.loads(format_line("b", response_line()))["answers"][0]["topicId"]
        == "AAECAwQFBgcICQoLDA0ODw"
    )
    (none,) = json.loads(format_line("b", response_line(topic_id=bytes(16))))["answers"]
    assert none["topicId"] is None


@pytest.mark.parametrize("chars", [MAX_TEXT_CHARS, MAX_TEXT_CHARS + 1])
def test_a_client_id_is_cut_at_its_bound(chars: int) -> None:
    line = json.loads(format_line("b", response_line(client_id="é" * chars)))
    assert line["clientId"] == "é" * MAX_TEXT_CHARS


def test_a_closed_log_holds_every_line_in_order(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log", "b1", now_ms=lambda: NOW_MS, cache_size_bytes=512)
    for offset in range(10_000):
        log.put(response_line(offset=offset))
    log.put(block_line())
    log.put_empty(empty_line())
    assert log.close()
    first, *lines, last = read_lines(tmp_path / "log")
    assert offsets_of(lines) == list(range(10_000))
    assert [line["type"] for line in lines[-2:]] == ["block", "empty"]
    for line in (first, last):
        assert_fits(line, LOG_FIELDS)
    assert (first["event"], first["cacheSizeBytes"], last["event"]) == ("open", 512, "close")
    assert (last["writtenLines"], last["droppedLines"]) == (10_002, 0)
    assert log.statistics().written_lines == 10_002


def test_rotation_and_compression_lose_no_line(tmp_path: Path) -> None:
    limits = LogLimits(rotate_bytes=2000, flush_interval_s=0.001)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=limits)
    for offset in range(3000):
        log.put(response_line(offset=offset))
    assert log.close()
    lines = read_lines(tmp_path)
    assert offsets_of(lines) == list(range(3000))
    assert [line["sequence"] for line in lines if line["type"] == "log"] == sorted(
        2 * list(range(1, log.statistics().files + 1))
    )
    for line in lines:
        assert_fits(line, LINE_TYPES[str(line["type"])])


def test_at_the_queue_bound_lines_are_dropped_and_counted(tmp_path: Path, monkeypatch) -> None:
    disk = threading.Event()
    write = log_files.LogFiles.write
    held = threading.Event()

    def slow_write(self: log_files.LogFiles, data: bytes) -> None:
        held.set()
        assert disk.wait(30)
        write(self, data)

    monkeypatch.setattr(log_files.LogFiles, "write", slow_write)
    log = AccessLog(
        tmp_path,
        "b1",
        now_ms=lambda: NOW_MS,
        limits=LogLimits(queue_lines=10, flush_interval_s=0.001),
    )
    log.put(response_line(offset=0))
    assert held.wait(30)
    for offset in range(1, 11):
        log.put(response_line(offset=offset))
    assert (log.statistics().queued_partitions, log.statistics().dropped_lines) == (10, 0)
    log.put(response_line(offset=11))
    assert (log.statistics().queued_partitions, log.statistics().dropped_lines) == (10, 1)
    assert not log.close(timeout_s=0.001)
    disk.set()
    assert log.close(timeout_s=30)
    lines = read_lines(tmp_path)
    assert offsets_of(lines) == list(range(11))
    assert lines[-1]["droppedLines"] == 1


def test_a_failing_disk_costs_lines_but_never_raises_and_the_log_recovers(
    tmp_path: Path, monkeypatch
) -> None:
    write = log_files.LogFiles.write
    failed = threading.Event()

    def failing_write(self: log_files.LogFiles, data: bytes) -> None:
        if not failed.is_set():
            failed.set()
            self._finish()
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(log_files.LogFiles, "write", failing_write)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=LogLimits(flush_interval_s=0.001))
    log.put(response_line(offset=0))
    assert failed.wait(30)
    log.put(response_line(offset=1))
    assert log.close(timeout_s=30)
    statistics = log.statistics()
    assert (statistics.written_lines, statistics.dropped_lines) == (1, 1)
    assert "No space left" in statistics.last_error
    assert offsets_of(read_lines(tmp_path)) == [1]


def test_a_disk_that_fails_is_told_once_and_when_it_is_well_again(
    tmp_path: Path, monkeypatch
) -> None:
    told: list[tuple[str, str]] = []

    def tell(doing: str, error: str) -> None:
        told.append((doing, error))

    failing, seen = threading.Event(), threading.Event()
    failing.set()
    real = log_files.LogFiles.write

    def write(self: log_files.LogFiles, data: bytes) -> None:
        seen.set()
        if failing.is_set():
            raise OSError(28, "No space left on device")
        real(self, data)

    def put_and_wait() -> None:
        seen.clear()
        log.put(response_line())
        assert seen.wait(10)

    monkeypatch.setattr(log_files.LogFiles, "write", write)
    limits = LogLimits(flush_interval_s=0.01)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=limits, on_state=tell)
    for _ in range(3):
        put_and_wait()
    failing.clear()
    put_and_wait()
    assert log.close()
    assert told == [("writing", "[Errno 28] No space left on device"), ("writing", "")]


def test_after_close_lines_are_counted_as_dropped(tmp_path: Path) -> None:
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS)
    assert log.close()
    log.put(response_line())
    log.put(block_line())
    assert log.statistics().dropped_lines == 2
    assert log.close()
    assert list(tmp_path.iterdir()) == []


def hold_first_write(
    directory: Path, monkeypatch: pytest.MonkeyPatch, line_type: str
) -> tuple[AccessLog, list[int], threading.Event]:
    """A log whose thread is held within the write of a first line, until the event: what is put meanwhile is formatted
    in whole batches. The list has the number of lines of that type in each write.
    """
    counts: list[int] = []
    write, held, all_in = log_files.LogFiles.write, threading.Event(), threading.Event()
    counted = f'"type":"{line_type}"'.encode()

    def counting_write(self: log_files.LogFiles, data: bytes) -> None:
        counts.append(data.count(counted))
        held.set()
        assert all_in.wait(30)
        write(self, data)

    monkeypatch.setattr(log_files.LogFiles, "write", counting_write)
    log = AccessLog(
        directory, "b1", now_ms=lambda: NOW_MS, limits=LogLimits(flush_interval_s=0.001)
    )
    log.put(response_line())
    assert held.wait(30)
    return log, counts, all_in


@pytest.mark.parametrize("waiting", [BATCH_LINES, BATCH_LINES + 1])
def test_no_more_lines_than_a_batch_are_formatted_in_one_go(
    tmp_path: Path, monkeypatch, waiting
) -> None:
    log, counts, all_in = hold_first_write(tmp_path, monkeypatch, "response")
    for _ in range(waiting):
        log.put(response_line())
    all_in.set()
    assert log.close(timeout_s=30)
    assert [count for count in counts if count] == [1, *([64] if waiting == 64 else [64, 1])]
    assert log.statistics().written_lines == 1 + waiting


@pytest.mark.parametrize("kind", ["response", "empty"])
def test_a_batch_ends_with_the_line_by_which_it_names_many_partitions(
    tmp_path: Path, monkeypatch, kind
) -> None:
    """Formatting a partition takes time too, in which nobody else has the interpreter."""
    log, counts, all_in = hold_first_write(tmp_path, monkeypatch, kind)
    for partitions in (BATCH_PARTITIONS - 1, 1, BATCH_PARTITIONS, 1, 1):
        if kind == "empty":
            log.put_empty(empty_line(partitions))
        else:
            log.put(response_line(partitions), partitions)
    all_in.set()
    assert log.close(timeout_s=30)
    assert [count for count in counts if count] == [1] * (kind == "response") + [2, 1, 2]
    assert log.statistics().written_lines == 6


def counters_line(number: int, event: str = "minute") -> CountersLine:
    results = [("hit", "", 7, 1 << 40, 2), ("miss", "cold", 1, 5, 0)]
    return CountersLine(NOW_MS, event, number, results, [("watch", 9)], 3, 4, 8, 5, 6)


def test_counters_are_one_line_of_the_schema() -> None:
    (text,) = format_lines("b1", 5, [counters_line(6)]).splitlines()
    line = json.loads(text)
    assert_fits(line, COUNTERS_FIELDS)
    for one in line["results"]:
        assert_fits(one, RESULT_FIELDS)
    for one in line["upstream"]:
        assert_fits(one, UPSTREAM_FIELDS)
    assert (line["section"], line["number"], line["leaseLapses"]) == (5, 6, 4)
    assert line["results"][0] == {
        "result": "hit",
        "reason": "",
        "partitions": 7,
        "bytes": 1 << 40,
        "unwritten": 2,
    }


def test_every_line_names_the_counters_before_it(tmp_path: Path) -> None:
    """Whatever the batches and files are; a number that was dropped is no section."""
    limits = LogLimits(rotate_bytes=3000, flush_interval_s=0.001)
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=limits)
    for number in (1, 2, 5):
        log.put_counters(counters_line(number))
        for offset in range(100 * number):
            log.put(response_line(offset=offset))
        log.put(block_line())
        log.put_empty(empty_line())
    assert log.close(timeout_s=30)
    sections: dict[tuple[str, int], int] = {}
    expected = 0
    for line in read_lines(tmp_path):
        assert line["section"] == expected, line
        if line["type"] == "counters":
            expected = line["number"]
        kind = (line["type"], line["section"])
        sections[kind] = sections.get(kind, 0) + 1
    assert {kind: count for kind, count in sections.items() if kind[0] == "response"} == {
        ("response", 1): 100,
        ("response", 2): 200,
        ("response", 5): 500,
    }


def test_every_line_names_the_keeper_that_was_known_when_it_was_put(tmp_path: Path) -> None:
    """Whatever waits in the queue, and where that is full: a clock has one name."""
    log = AccessLog(
        tmp_path, "b1", keeper="", now_ms=lambda: NOW_MS, limits=LogLimits(queue_lines=16)
    )
    hold, taken = threading.Event(), threading.Event()
    log._take_batch = hold_back(log._take_batch, taken, hold)  # type: ignore[method-assign]
    log.put(response_line(offset=1))
    taken.wait()
    for offset, keeper in ((1, ""), (2, 'k"1'), (3, "k2"), (9, "k2"), (9, "k2")):
        log.learn_keeper(keeper)
        log.put(response_line(5, offset=offset), 5)
        log.put_counters(counters_line(offset))
    hold.set()
    assert log.close(timeout_s=30)
    lines = read_lines(tmp_path)
    said = [(one["offset"], one["keeper"]) for one in unfold(lines) if one["type"] == "fetch"]
    assert set(said) == {(1, ""), (2, 'k"1')}, "others were dropped"
    assert {one["keeper"] for one in lines if one["type"] == "log"} == {"", "k2"}
    assert log.statistics().dropped_lines > 0


def hold_back(
    take: Callable[[], list[Any]], taken: threading.Event, hold: threading.Event
) -> Callable[[], list[Any]]:
    """`take`, which returns once `hold` is set."""

    def take_later() -> list[Any]:
        batch = take()
        taken.set()
        hold.wait()
        return batch

    return take_later


def test_counters_are_dropped_at_the_queue_s_bound_as_others_are(tmp_path: Path) -> None:
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=LogLimits(queue_lines=0))
    log.put_counters(counters_line(1))
    assert log.close()
    assert log.statistics().dropped_lines == 1


def test_log_lines_name_the_listeners_and_the_broker_once_it_is_known(tmp_path: Path) -> None:
    log = AccessLog(tmp_path, "b1", now_ms=lambda: NOW_MS, limits=LogLimits(flush_interval_s=0.001))
    shown = {"name": "main", "address": "0.0.0.0:9092", "upstream": "b:19092"}
    log.learn_listeners([ListenerAddress(*shown.values())])
    log.put(response_line())
    while log.statistics().written_lines < 1:
        threading.Event().wait(0.001)
    log.learn_node(3)
    log.put(response_line())
    assert log.close()
    lines = [line for line in read_lines(tmp_path) if line["type"] == "log"]
    assert [(line["event"], line["nodeId"]) for line in lines] == [
        ("open", None),
        ("node", 3),
        ("close", 3),
    ]
    assert all(line["listeners"] == [shown] for line in lines)
