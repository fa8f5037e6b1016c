"""Cgroup v1 and v2 as files: the same calls write what each version wants."""

import os
from pathlib import Path

import pytest

from bench.pollution.groups import Group, find_version, scan_own_groups
from bench.pollution.host import PREFIX, Unfit

BOTH = ("memory", "io")


def build_v1(root: Path) -> Path:
    for name in ("memory", "blkio"):
        (root / name).mkdir()
        (root / name / "cgroup.procs").touch()
    return root


def build_v2(root: Path) -> Path:
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (root / "cgroup.subtree_control").touch()
    return root


def test_v1_limits_go_to_each_hierarchy(tmp_path: Path) -> None:
    group = Group(BOTH, build_v1(tmp_path))
    group.limit_memory(1 << 30)
    group.limit_reads("254:0", 60_000_000)
    name = f"{PREFIX}{os.getpid()}"
    assert (tmp_path / "memory" / name / "memory.limit_in_bytes").read_text() == str(1 << 30)
    assert (
        tmp_path / "blkio" / name / "blkio.throttle.read_bps_device"
    ).read_text() == "254:0 60000000"


def test_v2_limits_go_to_one_folder(tmp_path: Path) -> None:
    group = Group(BOTH, build_v2(tmp_path))
    group.limit_memory(1 << 30)
    group.limit_reads("254:0", 60_000_000)
    folder = tmp_path / f"{PREFIX}{os.getpid()}"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +io"
    assert (folder / "memory.max").read_text() == str(1 << 30)
    assert (folder / "io.max").read_text() == "254:0 rbps=60000000"


@pytest.mark.parametrize(("version", "key"), [(1, "cache"), (2, "file")])
def test_page_cache_is_read(tmp_path: Path, version: int, key: str) -> None:
    group = Group(BOTH, build_v1(tmp_path) if version == 1 else build_v2(tmp_path))
    folder = tmp_path / ("memory" if version == 1 else "") / f"{PREFIX}{os.getpid()}"
    (folder / "memory.stat").write_text(f"anon 7\n{key} 4096\n{key}_mapped 5\n")
    assert group.peek_page_cache_bytes() == 4096


def test_an_empty_hierarchy_is_unfit(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="memory and io"):
        find_version(BOTH, tmp_path)


def test_a_v2_root_that_hands_nothing_down_is_unfit(tmp_path: Path) -> None:
    build_v2(tmp_path)
    (tmp_path / "cgroup.subtree_control").unlink()
    (tmp_path / "cgroup.subtree_control").mkdir()
    with pytest.raises(Unfit, match="hands down memory"):
        Group(("memory",), tmp_path)


def test_own_groups_by_version() -> None:
    text = "9:name=systemd:/\n7:blkio:/a\n4:cpu,memory:/b/c\n0::/u\n"
    assert scan_own_groups(text, 1) == {"blkio": "/a", "memory": "/b/c"}
    assert scan_own_groups(text, 2) == {"": "/u"}
