"""Maps partitions to the broker's disks. [file]

Owns the map and its refresh: from log directories mounted here, and from the broker's
DescribeLogDirs response. If there is one disk only, all partitions are on it. Must not know how
busy a disk is. Invariants:
* a partition that is not found lies on no disk, and is never delayed.
* directories are listed, and the broker's response is decoded, outside the event loop.
* a problem is logged once, until it is solved.
* a directory that is not there yet is looked for again: a broker makes its own on a fresh volume, after the start of
  a sidecar.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import BadFrame
from throttle.disks import DiskLimit, scan_diskstats

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence
    from typing import Any

    from protocol.control import LogDirectory
    from protocol.primitives import Frame
    from proxy.config.throttle import Disk, ThrottleConfig
    from proxy.scheduling.services import SchedulingServices

log = logging.getLogger("forebay.log_dirs")

REFRESH_S = 30.0
LOOK_AGAIN_S = 5.0
"""Interval at which a directory without a known device is looked at again."""
VERSION = 4
CLIENT_ID = "forebay"
PARTITION_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)")
"""`topic-partition`. Other endings mark a copy on its way to another disk, which no reader uses yet,
or a deleted one (UnifiedLog.logFutureDirName, logDeleteDirName, logStrayDirName).
"""

Placed = dict[tuple[str, int], str]


class ConfiguredDisks:
    """The disks of the configuration, named as in /proc/diskstats.

    `names`: those that could be identified. `limits`: what was provisioned, by name, of those whose
    configuration says so. `mounted` and `by_directory`: the disk of each log directory, by its path
    here and by its path in the broker. `unknown`: entries whose directory tells no device so far.
    """

    __slots__ = ("_diskstats_file", "by_directory", "limits", "mounted", "names", "unknown")

    def __init__(self, disks: Iterable[Disk], diskstats_file: str) -> None:
        self.by_directory: dict[str, str] = {}
        self.mounted: dict[str, str] = {}
        self.names: list[str] = []
        self.limits: dict[str, DiskLimit] = {}
        self.unknown: list[Disk] = []
        self._diskstats_file = diskstats_file
        for disk in disks:
            name, problem = find_device(disk, diskstats_file)
            if name is not None:
                self.add(disk, name)
                continue
            self.unknown.append(disk)
            # At a pod's first start the broker, which starts later, has made no directory yet.
            is_early = disk.directory is not None and not Path(disk.directory).exists()
            log.log(
                logging.INFO if is_early else logging.WARNING,
                "throttle.disks: no device is known for %s: %s; its misses are not delayed. A directory that the"
                " broker has yet to make is found by itself; else name it in `device`",
                disk.directory or disk.broker_directory,
                problem,
                extra={"disk": disk.directory or disk.broker_directory},
            )

    @property
    def only(self) -> str | None:
        """Return the name of the only disk; None if there are several, or one is not known."""
        return self.names[0] if not self.unknown and len(self.names) == 1 else None

    def find_unknown(self) -> list[tuple[Disk, str]]:
        """Return those of `unknown` that a device is known for now, with its name. Changes nothing."""
        looked = [(disk, find_device(disk, self._diskstats_file)[0]) for disk in self.unknown]
        return [(disk, name) for disk, name in looked if name is not None]

    def add(self, disk: Disk, name: str) -> None:
        """Note the device of an entry, also one of `unknown`."""
        self.unknown = [one for one in self.unknown if one is not disk]
        if name not in self.names:
            self.names.append(name)
        if disk.throughput_bytes or disk.iops:
            self.limits[name] = DiskLimit(float(disk.throughput_bytes), float(disk.iops), "named")
        if disk.directory is not None:
            self.mounted[disk.directory] = name
        if disk.broker_directory is not None:
            self.by_directory[disk.broker_directory.rstrip("/")] = name


class LogDirs:
    """Disks by partition."""

    def __init__(self, broker: SchedulingServices, config: ThrottleConfig) -> None:
        self._broker = broker
        self._disks = ConfiguredDisks(config.disks, config.diskstats_file)
        self._one = self._disks.only
        self._listed: Placed = {}
        self._described: Placed = {}
        self._listed_at = self._asked_at = self._looked_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints: dict[str, str] = {}
        self._closed = False

    @property
    def names(self) -> list[str]:
        """The disks that could be identified so far."""
        return self._disks.names

    @property
    def unknown(self) -> list[str]:
        """The mounted directories whose disk is not known so far."""
        return [disk.directory for disk in self._disks.unknown if disk.directory is not None]

    @property
    def limits(self) -> dict[str, DiskLimit]:
        """What was provisioned, by the disk's name."""
        return self._disks.limits

    def disk_of(self, topic: str, partition: int) -> str | None:
        """Return the name of the disk with the partition's log, or None. Mounted directories count
        before the broker's response.
        """
        if self._one is not None:
            return self._one
        key = topic, partition
        return self._listed.get(key) or self._described.get(key)

    def tick(self, now: float) -> None:
        """Refresh the map every REFRESH_S seconds, and look for unknown disks every LOOK_AGAIN_S. Called
        periodically.
        """
        if self._one is not None or self._tasks:
            return
        if self.unknown and now - self._looked_at >= LOOK_AGAIN_S:
            self._looked_at = now
            self._begin(self._look_again())
            return
        if self._disks.mounted and now - self._listed_at >= REFRESH_S:
            self._listed_at = now
            self._begin(self._list())
        if self._disks.by_directory and now - self._asked_at >= REFRESH_S:
            self._ask(now)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_again(self) -> None:
        for disk, name in await asyncio.to_thread(self._disks.find_unknown):
            self._disks.add(disk, name)
            self._listed_at = self._asked_at = float("-inf")
            log.info(
                "throttle.disks: %s lies on %s",
                disk.directory,
                name,
                extra={"disk": disk.directory},
            )
        self._one = self._disks.only

    async def _list(self) -> None:
        self._listed, unlisted = await asyncio.to_thread(list_partitions, dict(self._disks.mounted))
        self._say("directory", "; ".join(unlisted))

    def _ask(self, now: float) -> None:
        own_connections = self._broker.own_connections
        link = own_connections.link("proof") if own_connections.usable else None
        if link is None:
            if own_connections.refusal:
                self._say(
                    "link",
                    "the broker cannot be asked, for Forebay has no connection of its own to it",
                )
            return
        self._asked_at = now
        self._say("link", "")
        link.send(control.build_describe_log_dirs_request(VERSION, 0, CLIENT_ID), 0, self._answered)

    def _answered(self, answer: Frame | None) -> None:
        if answer is not None and not self._closed:
            self._begin(self._learn(bytes(answer)))

    async def _learn(self, answer: bytes) -> None:
        try:
            directories = await asyncio.to_thread(
                control.scan_describe_log_dirs_response, answer, VERSION
            )
        except BadFrame as error:
            self._say("brokerDirectory", f"the broker's DescribeLogDirs cannot be read: {error}")
            return
        self._described = place_partitions(directories, self._disks.by_directory)
        missing = ", ".join(
            sorted(self._disks.by_directory.keys() - {one.path.rstrip("/") for one in directories})
        )
        self._say(
            "brokerDirectory",
            missing
            and f"the broker does not tell of {missing}; it may want DESCRIBE on the cluster for Forebay's "
            "principal, or has other paths in log.dirs",
        )

    def _say(self, about: str, complaint: str) -> None:
        """Log a problem once; an empty one means that the earlier problem is solved."""
        before, self._complaints[about] = self._complaints.get(about, ""), complaint
        if complaint and complaint != before:
            log.warning(
                "throttle.disks: %s; misses of partitions that are not found are not delayed",
                complaint,
                extra={"disk": about},
            )
        elif before and not complaint:
            log.info(
                "throttle.disks: which partitions lie where is known again (%s)",
                about,
                extra={"disk": about},
            )

    def close(self) -> None:
        """Stop refreshing; a response that is still to come is not decoded."""
        self._closed = True
        for task in self._tasks:
            task.cancel()


def place_partitions(directories: Sequence[LogDirectory], disks: dict[str, str]) -> Placed:
    """Return (topic, partition) -> disk, from the broker's log directories and the disks of some of
    them, by path.
    """
    placed: Placed = {}
    for directory in directories:
        name = disks.get(directory.path.rstrip("/"))
        if name is not None:
            placed.update(dict.fromkeys(directory.partitions, name))
    return placed


def list_partitions(directories: dict[str, str]) -> tuple[Placed, list[str]]:
    """Return (topic, partition) -> disk, from the directory names within each log directory; and
    one message per directory that cannot be listed.
    """
    placed: Placed = {}
    wrong: list[str] = []
    for directory, name in directories.items():
        try:
            entries = [entry.name for entry in Path(directory).iterdir()]
        except OSError as error:
            wrong.append(f"{directory} cannot be listed: {error.strerror}")
            continue
        for entry in entries:
            match = PARTITION_DIRECTORY.fullmatch(entry)
            if match is not None:
                placed[match["topic"], int(match["partition"])] = name
    return placed, wrong


def find_device(disk: Disk, diskstats_file: str) -> tuple[str | None, str]:
    """Return the name of the device, configured or found by the device number of `directory`, and ""; or None and the
    reason.
    """
    if disk.device is not None or disk.directory is None:
        return disk.device, "it names no directory" if disk.device is None else ""
    try:
        number = Path(disk.directory).stat().st_dev
        found = scan_diskstats(Path(diskstats_file).read_text()).find(
            os.major(number), os.minor(number)
        )
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"
    except ValueError as error:
        return None, f"{diskstats_file}: {error}"
    if found is None:
        return None, f"{diskstats_file} has no device {os.major(number)}:{os.minor(number)}"
    return found.name, ""
