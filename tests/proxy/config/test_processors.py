"""CPU quotas of cgroups, read below a prepared root, and the number of workers derived from them."""

import os
from pathlib import Path

import pytest

from proxy.config.processors import Processors, find_processors, plan_workers
from tests.proxy.config.test_memory import build_root

V2 = ("proc/self/cgroup", "0::/kubepods/forebay\n")
V1 = ("proc/self/cgroup", "4:cpu,cpuacct:/docker/1\n0::/docker/1\n")
MANY = frozenset(range(16))


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: MANY)


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ((), 16),
        ((V2, ("sys/fs/cgroup/cpu.max", "max 100000\n")), 16),
        ((V2, ("sys/fs/cgroup/cpu.max", "400000 100000\n")), 4),
        ((V2, ("sys/fs/cgroup/cpu.max", "250000 100000\n")), 2),
        ((V2, ("sys/fs/cgroup/cpu.max", "50000 100000\n")), 1),
        ((V2, ("sys/fs/cgroup/cpu.max", "6400000 100000\n")), 16),
        ((V2, ("sys/fs/cgroup/cpu.max", "nonsense")), 16),
        (
            (
                V2,
                ("sys/fs/cgroup/kubepods/forebay/cpu.max", "800000 100000\n"),
                ("sys/fs/cgroup/kubepods/cpu.max", "300000 100000\n"),
            ),
            3,
        ),
        (
            (
                V1,
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "500000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ),
            5,
        ),
        (
            (
                V1,
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ),
            16,
        ),
        ((V1, ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "500000\n")), 16),
    ],
)
def test_the_strictest_quota_counts_in_whole_processors(
    tmp_path: Path, files: tuple[tuple[str, str], ...], count: int
) -> None:
    assert find_processors(build_root(tmp_path, *files)).count == count


def test_it_says_where_the_number_comes_from(tmp_path: Path) -> None:
    assert find_processors(tmp_path) == Processors(16, "processors that the scheduler gives")
    root = build_root(tmp_path, V2, ("sys/fs/cgroup/cpu.max", "250000 100000\n"))
    found = find_processors(root)
    assert found == Processors(2, "of the quota of 2.5 processors (/sys/fs/cgroup/cpu.max)")
    assert plan_workers(found, 31).count == 1
