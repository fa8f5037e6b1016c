"""This machine, played below a root of its own."""

import os
from pathlib import Path
from typing import Any

import pytest
from blockcache._pyfastcache import ffi

from blockcache.arena_file import open_file
from blockcache.cache import BlockCache
from proxy.config.memory import Memory
from proxy.config.model import Config
from proxy.config.units import GIB, MIB
from proxy.doctor.checklist import CheckLine
from proxy.doctor.machine import (
    check_arena,
    check_configuration,
    check_disks,
    check_kernel,
    check_room,
)
from tests.kit.cache_batches import TOPIC, build_run, insert

PLENTY = Memory(64 * GIB, True, "/sys/fs/cgroup/memory.max")
DISKSTATS = " 259 0 nvme0n1 1 2 3 4 5 6 7 8 0 10 11\n"


def build_config(**sections: Any) -> Config:
    listener = {"listen": ":9092", "upstream": "127.0.0.1:19092"}
    cache = {"size": "64MiB", "directory": ""}
    tree = {"listeners": [listener], "cache": cache} | sections
    return Config.model_validate(tree, by_alias=True, by_name=False)


def by_subject(lines: list[CheckLine], subject: str) -> list[CheckLine]:
    return [line for line in lines if line.subject == subject]


def test_what_keeps_the_rules_is_told_with_its_numbers() -> None:
    lines = list(check_configuration(build_config(), PLENTY))
    assert {line.subject: line.status for line in lines} == {
        "configuration": "ok",
        "memory": "ok",
        "open files": "ok",
    }
    (memory,) = by_subject(lines, "memory")
    assert "at most 544MiB of the limit of 64GiB (/sys/fs/cgroup/memory.max)" in memory.text
    (files,) = by_subject(lines, "open files")
    assert "may need 8288" in files.text, "two a client, 32 of the admin port, 64"


@pytest.mark.parametrize(
    ("sections", "memory", "subject", "status"),
    [
        ({}, Memory(400 * MIB, True, "m"), "memory", "warn"),
        ({}, Memory(32 * MIB, True, "m"), "memory", "fail"),
        ({"cache": {"size": "16MiB", "directory": "/nowhere"}}, PLENTY, "arena", "fail"),
        ({"limits": {"maxConnections": 1_000_000}}, PLENTY, "open files", "warn"),
        ({"admin": {"listen": ":9092"}}, PLENTY, "configuration", "fail"),
        ({"throttle": {"disks": [{}]}}, PLENTY, "disks", "fail"),
    ],
)
def test_what_breaks_a_rule_stands_at_its_subject(
    sections: dict[str, Any],
    memory: Memory,
    subject: str,
    status: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 65_536))
    lines = by_subject(list(check_configuration(build_config(**sections), memory)), subject)
    assert [line.status for line in lines] == [status]
    assert lines[0].remedy


def throttled(tmp_path: Path, *disks: dict[str, str], text: str = DISKSTATS) -> Config:
    (tmp_path / "diskstats").write_text(text)
    throttle = {"disks": disks, "diskstatsFile": str(tmp_path / "diskstats")}
    return build_config(throttle=throttle)


def test_disks_are_looked_for_among_the_kernels_counters(tmp_path: Path) -> None:
    config = throttled(tmp_path, {"device": "nvme0n1"}, {"device": "sda", "brokerDirectory": "/b"})
    found, lost = check_disks(config)
    assert (found.status, lost.status) == ("ok", "fail")
    assert "/b: " in lost.text and "no line of sda" in lost.text and "nvme0n1" in lost.remedy
    (lost,) = check_disks(throttled(tmp_path, {"directory": str(tmp_path / "none")}))
    assert lost.status == "fail" and "No such file" in lost.text


def test_a_directory_is_found_by_its_device_number(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    text = f" {number >> 8 & 0xFFF} {number & 0xFF} here 1 2 3 4 5 6 7 8 0 10 11\n"
    (found,) = check_disks(throttled(tmp_path, {"directory": str(tmp_path)}, text=text))
    assert found.status == "ok" and "is device here" in found.text


def test_no_disk_at_all_is_a_warning_unless_the_throttle_is_off() -> None:
    assert [line.status for line in check_disks(build_config())] == ["warn"]
    off = build_config(throttle={"enabled": False})
    assert [line.status for line in check_disks(off)] == ["skip"]


def write_settings(root: Path, swap_kb: int = 0, **settings: int) -> Path:
    values = {
        "vm/max_map_count": 65_530,
        "vm/swappiness": 60,
        "net/core/rmem_max": 212_992,
        "net/core/wmem_max": 212_992,
        "net/core/somaxconn": 4096,
    } | {name.replace("__", "/"): value for name, value in settings.items()}
    for name, value in values.items():
        path = root / "proc/sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    (root / "proc/meminfo").write_text(f"MemTotal:  1 kB\nSwapTotal:  {swap_kb} kB\n")
    return root


def statuses(root: Path, partitions: int | None = 10) -> list[str]:
    return [line.status for line in check_kernel(root, partitions)]


def test_kernel_settings(tmp_path: Path) -> None:
    assert statuses(write_settings(tmp_path)) == ["ok"] * 5
    assert statuses(write_settings(tmp_path), None) == ["skip"] + ["ok"] * 4
    assert statuses(write_settings(tmp_path), 8191) == ["ok"] * 5, "65528 areas"
    assert statuses(write_settings(tmp_path), 8192) == ["warn"] + ["ok"] * 4, "65536 areas"
    few = write_settings(tmp_path, net__core__rmem_max=102_399, net__core__somaxconn=128)
    assert statuses(few) == ["ok", "warn", "ok", "warn", "ok"]
    assert statuses(write_settings(tmp_path, swap_kb=1))[-1] == "warn"
    assert statuses(write_settings(tmp_path, swap_kb=1, vm__swappiness=1))[-1] == "ok"
    for line in check_kernel(write_settings(tmp_path, swap_kb=1), 100_000):
        assert line.status == "ok" or line.remedy.startswith("sysctl ")


def test_settings_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    assert set(statuses(tmp_path)) == {"skip"}


def arena_config(directory: Path, **cache: Any) -> Config:
    return build_config(cache={"size": "16MiB", "directory": str(directory)} | cache)


def test_an_arena_in_use_left_behind_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "forebay-9092.arena"
    cache = BlockCache(MIB, open_file(path))
    insert(cache, cache.open(TOPIC, 7), build_run(3, 4))
    used = check_arena(arena_config(tmp_path))
    assert used.status == "ok" and used.text.endswith("1 partitions in 1MiB, in use")
    content = path.read_bytes()
    cache.close()
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    left = check_arena(arena_config(tmp_path))
    assert left.status == "warn" and left.remedy == f"rm {path}"
    assert check_arena(arena_config(tmp_path, keepArena=True)).status == "ok"


def test_an_arena_that_was_left_is_walked(tmp_path: Path) -> None:
    path = tmp_path / "forebay-9092.arena"
    cache = BlockCache(MIB, open_file(path))
    slot = cache.open(TOPIC, 7)
    for base in range(0, 400, 4):
        insert(cache, slot, build_run(base, 4))
    content = bytearray(path.read_bytes())
    cache.close()
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    kept = arena_config(tmp_path, keepArena=True)
    assert check_arena(kept).text.endswith("whole, kept for the next start")
    at = ffi.offsetof("fc_arena", "live_bytes")
    content[at : at + 8] = bytes(8)
    path.write_bytes(content)
    line = check_arena(kept)
    assert line.status == "warn" and "(counts)" in line.text and line.remedy
    assert path.read_bytes() == content


def test_the_arenas_directory_must_have_room_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = arena_config(tmp_path)
    assert check_room(build_config()).status == "skip"
    assert check_room(arena_config(tmp_path / "none")).status == "skip"
    assert check_room(config).status == "ok" and str(tmp_path) in check_room(config).text
    volume = os.statvfs(tmp_path)
    blocks = 16 * MIB // volume.f_frsize

    def fill(free: int) -> None:
        values = list(volume)
        values[3] = values[4] = free
        monkeypatch.setattr("os.statvfs", lambda _: os.statvfs_result(values))

    fill(blocks - 1)
    line = check_room(config)
    assert line.status == "fail" and "--shm-size" in line.remedy
    (tmp_path / "forebay-9092.arena").write_bytes(os.urandom(volume.f_frsize))
    assert check_room(config).status == "ok", "a present file's bytes are the arena's"
    fill(blocks)
    assert check_room(config).status == "ok"


def test_what_is_no_arena_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "forebay-9092.arena"
    path.write_bytes(b"precious" * 1000)
    line = check_arena(arena_config(tmp_path))
    assert line.status == "warn" and "not an arena" in line.text
    assert path.read_bytes() == b"precious" * 1000


def test_no_arena_is_skipped(tmp_path: Path) -> None:
    assert check_arena(arena_config(tmp_path)).status == "skip"
    assert check_arena(build_config()).status == "skip"
    assert check_arena(arena_config(tmp_path, mode="observe")).status == "skip"
