"""Memory of the machine or container, and the cache's share of it if `cache.size` is unset.

Owns the reading of cgroup and meminfo files below a given root, and the rule for an unset
`cache.size`. Must not know other keys. Invariants:
* the strictest limit from the process's own cgroup up to the root counts.
* a limit at or above the machine's memory counts as none.
* the plan is a pure function, and at most half of a limit, except for the smallest cache size.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proxy.config.units import MIB, rough_size

SMALLEST_CACHE_BYTES = 16 * MIB  # equals the lower limit of cache.size in config/model.py


class Memory(NamedTuple):
    """Memory that this process may use. `total_bytes` 0: unknown. `is_limit`: a container's limit
    sets it. `origin`: the file that says so.
    """

    total_bytes: int
    is_limit: bool
    origin: str


class MemoryPlan(NamedTuple):
    """A size for the cache, and the phrase that explains it."""

    size_bytes: int
    reason: str


def find_memory(root: Path = Path("/")) -> Memory:
    """The strictest cgroup v2 or v1 memory limit, else MemTotal; 0 bytes if neither can be read.
    `root` is for tests.
    """
    machine_bytes = _machine_bytes(root)
    limits = [
        (limit, path)
        for path in list_cgroup_files(root, "memory.max", "memory.limit_in_bytes")
        if (limit := _read_number(path)) is not None
    ]
    limit_bytes, path = min(limits, default=(machine_bytes, None))
    if path is None or (machine_bytes and limit_bytes >= machine_bytes):
        return Memory(machine_bytes, False, "/proc/meminfo")
    return Memory(limit_bytes, True, f"/{path.relative_to(root)}")


def find_filesystem_bytes(directory: str) -> int | None:
    """Size in bytes of the file system that holds a directory; None if `directory` is "" or cannot
    be read.
    """
    if not directory:
        return None
    try:
        status = os.statvfs(directory)
    except (OSError, ValueError):
        return None
    return status.f_blocks * status.f_frsize


def plan_cache_size(memory: Memory, directory: str, filesystem_bytes: int | None) -> MemoryPlan:
    """The cache's size if nobody set it: whole MiB, at least SMALLEST_CACHE_BYTES.
    `filesystem_bytes` None: the size of `directory`'s file system does not limit it.
    """
    share = 2 if memory.is_limit else 8
    text = "half of the memory limit" if memory.is_limit else "an eighth of the machine's memory"
    size_bytes = memory.total_bytes // share
    reason = f"{text} {rough_size(memory.total_bytes)} ({memory.origin})"
    if filesystem_bytes is not None and filesystem_bytes // 8 * 7 < size_bytes:
        size_bytes = filesystem_bytes // 8 * 7
        reason = f"7/8 of the {rough_size(filesystem_bytes)} of {directory}; give it more, or set cache.directory"
    if size_bytes < SMALLEST_CACHE_BYTES:
        return MemoryPlan(SMALLEST_CACHE_BYTES, f"the smallest possible; {reason} would be less")
    return MemoryPlan(size_bytes // MIB * MIB, reason)


def _machine_bytes(root: Path) -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def list_cgroup_files(
    root: Path, name_v2: str, name_v1: str, controller: str = "memory"
) -> Iterator[Path]:
    """Files of a controller, for this process's cgroup and all parents, in each hierarchy. They may not exist.

    In a container the path in /proc/self/cgroup may be the host's and not exist below the mount.
    The parents, at least the mount itself, exist.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if ".." in path:
            path = "/"
        if controllers == "":
            mount, name = root / "sys/fs/cgroup", name_v2
        elif controller in controllers.split(","):
            mount, name = root / "sys/fs/cgroup" / controller, name_v1
        else:
            continue
        group = mount / path.strip("/")
        for level in (group, *group.parents):
            yield level / name
            if level == mount:
                break


def read_text(path: Path) -> str:
    """Its content; "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = read_text(path).strip()
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None
