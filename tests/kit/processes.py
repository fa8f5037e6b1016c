"""Processes of a Forebay with several workers, told apart by what they hold.

Owns the look into /proc. Must not know what a test does with them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.supervisor.launch import SPARE

if TYPE_CHECKING:
    from tests.kit.sidecar import Sidecar


def list_workers(sidecar: Sidecar) -> list[int]:
    """The process ids of the workers that live."""
    keeper = find_keeper(sidecar)
    return [one for one in list_children(sidecar.pid) if one != keeper]


def list_children(pid: int) -> list[int]:
    """The process ids of a supervisor's children, but for a spare one that waits to be needed."""
    return [one for one in _list_children(pid) if not is_spare(one)]


def find_spare(sidecar: Sidecar) -> int | None:
    """The child that waits for a handover; None: there is none just now."""
    return next((one for one in _list_children(sidecar.pid) if is_spare(one)), None)


def _list_children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_spare(pid: int) -> bool:
    """Whether a process waits for a handover, or will once it has started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return SPARE.encode() in words and not has_handover(pid)
    except OSError:
        return False


def has_handover(pid: int) -> bool:
    """Whether a process has its pipe to the supervisor."""
    with suppress(OSError):
        return any(one.startswith("/memfd:forebay-figures") for one in list_targets(pid))
    return False


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
    with suppress(OSError):
        return {one[8:-1] for one in list_targets(pid) if one.startswith("socket:[")}
    return set()


def list_targets(pid: int) -> list[str]:
    """What each descriptor of a process is of; "" for one that is closed by now. Raises OSError: it is gone."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except OSError:
            found.append("")
    return found
