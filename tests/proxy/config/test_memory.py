"""Memory limits of cgroups, read below a prepared root, and the cache size derived from them."""

from pathlib import Path

import pytest

from proxy.config.memory import (
    SMALLEST_CACHE_BYTES,
    Memory,
    MemoryPlan,
    find_filesystem_bytes,
    find_memory,
    plan_cache_size,
)
from proxy.config.units import GIB, KIB, MIB

MACHINE = "proc/meminfo", f"MemTotal:       {16 * GIB // KIB} kB\nMemFree: 1 kB\n"
UNLIMITED_V1 = "9223372036854771712\n"


def build_root(root: Path, *files: tuple[str, str]) -> Path:
    for name, text in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_machine_counts_without_a_limit(tmp_path: Path) -> None:
    root = build_root(
        tmp_path, MACHINE, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")
    )
    assert find_memory(root) == Memory(16 * GIB, False, "/proc/meminfo")


def test_strictest_v2_limit_of_the_path_counts(tmp_path: Path) -> None:
    root = build_root(
        tmp_path,
        MACHINE,
        ("proc/self/cgroup", "0::/kubepods/pod1/forebay\n"),
        ("sys/fs/cgroup/kubepods/pod1/forebay/memory.max", "max\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", f"{GIB}\n"),
        ("sys/fs/cgroup/kubepods/memory.max", f"{8 * GIB}\n"),
        ("sys/fs/cgroup/pod2/memory.max", "1\n"),
    )
    assert find_memory(root) == Memory(GIB, True, "/sys/fs/cgroup/kubepods/pod1/memory.max")


def test_v1_container_shows_the_limit_of_its_mount(tmp_path: Path) -> None:
    root = build_root(
        tmp_path,
        MACHINE,
        ("proc/self/cgroup", "12:cpu,cpuacct:/docker/1\n5:memory:/docker/1\n0::/docker/1\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n"),
    )
    assert find_memory(root) == Memory(2 * GIB, True, "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@pytest.mark.parametrize("limit", [UNLIMITED_V1, f"{16 * GIB}\n", "", "nonsense"])
def test_a_limit_that_limits_nothing_is_none(tmp_path: Path, limit: str) -> None:
    file = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    root = build_root(tmp_path, MACHINE, ("proc/self/cgroup", "5:memory:/\n"), (file, limit))
    assert not find_memory(root).is_limit


def test_path_outside_the_namespace_means_its_root(tmp_path: Path) -> None:
    files = ("proc/self/cgroup", "0::/../../other\n"), ("sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert find_memory(build_root(tmp_path, MACHINE, *files)).total_bytes == GIB


def test_limit_counts_on_an_unknown_machine(
    tmp_path: Path,
) -> None:
    assert find_memory(tmp_path) == Memory(0, False, "/proc/meminfo")
    root = build_root(
        tmp_path, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", f"{GIB}\n")
    )
    assert find_memory(root) == Memory(GIB, True, "/sys/fs/cgroup/memory.max")


def test_limit_gives_half_machine_gives_an_eighth() -> None:
    plan = plan_cache_size(Memory(GIB + MIB, True, "origin"), "", None)
    assert plan == MemoryPlan(512 * MIB, "half of the memory limit 1025MiB (origin)")
    assert plan_cache_size(Memory(16 * GIB, False, "origin"), "", None).size_bytes == 2 * GIB


def test_the_directory_bounds_the_size() -> None:
    memory = Memory(GIB, True, "origin")
    plan = plan_cache_size(memory, "/dev/shm", 64 * MIB)
    assert plan.size_bytes == 56 * MIB
    assert plan.reason == "7/8 of the 64MiB of /dev/shm; give it more, or set cache.directory"
    assert plan_cache_size(memory, "/dev/shm", 8 * GIB).size_bytes == 512 * MIB


def test_the_size_is_never_below_the_smallest() -> None:
    fits = plan_cache_size(Memory(2 * SMALLEST_CACHE_BYTES, True, "origin"), "", None)
    below = plan_cache_size(Memory(2 * SMALLEST_CACHE_BYTES - 2, True, "origin"), "", None)
    assert fits.size_bytes == below.size_bytes == SMALLEST_CACHE_BYTES
    assert "smallest" not in fits.reason
    assert "the smallest possible" in below.reason


def test_the_file_system_of_no_directory_is_unknown(tmp_path: Path) -> None:
    assert find_filesystem_bytes("") is None
    assert find_filesystem_bytes(str(tmp_path / "absent")) is None
    assert (find_filesystem_bytes(str(tmp_path)) or 0) > 0
