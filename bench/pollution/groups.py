"""The broker's control group: how much memory it has, how fast it may read a device. Cgroup v1 and v2.

Owns the group's folders, its limits and who is in it. Must not know what runs there. Invariants: what is
started `inside` is charged from its first page on, because the starter itself is in the group while it
starts; whoever closes the group has ended its processes before. Under v1 background writes are charged to
nobody and escape a write limit, so none is set.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pollution.host import PREFIX, Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path("/sys/fs/cgroup")
V1_NAMES = {"memory": "memory", "io": "blkio"}  # v2's name of a controller -> v1's
REMOVE_TRIES = 40


def find_version(controllers: Sequence[str], root: Path = ROOT) -> int:
    """2 where the unified hierarchy has the controllers (named as in v2), 1 where each is mounted by itself.

    Raises Unfit.
    """
    unified = root / "cgroup.controllers"
    if unified.exists() and set(controllers) <= set(unified.read_text().split()):
        return 2
    if all((root / V1_NAMES[one] / "cgroup.procs").exists() for one in controllers):
        return 1
    raise Unfit(f"cgroups (v1 or v2) with the controllers {' and '.join(controllers)} below {root}")


def scan_own_groups(text: str, version: int) -> dict[str, str]:
    """/proc/self/cgroup -> controller's name ("" for v2) -> path of the group."""
    found = {}
    for line in text.splitlines():
        number, names, path = line.split(":", 2)
        if version == 2 and number == "0":
            found[""] = path
        elif version == 1:
            found |= {name: path for name in names.split(",") if name in V1_NAMES.values()}
    return found


class Group:
    """One group in every hierarchy it needs."""

    def __init__(self, controllers: Sequence[str], root: Path = ROOT) -> None:
        """Makes the folders. `controllers`: "memory", "io". Raises Unfit, OSError."""
        self._root = root
        self.version = find_version(controllers, root)
        name = f"{PREFIX}{os.getpid()}"
        if self.version == 2:
            _enable(root / "cgroup.subtree_control", controllers)
            self._folders = {"": root / name}
        else:
            self._folders = {one: root / V1_NAMES[one] / name for one in controllers}
        for folder in self._folders.values():
            folder.mkdir()

    def limit_memory(self, size_bytes: int) -> None:
        """Heap, native memory and page cache together; takes effect at once, pages above it are reclaimed."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        self._file("memory", name).write_text(str(size_bytes))

    def limit_reads(self, device: str, bytes_per_s: int) -> None:
        """`device`: "major:minor" of a whole disk."""
        if self.version == 2:
            self._file("io", "io.max").write_text(f"{device} rbps={bytes_per_s}")
        else:
            self._file("io", "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_s}")

    def peek_page_cache_bytes(self) -> int:
        """Page cache charged to the group."""
        key = "file" if self.version == 2 else "cache"
        for line in self._file("memory", "memory.stat").read_text().splitlines():
            if line.startswith(f"{key} "):
                return int(line.split()[1])
        return 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This process, and what it starts meanwhile, is in the group."""
        before = scan_own_groups(Path("/proc/self/cgroup").read_text(), self.version)
        try:
            for folder in self._folders.values():
                (folder / "cgroup.procs").write_text(str(os.getpid()))
            yield
        finally:
            for name, path in before.items():
                base = self._root / name
                (base / path.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Remove the group; its processes have ended, which the kernel may notice a moment later."""
        for folder in self._folders.values():
            for attempt in range(REMOVE_TRIES):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    if attempt == REMOVE_TRIES - 1:
                        raise
                    time.sleep(0.25)

    def _file(self, controller: str, name: str) -> Path:
        return self._folders["" if self.version == 2 else controller] / name


def _enable(control: Path, controllers: Sequence[str]) -> None:
    """Let groups below have the controllers (v2 only)."""
    try:
        control.write_text(" ".join(f"+{one}" for one in controllers))
    except OSError as error:  # EBUSY: the root of a container's namespace has processes of its own
        raise Unfit(
            f"a cgroup v2 root that hands down {' and '.join(controllers)}: {error}"
        ) from error


def remove_left_groups(root: Path = ROOT) -> list[str]:
    """Remove groups of runs that are gone; their names."""
    removed = []
    for folder in [*root.glob(f"{PREFIX}*"), *root.glob(f"*/{PREFIX}*")]:
        if not Path("/proc", folder.name.removeprefix(PREFIX)).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
                removed.append(str(folder))
    return removed
