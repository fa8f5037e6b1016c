"""The disk of a partition: directories, the broker's answer, one disk for all, unknown disks."""

import asyncio
import logging
import os
from types import SimpleNamespace

import pytest

from protocol import control
from protocol.control import LogDirectory
from proxy.config.throttle import Disk, ThrottleConfig
from proxy.scheduling.log_dirs import (
    LOOK_AGAIN_S,
    REFRESH_S,
    LogDirs,
    list_partitions,
    place_partitions,
)
from throttle.disks import DiskLimit

ANSWER = b"an answer"


class OwnLinks:
    """Forebay's own link: keeps what it is asked."""

    def __init__(self):
        self.usable, self.refusal, self.asked = True, "", []

    def link(self, name):
        assert name == "proof"
        return self

    def send(self, frame, correlation_id, on_answer):
        self.asked.append(on_answer)


def build(*disks, own_connections=None, enabled=True, diskstats_file="/nonexistent"):
    config = ThrottleConfig(
        enabled=enabled, disks=tuple(Disk(**disk) for disk in disks), diskstats_file=diskstats_file
    )
    return LogDirs(SimpleNamespace(own_connections=own_connections or OwnLinks()), config)


async def settle(disks):
    """Until what `tick` or an answer has begun is done."""
    while disks._tasks:
        await asyncio.gather(*disks._tasks)


@pytest.fixture
def told(monkeypatch):
    """What the broker says of its directories, whatever its bytes."""
    said: list[object] = []
    monkeypatch.setattr(
        control, "scan_describe_log_dirs_response", lambda frame, version: list(said)
    )
    return said


def test_directories_are_listed_by_the_last_dash(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for name in (
        "plain-0",
        "with-dashes-and-7-12",
        "a.b_c-3",
        "moving-1",
        f"gone-0.{'0' * 32}-delete",
        f"stray-0.{'0' * 32}-stray",
        "__cluster_metadata-0",
        "no-number-",
        "-5",
        "nodash",
    ):
        (one / name).mkdir(parents=True)
    (one / "recovery-point-offset-checkpoint").touch()
    (two / f"moving-1.{'a' * 32}-future").mkdir(parents=True)
    (two / "plain-1").mkdir()
    placed, wrong = list_partitions({str(one): "sda", str(two): "sdb"})
    assert placed == {
        ("plain", 0): "sda",
        ("with-dashes-and-7", 12): "sda",
        ("a.b_c", 3): "sda",
        ("moving", 1): "sda",
        ("__cluster_metadata", 0): "sda",
        ("plain", 1): "sdb",
    }
    assert wrong == []


def test_unlistable_directory_leaves_the_others(tmp_path):
    (tmp_path / "t-0").mkdir()
    placed, wrong = list_partitions({str(tmp_path / "away"): "sda", str(tmp_path): "sdb"})
    assert placed == {("t", 0): "sdb"}
    assert len(wrong) == 1 and "away cannot be listed" in wrong[0]


def test_the_brokers_directories_are_joined_by_path():
    directories = [
        LogDirectory("/d/one/", [("t", 0), ("t", 2)]),
        LogDirectory("/d/two", [("t", 1)]),
        LogDirectory("/d/other", [("t", 3)]),
    ]
    placed = place_partitions(directories, {"/d/one": "sda", "/d/two": "sdb"})
    assert placed == {("t", 0): "sda", ("t", 2): "sda", ("t", 1): "sdb"}


@pytest.mark.parametrize(
    "disks",
    [
        [{"device": "sda"}],
        [{"device": "sda", "broker_directory": "/a"}, {"device": "sda", "broker_directory": "/b"}],
    ],
    ids=["one", "twice-the-same"],
)
def test_one_disk_serves_all_without_questions(disks):
    own_connections = OwnLinks()
    found = build(*disks, own_connections=own_connections)
    found.tick(0.0)
    assert (found.disk_of("any", 7), found.names, own_connections.asked) == ("sda", ["sda"], [])


def test_limits_are_those_of_the_configuration():
    found = build(
        {"device": "sda", "throughput_bytes": "125MB", "iops": 3000, "broker_directory": "/a"},
        {"device": "sda", "broker_directory": "/b"},
        {"device": "sdb", "iops": 500, "broker_directory": "/c"},
        {"device": "sdc", "broker_directory": "/d"},
    )
    assert found.limits == {
        "sda": DiskLimit(125e6, 3000.0, "named"),
        "sdb": DiskLimit(0.0, 500.0, "named"),
    }


async def test_known_disk_does_not_stand_for_another(tmp_path, caplog):
    (tmp_path / "here-0").mkdir()
    found = build({"device": "sda", "directory": str(tmp_path)}, {"broker_directory": "/d/two"})
    assert "no device is known for /d/two" in caplog.text
    assert found.disk_of("here", 0) is None
    found.tick(0.0)
    await settle(found)
    assert (found.disk_of("here", 0), found.disk_of("elsewhere", 0)) == ("sda", None)


def test_switched_off_it_knows_the_disks():
    """A reload may switch the throttle on."""
    found = build({"device": "sda"}, enabled=False)
    found.tick(0.0)
    assert (found.names, found.disk_of("t", 0)) == (["sda"], "sda")


def test_the_device_is_found_by_its_number(tmp_path):
    number = tmp_path.stat().st_dev
    counters = "1 0 8 1 0 0 0 0 0 1 1"
    stats = tmp_path / "diskstats"
    stats.write_text(
        f"259 9 other {counters}\n{os.major(number)} {os.minor(number)} mine {counters}\n"
    )
    assert build({"directory": str(tmp_path)}, diskstats_file=str(stats)).names == ["mine"]


@pytest.mark.parametrize(
    "content", [None, b"", b"odd", b"\xff\xfe\0", b"259 9 other 1 0 8 1 0 0 0 0 0 1 1\n"]
)
def test_unknown_device_is_logged_and_delays_nothing(tmp_path, caplog, content):
    stats = tmp_path / "diskstats"
    if content is not None:
        stats.write_bytes(content)
    found = build({"directory": str(tmp_path)}, diskstats_file=str(stats))
    assert (found.names, found.disk_of("t", 0)) == ([], None)
    assert caplog.text.count("no device is known") == 1


async def test_of_several_a_directory_that_is_made_later_is_found(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="forebay.log_dirs")
    number = tmp_path.stat().st_dev
    stats = tmp_path / "diskstats"
    stats.write_text(f"{os.major(number)} {os.minor(number)} mine 1 0 8 1 0 0 0 0 0 1 1\n")
    late = tmp_path / "late"
    found = build(
        {"device": "sda", "broker_directory": "/d/one"},
        {"directory": str(late)},
        diskstats_file=str(stats),
    )
    assert f"no device is known for {late}: {late}: No such file or directory" in caplog.text
    (record,) = [one for one in caplog.records if "no device is known" in one.getMessage()]
    assert record.levelno == logging.INFO, "a broker that has not started yet is no reason to warn"
    found.tick(0.0)
    await settle(found)
    assert (found.names, found.unknown) == (["sda"], [str(late)])
    (late / "t-0").mkdir(parents=True)
    found.tick(LOOK_AGAIN_S - 0.1)
    await settle(found)
    assert found.names == ["sda"]
    for now in (LOOK_AGAIN_S, LOOK_AGAIN_S + 0.1):
        found.tick(now)
        await settle(found)
    assert (found.names, found.unknown) == (["sda", "mine"], [])
    assert (found.disk_of("t", 0), found.disk_of("t", 1)) == ("mine", None)


async def test_mounted_directories_are_listed_at_once_and_again(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "t-0").mkdir(parents=True)
    two.mkdir()
    found = build(
        {"device": "sda", "directory": str(one)}, {"device": "sdb", "directory": str(two)}
    )
    found.tick(5.0)
    await settle(found)
    assert (found.disk_of("t", 0), found.disk_of("t", 1)) == ("sda", None)
    (one / "t-0").rename(two / "t-0")
    (two / "t-1").mkdir()
    found.tick(5.0 + REFRESH_S - 0.1)
    assert not found._tasks
    found.tick(5.0 + REFRESH_S)
    await settle(found)
    assert (found.disk_of("t", 0), found.disk_of("t", 1)) == ("sdb", "sdb")


async def test_broker_is_asked_about_unmounted_directories(told, tmp_path):
    (tmp_path / "t-0").mkdir()
    own_connections = OwnLinks()
    found = build(
        {"device": "sda", "directory": str(tmp_path)},
        {"device": "sdb", "broker_directory": "/d/two"},
        own_connections=own_connections,
    )
    told += [LogDirectory("/d/one", [("t", 0)]), LogDirectory("/d/two", [("t", 0), ("t", 1)])]
    found.tick(0.0)
    await settle(found)
    assert len(own_connections.asked) == 1
    own_connections.asked.pop()(ANSWER)
    await settle(found)
    assert [found.disk_of("t", index) for index in range(3)] == ["sda", "sdb", None]


TWO = (
    {"device": "sda", "broker_directory": "/d/one/"},
    {"device": "sdb", "broker_directory": "/d/two"},
)


async def test_missing_directory_is_logged_once(told, caplog):
    caplog.set_level("INFO")
    own_connections = OwnLinks()
    found = build(*TWO, own_connections=own_connections)
    told.append(LogDirectory("/d/one", [("t", 0)]))
    for number in range(2):
        found.tick(number * REFRESH_S)
        own_connections.asked.pop()(ANSWER)
        await settle(found)
    assert found.disk_of("t", 0) == "sda"
    assert caplog.text.count("does not tell of /d/two") == 1
    told.append(LogDirectory("/d/two/", []))
    found.tick(2 * REFRESH_S)
    own_connections.asked.pop()(ANSWER)
    await settle(found)
    assert caplog.text.count("known again") == 1


async def test_unreadable_response_keeps_known_directories(told, caplog, monkeypatch):
    own_connections = OwnLinks()
    found = build(*TWO, own_connections=own_connections)
    told += [LogDirectory("/d/one", [("t", 0)]), LogDirectory("/d/two", [])]
    found.tick(0.0)
    own_connections.asked.pop()(ANSWER)
    await settle(found)
    monkeypatch.undo()
    found.tick(REFRESH_S)
    own_connections.asked.pop()(b"\0\0\0\4garb")
    await settle(found)
    assert "cannot be read" in caplog.text
    found.tick(2 * REFRESH_S)
    own_connections.asked.pop()(None)
    assert found.disk_of("t", 0) == "sda"


def test_missing_connection_is_logged_once_and_retried(caplog):
    own_connections = OwnLinks()
    own_connections.usable = False
    found = build(*TWO, own_connections=own_connections)
    found.tick(0.0)
    assert caplog.text == "", "it is still being opened"
    own_connections.refusal = "the broker wants credentials"
    found.tick(1.0)
    found.tick(2.0)
    assert caplog.text.count("no connection of its own") == 1
    own_connections.usable = True
    found.tick(3.0)
    assert len(own_connections.asked) == 1


async def test_response_after_the_end_is_ignored():
    own_connections = OwnLinks()
    found = build(*TWO, own_connections=own_connections)
    found.tick(0.0)
    found.close()
    own_connections.asked.pop()(ANSWER)
    assert not found._tasks


async def test_closed_it_leaves_no_task(tmp_path, monkeypatch):
    waiting = asyncio.Event()

    async def never(*_):
        await waiting.wait()

    monkeypatch.setattr(asyncio, "to_thread", never)
    found = build(
        {"device": "sda", "directory": str(tmp_path)}, {"device": "sdb", "broker_directory": "/b"}
    )
    found.tick(0.0)
    tasks = list(found._tasks)
    found.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True]
    assert not found._tasks
