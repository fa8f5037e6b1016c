"""Processes of a Forebay with several workers, told apart by what they hold.

Owns the look into /proc. Must not know what a test does with them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kit.sidecar import Sidecar


def list_workers(sidecar: Sidecar) -> list[int]:
    """The process ids of the workers that live."""
    keeper = find_keeper(sidecar)
    return [one for one in list_children(sidecar.pid) if one != keeper]


def list_children(pid: int) -> list[int]:
    """The process ids of a process's children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def find_keeper(sidecar: Sidecar) -> int | None:
    """The child that has the admin port; None: there is none just now."""
    inodes = {row[9] for row in read_connections() if row[1].endswith(f":{sidecar.admin_port:04X}")}
    for pid in list_children(sidecar.pid):
        if list_inodes(pid) & inodes:
            return pid
    return None


def read_connections() -> list[list[str]]:
    """The rows of the system's TCP sockets."""
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()][1:]


def list_inodes(pid: int) -> set[str]:
    """The sockets of a process."""
    found = set()
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(fd.readlink())
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
