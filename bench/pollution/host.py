"""What the lab needs of the machine, and the slow disk it makes there.

Owns the check of what is missing, the sparse file, its loop device with direct I/O and the ext4 on it. Two kinds:
PACED lies on slow_disk.c, a disk with one arm, whose utilisation is proportional to its load; LIMITED has
the kernel's read limit, a bucket as cloud volumes have, on the device *below*, so that the loop device's own
counters show what waits. Must not know Kafka. Invariants: everything made is undone when the stack closes,
in reverse order, whatever closed it; names begin with PREFIX, so that `sweep_up` finds what a killed run left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.pollution import write_back

if TYPE_CHECKING:
    from contextlib import ExitStack

PREFIX = "forebay-lab-"
PACED, LIMITED = "paced", "limited"
SOURCE = Path(__file__).with_name("slow_disk.c")
SEEK_US = 200
TOOLS = ("losetup", "mkfs.ext4", "mount", "umount", "cc")
SYS_DEV, SYS_BLOCK = Path("/sys/dev/block"), Path("/sys/block")
READ_AHEAD, READ_AHEAD_KB = "queue/read_ahead_kb", 128
"""A disk's (VM_READAHEAD_PAGES). A loop device takes twice what its file likes best: 2.5 MB, 40 ms of this disk's."""
UNMOUNT_TRIES = 20
MOUNT_OPTIONS = "noatime,lazytime"


class Unfit(RuntimeError):
    """The machine lacks something; the message says what to do about it."""


class Disk(NamedTuple):
    """The slow disk: its name in /proc/diskstats ("loop0"), where it is mounted, and "major:minor" of the
    device that holds its file, which is the one to limit ("" for PACED).
    """

    name: str
    mount: Path
    backing: str


def find_missing(kind: str, directory: Path, size_bytes: int) -> list[str]:
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
    if kind == PACED and not Path("/dev/fuse").exists():
        missing.append("FUSE: /dev/fuse is not there (modprobe fuse), or --disk limited")
    if kind == LIMITED:
        try:
            find_backing(directory)
        except Unfit as error:
            missing.append(str(error))
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes:
        missing.append(f"{(size_bytes >> 30) + 1} GiB free at {directory} ({free_bytes >> 30} are)")
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


def open_disk(
    stack: ExitStack, kind: str, directory: Path, size_bytes: int, bytes_per_s: int
) -> Disk:
    """Make, format and mount the disk; the stack undoes it. Raises subprocess.CalledProcessError, Unfit.

    PACED is slow by itself; of LIMITED the reads are still to be limited, on its `backing`.
    """
    image = directory / f"{PREFIX}{os.getpid()}.img"
    mount = image.with_suffix(".mnt")
    try:
        write_back.even_out(stack, image.with_suffix(write_back.SUFFIX))
    except OSError as error:
        raise Unfit(
            f"to set {', '.join(write_back.SETTINGS)} below {write_back.SYSCTL}: {error}"
        ) from error
    stack.callback(image.unlink, missing_ok=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    backing = find_backing(directory) if kind == LIMITED else ""
    below = _open_paced(stack, image, bytes_per_s) if kind == PACED else image
    device = _run("losetup", "--find", "--show", "--direct-io=on", str(below)).strip()
    stack.callback(_run, "losetup", "--detach", device)
    (SYS_BLOCK / Path(device).name / READ_AHEAD).write_text(f"{READ_AHEAD_KB}\n")
    _run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device)
    mount.mkdir()
    stack.callback(mount.rmdir)
    _run("mount", "-o", MOUNT_OPTIONS, device, str(mount))
    stack.callback(_unmount, mount)
    return Disk(Path(device).name, mount, backing)


def _open_paced(stack: ExitStack, image: Path, bytes_per_s: int) -> Path:
    """Build and mount slow_disk over the image; the file to put a loop device on."""
    program, mount = image.with_suffix(".bin"), image.with_suffix(".slow")
    stack.callback(program.unlink, missing_ok=True)
    _run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", str(program), str(SOURCE))
    mount.mkdir()
    stack.callback(mount.rmdir)
    words = [str(program), str(image), str(mount), str(bytes_per_s), str(SEEK_US)]
    child = subprocess.Popen(
        words, start_new_session=True
    )  # an interrupt from the terminal is not for it
    stack.callback(child.wait, 10)
    stack.callback(_unmount, mount)
    for _ in range(UNMOUNT_TRIES):
        if (mount / "disk").exists():
            return mount / "disk"
        time.sleep(0.1)
    raise Unfit("FUSE: slow_disk did not come up (see above)")


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


def sweep_up(directory: Path, sysctl: Path = write_back.SYSCTL) -> list[str]:
    """Undo what a killed run left in `directory`, if that run is gone; what was undone."""
    undone = []
    for kept in _find_left(directory, write_back.SUFFIX):
        write_back.put_back(kept, sysctl)
        undone.append(kept.name)
    for image in _find_left(directory, ".img"):
        mount, slow = image.with_suffix(".mnt"), image.with_suffix(".slow")
        _try("umount", str(mount))
        for line in _run(
            "losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"
        ).splitlines():
            device, below = line.split(maxsplit=1)
            if below.startswith((str(image), f"{slow}/")):
                _try("losetup", "--detach", device)
        _try("umount", str(slow))
        for folder in (mount, slow):
            with contextlib.suppress(OSError):
                folder.rmdir()
        for file in (image, image.with_suffix(".bin")):
            file.unlink(missing_ok=True)
        undone.append(image.name)
    return undone


def _find_left(directory: Path, suffix: str) -> list[Path]:
    """The files of runs that are gone, by whole paths, as losetup names them."""
    found = directory.resolve().glob(f"{PREFIX}*{suffix}")
    return [path for path in found if not Path("/proc", path.stem.removeprefix(PREFIX)).exists()]


def _try(*command: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _run(*command)


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
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
