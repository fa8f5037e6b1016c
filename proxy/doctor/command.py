"""`forebay doctor`: arguments, the order of the checks, output and exit code.

Owns the command. Must not know how a check is made. Exit codes: 0 nothing is wrong, 1 a check has failed, 2 wrong
arguments or configuration, 3 there are warnings.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from blockcache.arena_file import ArenaError, map_read_only
from blockcache.inspect import NoArena, inspect
from proxy.admin.arena_report import describe as describe_arena
from proxy.build_info import find_commit, find_version
from proxy.config.load import describe, load
from proxy.config.memory import find_memory, read_text
from proxy.config.units import parse_duration
from proxy.config.yaml_file import ConfigError
from proxy.doctor.broker import examine
from proxy.doctor.bundle import read_secrets, write_bundle
from proxy.doctor.checklist import EXIT_CODES, find_worst, format_json, format_text
from proxy.doctor.machine import (
    check_arena,
    check_configuration,
    check_disks,
    check_kernel,
    check_room,
    read_setting,
)
from proxy.doctor.processes import check_open_files, check_own_clock
from proxy.doctor.running import ask_admin, check_running
from proxy.supervisor.arena import find_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proxy.admin_client import AdminAnswer
    from proxy.config.load import Loaded
    from proxy.doctor.checklist import CheckLine

USAGE = 2
ROOT = Path("/")
SETTINGS = (
    *("vm/max_map_count", "vm/swappiness", "vm/dirty_ratio", "vm/dirty_background_ratio"),
    *("net/core/rmem_max", "net/core/wmem_max", "net/core/somaxconn", "fs/file-max"),
)
SHOWN_FILES = (
    *("proc/meminfo", "proc/diskstats", "proc/pressure/io", "proc/self/limits", "proc/self/mounts"),
)
PACKAGES = (
    "cffi",
    "crc32c",
    "kio",
    "prometheus-client",
    "pydantic",
    "pyyaml",
    "uvloop",
    "aiokafka",
)
PARTITIONS_SHOWN = 200
_HELP = """\
Checks CONFIG, the broker behind each listener, this machine, and a Forebay that runs by CONFIG. Each line
is ok, skip, warn or fail, and says what to do. Nothing is written, created or changed; a serving Forebay is
asked like by any client.

--bundle writes the list, the configuration, the answers of the admin port, versions and kernel settings
into one file for support. Secrets are in files that CONFIG names; what these hold is removed.

exit codes: 0 nothing is wrong, 1 a check has failed, 2 wrong command line or configuration, 3 warnings only
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog="forebay doctor",
        description="Find what keeps Forebay from working, or from working well.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="the configuration of `forebay serve`")
    add("--json", action="store_true", help="the list as JSON")
    add("--bundle", type=Path, metavar="FILE", help="write a bundle for support: FILE.tar.gz")
    add("--timeout", type=_parse_time, default=5.0, metavar="TIME", help="for each answer (5s)")
    return parser


def _parse_time(text: str) -> float:
    try:
        time_s = parse_duration(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}") from None
    if not 0.01 <= time_s <= 300:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 10ms and 5m")
    return time_s


def main(arguments: Sequence[str]) -> int:
    """Run `forebay doctor ...` and return its exit code. Wrong arguments raise SystemExit(2)."""
    options = build_parser().parse_args(arguments)
    try:
        loaded = load(options.config, dict(os.environ), checks=False)
    except ConfigError as refusal:
        for problem in refusal.problems:
            print(f"forebay doctor: {problem}", file=sys.stderr)
        return USAGE
    answers = ask_admin(loaded.config, options.timeout)
    lines = asyncio.run(check_all(loaded, answers, options.timeout))
    version = find_version()
    print(format_json(lines, version) if options.json else format_text(lines), end="")
    if options.bundle is not None:
        members = collect_members(loaded, lines, answers)
        try:
            names = write_bundle(options.bundle, members, read_secrets(loaded.config))
        except OSError as error:
            print(f"forebay doctor: --bundle: {error}", file=sys.stderr)
            return USAGE
        print(f"{options.bundle}: {', '.join(names)}", file=sys.stderr)
    return EXIT_CODES[find_worst(lines)]


async def check_all(
    loaded: Loaded, answers: Mapping[str, AdminAnswer], timeout_s: float
) -> list[CheckLine]:
    """All checks, in the order of the list."""
    config = loaded.config
    lines = [*check_configuration(config, find_memory())]
    partitions: list[int] = []
    for listener in config.listeners:
        found = await examine(config, listener, timeout_s)
        lines += found.lines
        partitions += [found.partitions] if found.partitions is not None else []
    lines += check_disks(config)
    lines += [check_room(config), check_arena(config), check_own_clock()]
    lines += check_open_files(config, ROOT)
    lines += check_kernel(ROOT, max(partitions, default=None))
    lines += check_running(config, answers, find_version())
    return lines


def collect_members(
    loaded: Loaded, lines: Sequence[CheckLine], answers: Mapping[str, AdminAnswer]
) -> dict[str, str]:
    """The bundle's members: name -> text."""
    members = {
        "doctor.txt": format_text(lines),
        "doctor.json": format_json(lines, find_version()),
        "forebay.yaml": describe(loaded),
        "versions.txt": describe_versions(),
        "kernel.txt": "".join(
            f"{name.replace('/', '.')} = {read_setting(ROOT, name)}\n" for name in SETTINGS
        ),
        "arena.txt": _read_arena(loaded),
    }
    for path, answer in answers.items():
        members[f"admin/{path[1:]}.txt"] = f"{answer.status}\n{answer.body}"
    return members | {name: read_text(ROOT / name) for name in SHOWN_FILES}


def describe_versions() -> str:
    """Forebay, its packages, Python and the kernel, one a line."""
    rows = [f"forebay {find_version()} {find_commit()}".strip()]
    for name in PACKAGES:
        try:
            rows.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            rows.append(f"{name} is not installed")
    rows += [f"python {platform.python_version()}", f"{platform.system()} {platform.release()}"]
    return "\n".join([*rows, platform.machine(), ""])


def _read_arena(loaded: Loaded) -> str:
    path = find_path(loaded.config)
    if path is None:
        return "anonymous memory\n"
    try:
        mapping, held = map_read_only(path)
        with mapping, memoryview(mapping) as view:
            return describe_arena(inspect(view), held, PARTITIONS_SHOWN)
    except (ArenaError, NoArena) as refusal:
        return f"{refusal}\n"
