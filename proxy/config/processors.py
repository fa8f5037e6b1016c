"""Processors of the machine or container, and the number of workers if `workers` is `auto`.

Owns the reading of cgroup files below a given root, and the rule. Must not know other keys. Invariants:
* the strictest quota from the process's own cgroup up to the root counts, rounded down: a part of a processor
  would be throttled.
* the plan is a pure function.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from proxy.config.memory import list_cgroup_files, read_text


@dataclass(frozen=True, slots=True)
class Processors:
    """Whole processors that this process may use, at least 1. `origin`: what says so."""

    count: int
    origin: str


@dataclass(frozen=True, slots=True)
class WorkersPlan:
    """A number of workers, and the phrase that explains it."""

    count: int
    reason: str


def find_processors(root: Path = Path("/")) -> Processors:
    """The least of the affinity and of the CPU quotas of cgroups v2 (cpu.max) and v1 (cpu.cfs_quota_us). `root` is for
    tests.
    """
    affinity = Processors(len(os.sched_getaffinity(0)), "processors that the scheduler gives")
    quotas = [
        Processors(
            max(1, int(quota)), f"of the quota of {quota:g} processors (/{path.relative_to(root)})"
        )
        for path in list_cgroup_files(root, "cpu.max", "cpu.cfs_quota_us", "cpu")
        if (quota := _read_quota(path)) is not None
    ]
    return min((affinity, *quotas), key=lambda one: one.count)


def plan_workers(processors: Processors, most: int) -> WorkersPlan:
    """One worker for each processor but the keeper's, from 1 to `most`."""
    count = min(most, max(1, processors.count - 1))
    return WorkersPlan(count, f"{processors.count} {processors.origin}, less one for the keeper")


def _read_quota(path: Path) -> float | None:
    """Processors that the file allows; None: no limit, or no such file."""
    quota, period = [*read_text(path).split(), "", ""][:2]
    if not period:  # version 1 has a file of its own for it
        period = read_text(path.with_name("cpu.cfs_period_us")).strip()
    if not all(re.fullmatch(r"[1-9][0-9]{0,17}", text) for text in (quota, period)):
        return None
    return int(quota) / int(period)
