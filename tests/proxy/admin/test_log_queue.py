"""The log's queue toward standard error: writers never wait, lines are limited by cause, drops are counted."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from proxy.admin.log import TextFormatter
from proxy.admin.log_queue import (
    KEPT_WARNINGS,
    LONGEST_WARNING,
    MOST_CAUSES,
    SPEAK_EVERY_S,
    LogQueue,
    RecentLine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 20.0


class Reader:
    """A stream whose other end reads only while it is `reading`."""

    def __init__(self) -> None:
        self.reading = threading.Event()
        self.reading.set()
        self.waiting = threading.Event()
        self.text = ""

    def write(self, data: memoryview, /) -> int:
        self.waiting.set()
        self.reading.wait(PATIENCE_S)
        self.text += bytes(data).decode()
        return len(data)

    def fileno(self) -> int:
        return -1

    def read_messages(self) -> list[str]:
        return [line.split(maxsplit=2)[2] for line in self.text.splitlines()]


class Scene:
    """A queue with a clock that stands still."""

    def __init__(self, limit_lines: int = 1000) -> None:
        self.reader = Reader()
        self.now_s = 100.0
        self.queue = LogQueue(self.reader, limit_lines, lambda: self.now_s, frozenset({"rare"}))
        self.queue.setFormatter(TextFormatter())

    def say(self, message: str, *args: object, **fields: object) -> None:
        made = {"name": "x", "levelname": "WARNING", "msg": message, "args": args, **fields}
        self.queue.handle(logging.makeLogRecord(made))

    def stall(self) -> None:
        """The reader reads no more, and the thread waits for it."""
        self.reader.reading.clear()
        self.reader.waiting.clear()
        self.say("begun before the reader stalled")
        assert self.reader.waiting.wait(PATIENCE_S)

    def end(self) -> list[str]:
        """All that was written."""
        self.reader.reading.set()
        self.queue.close()
        return self.reader.read_messages()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.end()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_lines_are_written_as_they_come(scene: Scene) -> None:
    scene.say("one")
    scene.say("two %d", 2, topic="t")
    assert scene.end() == ["one", "two 2 topic=t"]


def test_the_last_warnings_are_kept_cut_and_no_other_lines() -> None:
    scene = Scene()
    for number in range(KEPT_WARNINGS + 5):
        scene.now_s += 1
        scene.say(f"line {number}", levelno=logging.WARNING, created=float(number))
        scene.say("all is well", levelno=logging.INFO)
    scene.now_s += 1
    scene.say("%s", "x" * 1000, levelno=logging.ERROR, levelname="ERROR", created=7.0)
    newest, *others = scene.queue.list_recent()
    assert newest == RecentLine(7.0, "ERROR", "x", "x" * LONGEST_WARNING)
    assert [one.text for one in others] == [
        f"line {number}" for number in range(KEPT_WARNINGS + 4, 5, -1)
    ]
    scene.end()


def test_writer_does_not_wait_for_the_reader(scene: Scene) -> None:
    scene.stall()
    for number in range(500):
        scene.say(f"line {number}")  # would never return
    assert scene.queue.statistics().queued_lines > 0


def test_full_queue_drops_and_counts_lines() -> None:
    scene = Scene(limit_lines=10)
    scene.stall()
    for number in range(15):
        scene.say(f"line {number}")
    statistics = scene.queue.statistics()
    assert (statistics.queued_lines, statistics.limit_lines, statistics.dropped_lines) == (
        10,
        10,
        5,
    )
    assert scene.end()[1:] == [
        *(f"line {number}" for number in range(10)),
        "lines of this log were dropped dropped=5",
    ]


def test_each_cause_writes_one_line_a_second(
    scene: Scene,
) -> None:
    for number in range(1000):
        scene.say("closing client %d", number, connection=number)
    wait_until(lambda: scene.reader.read_messages() == ["closing client 0 connection=0"])
    assert scene.queue.statistics().suppressed_lines == 998
    scene.now_s += SPEAK_EVERY_S
    wait_until(lambda: len(scene.reader.read_messages()) == 2)
    scene.say("closing client %d", 1000)
    assert scene.reader.read_messages()[1] == "closing client 999 connection=999 suppressed=998"
    assert scene.queue.statistics().suppressed_lines == 998
    assert scene.end()[2:] == ["closing client 1000"], "what waits is written at the end"


def test_a_cause_that_was_quiet_writes_at_once(scene: Scene) -> None:
    scene.say("again")
    scene.now_s += SPEAK_EVERY_S
    scene.say("again")
    wait_until(lambda: scene.reader.read_messages() == ["again", "again"])


def test_each_listener_or_disk_is_a_cause(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.say("up", listener=name)
        scene.say("busy", disk=name)
        scene.say("gone", client=name)
    wait_until(lambda: len(scene.reader.read_messages()) == 5)
    assert scene.end() == [
        "up listener=a",
        "busy disk=a",
        "gone client=a",
        "up listener=b",
        "busy disk=b",
        "gone client=b",
    ]


def test_important_lines_are_always_written(scene: Scene) -> None:
    for number in range(3):
        scene.say("records differ", topic=number, name="rare")
    assert scene.end() == [f"records differ topic={number}" for number in range(3)]


def test_beyond_their_bound_causes_are_one(scene: Scene) -> None:
    for number in range(2 * MOST_CAUSES):
        scene.say(f"cause {number}")
    wait_until(lambda: len(scene.reader.read_messages()) == MOST_CAUSES + 1)
    scene.now_s += SPEAK_EVERY_S
    last = f"cause {2 * MOST_CAUSES - 1} suppressed={MOST_CAUSES - 2}"
    wait_until(lambda: scene.reader.read_messages()[-1] == last)


def test_waiting_lines_hold_no_values_or_tracebacks(scene: Scene) -> None:
    scene.say("seen %s", "first")
    made = logging.makeLogRecord(
        {"name": "x", "msg": "seen %s", "args": ("second",), "exc_info": (None,) * 3}
    )
    scene.queue.handle(made)
    assert (made.msg, made.args, made.exc_info) == ("seen second", None, None)


def test_a_line_that_cannot_be_made_is_counted(
    scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    scene.say("%d", "no number")
    scene.say("fine")
    assert "fine" in scene.end()
    assert scene.queue.statistics().dropped_lines == 1
    assert capfd.readouterr().err == ""


def test_lines_after_the_end_are_written_directly(scene: Scene) -> None:
    """What the collector finds of tasks and futures when the process ends."""
    scene.say("stopped")
    scene.end()
    scene.say("destroyed")
    assert scene.reader.read_messages() == ["stopped", "destroyed"]


def test_closed_pipe_is_counted() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as stream:  # noqa: PTH123
        queue = LogQueue(stream, 10)
        queue.handle(logging.makeLogRecord({"msg": "one"}))
        wait_until(lambda: queue.statistics().dropped_lines == 1)
        queue.close()


@pytest.mark.parametrize("least_fd", [0, 1100], ids=["", "above what select takes"])
def test_nonblocking_pipe_is_waited_for(least_fd: int) -> None:
    """Whoever shares standard error may have made it so."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader, low_writer = os.pipe()
    writer = fcntl.fcntl(low_writer, fcntl.F_DUPFD_CLOEXEC, least_fd)
    os.close(low_writer)
    os.set_blocking(writer, False)
    with open(reader, "rb", buffering=0) as end, open(writer, "wb", buffering=0) as stream:  # noqa: PTH123
        while stream.write(b"x" * 4096) is not None:
            pass
        queue = LogQueue(stream, 10)
        queue.handle(logging.makeLogRecord({"msg": "whole line"}))
        queue.handle(logging.makeLogRecord({"msg": "another"}))
        found = b""
        while not found.endswith(b"another\n"):
            found += end.read(65_536)
        queue.close()
    assert found.lstrip(b"x") == b"whole line\nanother\n"


def test_end_does_not_wait_for_a_stalled_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.admin.log_queue.CLOSE_TIMEOUT_S", 0.05)
    scene = Scene()
    scene.stall()
    with contextlib.closing(scene.queue):
        scene.say("never read")
    scene.queue.close()  # returns
    scene.reader.reading.set()
