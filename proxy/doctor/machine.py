"""Checks of this machine: the configuration's own rules, memory, open files, disks, kernel settings, the arena's file.

Owns reading them below a given root. Must not ask a broker or a Forebay. Invariants: reads only, but for what
config/check.py tries; kernel settings are those that Kafka's own guide names ("Hardware and OS"), and two for Forebay.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from blockcache.arena_file import ArenaError, map_read_only
from blockcache.inspect import NoArena, find_damage, inspect
from proxy.config.check import check, count_open_files, find_filesystem_type, sum_memory_bytes
from proxy.config.memory import find_filesystem_bytes, read_text
from proxy.config.units import format_size, rough_size
from proxy.doctor.checklist import CheckLine, failed, passed, skipped, warned
from proxy.scheduling.log_dirs import find_device
from proxy.sockets import BACKLOG
from proxy.supervisor.arena import find_path
from throttle.disks import scan_diskstats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.config.memory import Memory
    from proxy.config.model import Config
    from proxy.config.throttle import Disk

MAP_AREAS_OF_SEGMENT = 2  # an offset index and a time index (Kafka's guide)
SPARE_SEGMENTS = 4
"""Segments of each partition that there should be map areas for: the guide's least, times this."""
SOCKET_BUFFER_BYTES = 102_400  # SocketServerConfigs.SOCKET_SEND_BUFFER_BYTES_DEFAULT
SUBJECTS = (
    ("cache.size", "memory"),
    ("cache.", "arena"),
    ("limits.maxConnections", "open files"),
    ("throttle", "disks"),
)
"""Where findings of config/check.py stand, by the beginning of their text."""


def check_configuration(config: Config, memory: Memory) -> Iterator[CheckLine]:
    """The rules of `forebay serve` itself, and the numbers behind those of memory and open files."""
    findings = check(config, memory)
    subjects = set()
    for text in findings.problems:
        subjects.add(_find_subject(text))
        yield failed(
            _find_subject(text), text, "change it as the line says; Forebay does not start"
        )
    for text in findings.warnings:
        subjects.add(_find_subject(text))
        yield warned(_find_subject(text), text, "change it as the line says")
    if "configuration" not in subjects:
        yield passed("configuration", "no rule over several keys is broken")
    if "memory" not in subjects:
        needed, total = rough_size(sum_memory_bytes(config)), rough_size(memory.total_bytes)
        kind = "limit of" if memory.is_limit else "machine's"
        yield passed(
            "memory",
            f"arena, bytes in flight and processes reach at most {needed} of the {kind} {total} ({memory.origin})",
        )
    if "open files" not in subjects:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        may = "any number" if hard == resource.RLIM_INFINITY else hard
        yield passed(
            "open files",
            f"a worker may need {count_open_files(config)}; a process started here may have {may}",
        )


def _find_subject(text: str) -> str:
    return next((name for start, name in SUBJECTS if text.startswith(start)), "configuration")


def check_disks(config: Config) -> Iterator[CheckLine]:
    """Whether each disk of `throttle.disks` is in diskstats with counters."""
    throttle = config.throttle
    if not throttle.enabled:
        yield skipped("disks", "throttle.enabled is false")
    elif not throttle.disks:
        yield warned(
            "disks",
            "throttle.disks names none: no read of history is ever delayed",
            "name the broker's log directories (docs/operations.md, Throttle)",
        )
    else:
        stats = scan_diskstats(read_text(Path(throttle.diskstats_file))).disks
        for disk in throttle.disks:
            yield _check_disk(disk, throttle.diskstats_file, set(stats))


def _check_disk(disk: Disk, diskstats_file: str, known: set[str]) -> CheckLine:
    place = disk.directory or disk.broker_directory or disk.device
    name, problem = find_device(disk, diskstats_file)
    if name is not None and name in known:
        return passed("disks", f"{place} is device {name}, which has counters in {diskstats_file}")
    reason = problem or f"{diskstats_file} has no line of {name}"
    return failed(
        "disks",
        f"{place}: {reason}; its reads are not delayed",
        f"name one of its devices in throttle.disks[].device: {', '.join(sorted(known)) or 'none is shown here'}",
    )


def check_kernel(root: Path, partitions: int | None) -> Iterator[CheckLine]:
    """Kernel settings below `root`. `partitions`: those on the broker behind Forebay; None: not known."""
    areas = read_setting(root, "vm/max_map_count")
    if areas is None:
        yield skipped("kernel", "vm.max_map_count cannot be read here")
    elif partitions is None:
        yield skipped("kernel", f"vm.max_map_count is {areas}; the number of partitions is unknown")
    else:
        yield _judge_map_areas(areas, partitions)
    for name in ("net/core/rmem_max", "net/core/wmem_max"):
        yield _judge_setting(root, name, SOCKET_BUFFER_BYTES, "socket.*.buffer.bytes of a broker")
    yield _judge_setting(root, "net/core/somaxconn", BACKLOG, "Forebay's backlog")
    yield _judge_swap(root)


def _judge_map_areas(areas: int, partitions: int) -> CheckLine:
    needed = partitions * MAP_AREAS_OF_SEGMENT * SPARE_SEGMENTS
    text = f"vm.max_map_count is {areas}; {partitions} partitions of {SPARE_SEGMENTS} segments need {needed}"
    if needed <= areas:
        return passed("kernel", text)
    text += ": the broker may end for want of them"
    return warned("kernel", text, f"sysctl vm.max_map_count={needed * 2}")


def _judge_setting(root: Path, name: str, needed: int, reason: str) -> CheckLine:
    value, key = read_setting(root, name), name.replace("/", ".")
    if value is None:
        return skipped("kernel", f"{key} cannot be read here")
    if value < needed:
        text = f"{key} is {value}, less than {needed} ({reason})"
        return warned("kernel", text, f"sysctl {key}={needed}")
    return passed("kernel", f"{key} is {value}, at least {needed} ({reason})")


def _judge_swap(root: Path) -> CheckLine:
    match = re.search(r"^SwapTotal:\s+(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    swappiness = read_setting(root, "vm/swappiness")
    if match is None or swappiness is None:
        return skipped("kernel", "swap cannot be read here")
    if int(match[1]) == 0:
        return passed("kernel", "there is no swap")
    text = f"there is swap, and vm.swappiness is {swappiness}"
    if swappiness <= 1:
        return passed("kernel", text)
    return warned("kernel", f"{text}: the arena may be swapped out", "sysctl vm.swappiness=1")


def read_setting(root: Path, name: str) -> int | None:
    """A kernel setting; None if it cannot be read as a number."""
    text = read_text(root / "proc/sys" / name).strip()
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def check_room(config: Config) -> CheckLine:
    """Whether the directory of the arena's file, such as /dev/shm, has room for it now: all of it is taken at once."""
    path, directory = find_path(config), config.cache.directory
    if path is None or config.cache.mode != "serve":
        return skipped("arena", "no directory must have room for it")
    total_bytes = find_filesystem_bytes(directory)
    if total_bytes is None:
        return skipped("arena", f"{directory} cannot be read here")
    volume, size_bytes = os.statvfs(directory), config.cache.size_bytes
    taken_bytes = path.stat().st_blocks * 512 if path.exists() else 0
    free_bytes = volume.f_bavail * volume.f_frsize + taken_bytes
    kind = find_filesystem_type(directory) or "of an unknown kind"
    text = (
        f"{directory} ({kind}, {rough_size(total_bytes)}) has {rough_size(free_bytes)} for an arena of"
        f" {format_size(size_bytes)}"
    )
    if free_bytes >= size_bytes:
        return passed("arena", text)
    remedy = "free some, lower cache.size, or make the volume larger (docker run --shm-size, an emptyDir's sizeLimit)"
    return failed("arena", text, remedy)


def check_arena(config: Config) -> CheckLine:
    """The arena's file, seen from beside: whether it is whole, and whether somebody has it. One that nobody has is
    walked as before a warm restart (fc_check).
    """
    path = find_path(config)
    if path is None or config.cache.mode != "serve":
        return skipped(
            "arena", "there is no file: cache.mode is not `serve`, or the memory anonymous"
        )
    if not path.exists():
        return skipped("arena", f"there is no {path}: no Forebay runs, and none has left it")
    try:
        mapping, held = map_read_only(path)
        with mapping, memoryview(mapping) as view:
            picture = inspect(view)
            damage = None if held else find_damage(view)
    except (ArenaError, NoArena) as refusal:
        remedy = "remove it if no Forebay runs; another build may have made it"
        return warned("arena", f"{path}: {refusal}", remedy)
    torn = picture.torn or any(one.torn for one in picture.partitions)
    size = rough_size(picture.statistics.arena_bytes)
    text = f"{path}: {len(picture.partitions)} partitions in {size}"
    if held:
        return passed("arena", f"{text}, in use")
    if torn or damage is not None:
        text += f", left by a process that ended in the middle of a change ({damage or 'torn'})"
        remedy = "none: the next start checks it, too, and begins with an empty cache if it must"
        return warned("arena", text, remedy)
    if not config.cache.keep_arena:
        return warned("arena", f"{text}, left behind: it takes memory", f"rm {path}")
    return passed("arena", f"{text}, whole, kept for the next start")
