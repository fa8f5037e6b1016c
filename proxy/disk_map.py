"""Which of the broker's disks a partition lies on. [file]

Owns the table and its refresh: from log directories mounted here, else from what the broker says (DescribeLogDirs),
else one disk stands for all. It must not know how busy a disk is. Invariants: a partition that is not found lies on
the only disk there is, or on none, and is then never delayed; directories are listed off the loop.
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

if TYPE_CHECKING:
    from proxy.broker import Broker
    from proxy.config_throttle import Disk, Throttle

log = logging.getLogger("forebay.disks")

REFRESH_S = 30.0
VERSION = 4
CLIENT_ID = "forebay"
PARTITION_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)(\.[0-9a-f]{32}-future)?")
"""`topic-partition`, and the copy under way to another disk (UnifiedLog.logFutureDirName)."""

Placed = dict[tuple[str, int], str]


class DiskMap:
    """Disks by name, as in /proc/diskstats. `names` are those that could be told at start."""

    def __init__(self, broker: Broker, config: Throttle) -> None:
        self._broker = broker
        self._by_directory: dict[str, str] = {}
        self._mounted: dict[str, str] = {}
        self._placed: Placed = {}
        self._refreshed_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.names: list[str] = []
        for disk in config.disks if config.enabled else ():
            self._add(disk, config.diskstats_file)

    def _add(self, disk: Disk, diskstats_file: str) -> None:
        name = disk.device or _find_device(disk.directory, diskstats_file)
        if name is None:
            log.warning(
                "throttle.disks: no device is known for %s; misses of it are not delayed. Name it in `device`",
                disk.directory or disk.broker_directory,
            )
            return
        if name not in self.names:
            self.names.append(name)
        if disk.directory is not None:
            self._mounted[disk.directory] = name
        if disk.broker_directory is not None:
            self._by_directory[disk.broker_directory.rstrip("/")] = name

    def disk_of(self, topic: str, partition: int) -> str | None:
        """The disk that a partition's log lies on."""
        if len(self.names) == 1:
            return self.names[0]
        return self._placed.get((topic, partition))

    def tick(self, now: float) -> None:
        """Timed: look again where partitions lie."""
        if len(self.names) < 2 or now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        if self._mounted:
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._list())
        elif self._by_directory:
            self._ask()

    async def _list(self) -> None:
        self._placed = await asyncio.to_thread(list_partitions, dict(self._mounted))

    def _ask(self) -> None:
        link = self._broker.own_links.link("proof") if self._broker.own_links.usable else None
        if link is None:
            self._refreshed_at = float("-inf")
            return
        frame = control.build_describe_log_dirs_request(VERSION, 0, CLIENT_ID)
        link.send(frame, 0, self._learn)

    def _learn(self, answer: bytes | bytearray | memoryview | None) -> None:
        if answer is None:
            return
        try:
            directories = control.scan_describe_log_dirs_response(answer, VERSION)
        except BadFrame as error:
            log.error("the broker's DescribeLogDirs cannot be read: %s", error)
            return
        placed: Placed = {}
        for directory in directories:
            name = self._by_directory.get(directory.path.rstrip("/"))
            if name is not None:
                placed.update(dict.fromkeys(directory.partitions, name))
        if not placed:
            log.warning(
                "the broker tells of no partition in the throttle's disks (%s); it may want DESCRIBE on the "
                "cluster for Forebay's principal, or other paths in `brokerDirectory`",
                ", ".join(self._by_directory),
            )
        self._placed = placed

    def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()


def list_partitions(directories: dict[str, str]) -> Placed:
    """(topic, partition) -> disk, from the names of the directories within each log directory."""
    placed: Placed = {}
    for directory, name in directories.items():
        try:
            entries = [entry.name for entry in Path(directory).iterdir()]
        except OSError as error:
            log.warning("throttle.disks: %s cannot be listed: %s", directory, error)
            continue
        for entry in entries:
            match = PARTITION_DIRECTORY.fullmatch(entry)
            if match is not None and (
                match[3] is None or (match["topic"], int(match["partition"])) not in placed
            ):
                placed[match["topic"], int(match["partition"])] = name
    return placed


def _find_device(directory: str | None, diskstats_file: str) -> str | None:
    """The device that holds `directory`, by its number."""
    from throttle.disks import scan_diskstats

    if directory is None:
        return None
    try:
        number = Path(directory).stat().st_dev
        found = scan_diskstats(Path(diskstats_file).read_text()).find(os.major(number), os.minor(number))
    except OSError as error:
        log.warning("throttle.disks: %s cannot be looked at: %s", directory, error)
        return None
    return found.name if found is not None else None
