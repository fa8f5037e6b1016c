"""The command line: `forebay serve`, `forebay config check`, `forebay arena inspect`, `forebay
audit`, `forebay canary`, `forebay doctor`, `forebay top`, `forebay switch`, `forebay injector`; and `forebay
worker`, which only the supervisor starts.

Owns arguments, help, exit codes and the start order: configuration, log, event loop. Must not know
configuration keys without a flag. Imports the modules of a command only when the command is given,
so that `--help` is quick and `serve` needs no Spark. Invariants:
* exit code 0 is success, 1 a failure while running, 2 a wrong command line or configuration.
* problems go to standard error, all at once; results go to standard output.
* a worker parses arguments and reads files at a reload alone, so that its start is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.admin import log
from proxy.build_info import find_commit, find_packages, find_version
from proxy.config.load import Loaded, Setting, describe, load
from proxy.config.memory import find_memory
from proxy.config.yaml_file import ConfigError
from proxy.supervisor.handover import NoHandover, read_handover
from proxy.supervisor.launch import SPARE, wait_for_handover

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from proxy.admin.log_queue import LogQueue
    from proxy.config.keys import KeyPath
    from proxy.config.model import Config
    from proxy.supervisor.handover import Handover

_logger = logging.getLogger(__name__)
OK, FAILED, USAGE = 0, 1, 2
AUDIT = "spark_audit.__main__"
_FLAGS: tuple[tuple[str, str, KeyPath, str], ...] = (
    ("--upstream", "HOST:PORT", ("listeners", 0, "upstream"), "the broker's listener for Forebay"),
    (
        "--listen",
        "HOST:PORT",
        ("listeners", 0, "listen"),
        "where clients connect; port 0: any free port",
    ),
    (
        "--cache-size",
        "SIZE",
        ("cache", "size"),
        "memory for the cache, such as 512MiB; derived when unset",
    ),
    ("--admin", "HOST:PORT", ("admin", "listen"), "metrics and health over HTTP (127.0.0.1:9190)"),
    (
        "--access-log",
        "DIR",
        ("accessLog", "directory"),
        "write the access log here; off when unset",
    ),
)
_EXIT_CODES = "exit codes: 0 done, 1 failed while running, 2 wrong command line or configuration"
_HELP = f"""\
examples:
  forebay serve --upstream 127.0.0.1:19092 --listen 0.0.0.0:9092
  forebay serve --config forebay.yaml
  FOREBAY_CACHE_SIZE=2GiB forebay serve --config forebay.yaml
  forebay config check forebay.yaml
  forebay arena inspect /dev/shm/forebay-9092.arena
  forebay audit /var/log/forebay --out report
  forebay canary forebay.yaml --once
  forebay switch cache off --for 30m
  forebay doctor forebay.yaml --bundle support.tar.gz
  forebay top forebay.yaml

{_EXIT_CODES}
"""
_SERVE_HELP = f"""\
Without --config, --upstream and --listen are enough. Beside it, flags win over environment
variables, and those over the file. Every key of the file is also a variable: cache.size is
FOREBAY_CACHE_SIZE, the first listener's upstream is FOREBAY_LISTENERS_0_UPSTREAM.
docs/configuration.md lists all keys with their defaults and bounds.

The broker's advertised.listeners for clients must name the address that clients reach --listen
by, or they go past Forebay after their first question. SIGTERM, SIGINT and SIGQUIT answer what
is in flight, then stop (shutdown.gracePeriod). SIGHUP reads the configuration again, with these
flags and variables over it (docs/operations.md). SIGUSR2 upgrades in place: the build that is
on disk then takes over clients and cache. SIGUSR1 is ignored.

examples:
  forebay serve --upstream 127.0.0.1:19092 --listen 127.0.0.1:9092 --cache-size 512MiB
  forebay serve --config forebay.yaml --access-log /var/log/forebay

{_EXIT_CODES}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` None: those of the process. Wrong
    arguments raise SystemExit(2), as argparse does.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["audit"]:
        return run_audit(given[1:])
    if given[:1] == ["canary"]:
        return run_canary(given[1:])
    if given[:1] == ["injector"]:
        return run_injector(given[1:])
    if given[:1] == ["switch"]:
        return run_switch(given[1:])
    if given[:1] == ["doctor"]:
        return run_doctor(given[1:])
    if given[:1] == ["top"]:
        return run_top(given[1:])
    if given[:1] == ["worker"]:
        return run_worker(given[1:])
    options = build_parser().parse_args(given)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands, with their help. `options.command` of its result is the function
    to call.
    """
    import argparse

    parser = argparse.ArgumentParser(
        prog="forebay",
        description="A sidecar cache proxy in front of an Apache Kafka broker: consumers that keep up are\n"
        "served from memory, everything else is passed through.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commit = f" ({find_commit()})" if find_commit() else ""
    parser.add_argument("--version", action="version", version=f"forebay {find_version()}{commit}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    config = commands.add_parser("config", help="look at a configuration without starting")
    _add_check(config.add_subparsers(metavar="COMMAND", required=True))
    arena = commands.add_parser("arena", help="look into a cache's memory")
    _add_inspect(arena.add_subparsers(metavar="COMMAND", required=True))
    commands.add_parser(
        "audit", help="hit ratios and the sizing curve from access logs; what changed (audit diff)"
    )
    commands.add_parser(
        "switch", help="change a running Forebay, and undo it: forebay switch --help"
    )
    commands.add_parser("canary", help="latency through Forebay and past it, every few seconds")
    commands.add_parser("injector", help="a Kubernetes webhook that puts the sidecar into pods")
    commands.add_parser("doctor", help="check configuration, broker, machine and a running Forebay")
    commands.add_parser("top", help="hit ratio, memory, top clients and readers behind, live")
    return parser


def _add_serve(commands: Any) -> None:
    import argparse

    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy until SIGTERM, SIGINT or SIGQUIT.",
        epilog=_SERVE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file; see docs/configuration.md"
    )
    for flag, metavar, path, text in _FLAGS:
        serve.add_argument(flag, metavar=metavar, dest=_destination(path), help=text)
    serve.set_defaults(command=run_serve)


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="validate a file and print what would be in force",
        description="Validate FILE with the environment as `forebay serve` would. Prints the effective "
        "configuration as YAML; behind each value stands where it came from: file and line, variable or "
        "default, or how it was derived.",
        epilog=_EXIT_CODES,
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(command=run_check)


def _add_inspect(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="occupancy, runs and holes of an arena's file",
        description="Read the arena at PATH (cache.directory, forebay-PORT.arena) and print how full it is, what its "
        "blocks are, and each partition's runs and holes. Reads only and takes no lock: a running Forebay is not "
        "disturbed, and one that is gone has left its last state there.",
        epilog=_EXIT_CODES,
    )
    inspect.add_argument("path", type=Path, metavar="PATH")
    inspect.add_argument(
        "--top", type=int, default=20, metavar="N", help="partitions to list, largest first (20)"
    )
    inspect.set_defaults(command=run_inspect)


def run_serve(options: argparse.Namespace) -> int:
    """`forebay serve`: load the configuration, start the log, then supervise a worker until a
    signal. Returns the exit code.
    """
    loaded = _read(build_reader(options))
    if loaded is None:
        return USAGE
    with contextlib.closing(_open_log(loaded.config)):
        _logger.info("starting Forebay %s", find_version())
        for choice in loaded.choices:
            _logger.info(choice)
        for warning in loaded.warnings:
            _logger.warning(warning)
        supervisor = importlib.import_module("proxy.supervisor.run")
        collect_garbage()
        command, arguments = find_worker_command(), sys.argv[1:]
        serving = supervisor.serve(loaded.config, command, find_version(), arguments)
        return _guard(lambda: asyncio.run(serving))


def run_worker(arguments: Sequence[str]) -> int:
    """`forebay worker DESCRIPTOR`, `forebay worker --spare DESCRIPTOR`: carry clients' bytes, as the supervisor's
    child. In no list of commands, since the supervisor alone starts workers. Returns the exit code.
    """
    try:
        handover = _take_handover(arguments)
    except NoHandover as refusal:
        print(f"forebay worker: {refusal}; start `forebay serve` instead", file=sys.stderr)
        return USAGE
    if handover is None:
        return OK

    def read() -> Loaded:
        return build_reader(build_parser().parse_args(handover.arguments))()

    with contextlib.closing(_open_log(handover.config)) as own_log:
        app, uvloop = _import_app()
        collect_garbage()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return _guard(lambda: runner.run(app.serve(handover, own_log, read)))


def _take_handover(arguments: Sequence[str]) -> Handover | None:
    """What the supervisor gives, at the start or to a spare process when it is needed; None: it never is. Raises
    NoHandover.
    """
    match arguments:
        case [given] if given.isdecimal():
            return read_handover(int(given))
        case [flag, given] if flag == SPARE and given.isdecimal():
            _import_app()
            return wait_for_handover(int(given))
    return read_handover(-1)


def _import_app() -> tuple[Any, Any]:
    """`proxy.app` and `uvloop`."""
    return importlib.import_module("proxy.app"), importlib.import_module("uvloop")


def collect_garbage() -> None:
    """Turn on the garbage collector if `proxy.__main__` has turned it off. All objects so far are
    of imported modules, and are excluded (docs/decisions/0010).
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def build_reader(options: argparse.Namespace) -> Callable[[], Loaded]:
    """Return what loads the configuration of `forebay serve` with these options, now and at each
    reload: flags and environment stay as they are at the start.
    """
    return partial(load, options.config, dict(os.environ), _settings(options), find_memory())


def find_worker_command() -> list[str]:
    """The command that starts a worker: this interpreter with the options and the program that it
    was started with, so that both processes import the same code.
    """
    program = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return [sys.executable, *program, "worker"]


def _open_log(config: Config) -> LogQueue:
    return log.configure(config.log.level, config.log.format, config.log.queue_lines)


def _guard(run: Callable[[], int]) -> int:
    """The exit code of `run`. Failures are logged and are FAILED."""
    try:
        return run()
    except KeyboardInterrupt:
        return FAILED
    except OSError as error:
        _logger.error("stopped: %s", error)
    except Exception:
        _logger.exception("stopped by an error that should not happen")
    return FAILED


def run_check(options: argparse.Namespace) -> int:
    """`forebay config check FILE`: print the configuration in force. Returns the exit code."""
    loaded = _read(partial(load, options.file, os.environ, ()))
    if loaded is None:
        return USAGE
    print(describe(loaded), end="")
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return OK


def run_inspect(options: argparse.Namespace) -> int:
    """`forebay arena inspect PATH`: print the state of an arena's file. Returns the exit code."""
    from blockcache.arena_file import ArenaError, map_read_only
    from blockcache.inspect import NoArena, inspect
    from proxy.admin.arena_report import describe

    try:
        mapping, held = map_read_only(options.path)
        with mapping, memoryview(mapping) as view:
            print(describe(inspect(view), held, max(0, options.top)), end="")
    except (ArenaError, NoArena) as refusal:
        print(f"forebay arena inspect: {options.path}: {refusal}", file=sys.stderr)
        return USAGE
    return OK


def run_audit(arguments: Sequence[str]) -> int:
    """`forebay audit ...`: spark_audit parses `arguments`. Returns the exit code; USAGE if its
    packages are missing.
    """
    collect_garbage()
    try:
        audit = importlib.import_module(AUDIT)
        return int(audit.main(list(arguments)) or OK)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        print(
            f"forebay audit: {error.name} is missing; install what the audit needs beside Forebay:"
            f" {shlex.join([sys.executable, '-m', 'pip', 'install', *find_packages('audit')])}",
            file=sys.stderr,
        )
        return USAGE


def run_canary(arguments: Sequence[str]) -> int:
    """`forebay canary ...`: proxy.canary parses `arguments`. Returns the exit code."""
    from proxy.canary.command import main as run

    collect_garbage()
    return run(arguments)


def run_injector(arguments: Sequence[str]) -> int:
    """`forebay injector ...`: proxy.injector parses `arguments`. Returns the exit code."""
    from proxy.injector.command import main as run

    collect_garbage()
    return run(arguments)


def run_switch(arguments: Sequence[str]) -> int:
    """`forebay switch ...`: proxy.switches.command parses `arguments`. Returns the exit code."""
    from proxy.switches.command import main as run

    return run(arguments)


def run_doctor(arguments: Sequence[str]) -> int:
    """`forebay doctor ...`: proxy.doctor parses `arguments`. Returns the exit code."""
    from proxy.doctor.command import main as run

    return run(arguments)


def run_top(arguments: Sequence[str]) -> int:
    """`forebay top ...`: proxy.top parses `arguments`. Returns the exit code."""
    from proxy.top.command import main as run

    return run(arguments)


def _read(read: Callable[[], Loaded]) -> Loaded | None:
    """The configuration, or None after printing its problems to standard error."""
    try:
        return read()
    except ConfigError as refusal:
        count = len(refusal.problems)
        print(
            f"forebay: the configuration has {count} problem{'s' if count > 1 else ''}:",
            file=sys.stderr,
        )
        for problem in refusal.problems:
            print(f"  {problem}", file=sys.stderr)
        return None


def _settings(options: argparse.Namespace) -> list[Setting]:
    given = vars(options)
    return [
        Setting(path, given[_destination(path)], flag)
        for flag, _, path, _ in _FLAGS
        if given[_destination(path)] is not None
    ]


def _destination(path: KeyPath) -> str:
    return "_".join(map(str, path))
