"""What the lab needs of the machine, and the slow disk it makes there.

Owns the check of what is missing, the sparse file, its loop device with direct I/O and the ext4 on it. Must
not know Kafka. Invariants: reads are limited on the device *below* the loop device (groups.py), so that the
loop device's own counters show requests that wait; everything made is undone when the stack closes, in
reverse order, whatever closed it; names begin with PREFIX, so that `sweep_up` finds what a killed run left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from contextlib import ExitStack

PREFIX = "forebay-lab-"
TOOLS = ("losetup", "mkfs.ext4", "mount", "umount", "cc")
SYS_DEV = Path("/sys/dev/block")
UNMOUNT_TRIES = 20
MOUNT_OPTIONS = "noatime,lazytime"
SPARE_BYTES = 2 << 30


class Unfit(RuntimeError):
    """The machine lacks something; the message says what to do about it."""


class Disk(NamedTuple):
    """The slow disk: its name in /proc/diskstats ("loop0"), where it is mounted, and "major:minor" of the
    device that holds its file, which is the one to limit.
    """

    name: str
    mount: Path
    backing: str


def find_missing(directory: Path, size_bytes: int) -> list[str]:
    """What stands against a run whose disk image lies in `directory`; empty: nothing."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root, to make a loop device, mount it and limit its reads (sudo make lab)")
    missing += [
        f"the command {tool} (Debian: util-linux, e2fsprogs, gcc)"
        for tool in TOOLS
        if not shutil.which(tool) and not Path("/usr/sbin", tool).exists()
    ]
    if not Path("/dev/loop-control").exists():
        missing.append("loop devices: /dev/loop-control is not there (modprobe loop)")
    try:
        find_backing(directory)
    except Unfit as error:
        missing.append(str(error))
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes + SPARE_BYTES:
        missing.append(f"{(size_bytes + SPARE_BYTES) >> 30} GiB free at {directory} ({free_bytes >> 30} are)")
    return missing


def find_backing(directory: Path) -> str:
    """ "major:minor" of the whole disk below a directory's file system. Raises Unfit."""
    number = directory.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    node = SYS_DEV / name
    if os.major(number) == 0 or not node.exists():
        raise Unfit(
            f"a directory on a block device that reads can be limited on: {directory} lies on device {name} "
            "(overlay, tmpfs, network); choose another by --image-directory"
        )
    if (node / "partition").exists():  # limits are set on whole disks (blkg_conf_prep)
        return (node.resolve().parent / "dev").read_text().strip()
    return name


def open_disk(stack: ExitStack, directory: Path, size_bytes: int) -> Disk:
    """Make, format and mount the disk; the stack undoes it. Raises subprocess.CalledProcessError."""
    image = directory / f"{PREFIX}{os.getpid()}.img"
    mount = directory / f"{PREFIX}{os.getpid()}.mnt"
    stack.callback(image.unlink, missing_ok=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    device = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
    stack.callback(_run, "losetup", "--detach", device)
    _run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device)
    mount.mkdir()
    stack.callback(mount.rmdir)
    _run("mount", "-o", MOUNT_OPTIONS, device, str(mount))
    stack.callback(_unmount, mount)
    return Disk(Path(device).name, mount, find_backing(directory))


def drop_pages(directory: Path) -> None:
    """Write back and forget the page cache of every file below."""
    os.sync()
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)


def sweep_up(directory: Path) -> list[str]:
    """Undo what a killed run left in `directory`, if that run is gone; what was undone."""
    undone = []
    for image in directory.glob(f"{PREFIX}*.img"):
        if Path("/proc", image.stem.removeprefix(PREFIX)).exists():
            continue
        mount = image.with_suffix(".mnt")
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("umount", str(mount))
        for line in _run("losetup", "--associated", str(image)).splitlines():
            _run("losetup", "--detach", line.split(":")[0])
        with contextlib.suppress(OSError):
            mount.rmdir()
        image.unlink()
        undone.append(image.name)
    return undone


def _unmount(mount: Path) -> None:
    """A broker that was just killed may hold the file system for a moment."""
    for attempt in range(UNMOUNT_TRIES):
        try:
            _run("umount", str(mount))
            return
        except subprocess.CalledProcessError:
            if attempt == UNMOUNT_TRIES - 1:
                raise
            time.sleep(0.25)


def _run(*command: str) -> str:
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
