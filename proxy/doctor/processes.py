"""Checks of what the kernel lets processes and clocks do: open files of the broker and of a running Forebay, the clock.

Owns finding a process by the port that it listens at, below a given root. Must not ask a broker. Invariants: reads
only; a process of another user or container is not seen, which is no fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import re
from typing import TYPE_CHECKING, Final

from proxy.config.check import count_open_files
from proxy.config.memory import read_text
from proxy.doctor.checklist import CheckLine, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from proxy.config.model import Config
    from proxy.config.units import Address

BROKER_FILES: Final = 100_000
"""Open files that Kafka's guide ("Hardware and OS", File descriptor limits) recommends for a broker as a start."""
LISTENS: Final = "0A"  # TCP_LISTEN, include/net/tcp_states.h
TIME_ERROR: Final = 5  # the kernel's clock is not synchronised (adjtimex(2))
TIMEX_WORDS: Final = 32
"""Longs in struct timex, at least."""
MAX_ERROR_AT: Final = 3
"""The long of `maxerror`, microseconds, after modes, offset and freq."""
NO_SUCH_CALL: Final = -1


def check_open_files(config: Config, root: Path) -> Iterator[CheckLine]:
    """The limits of the broker's process, and of the Forebay that listens by the configuration."""
    for listener in config.listeners:
        yield _check_broker(root, listener.name, listener.upstream)
    first = config.listeners[0].listen
    soft = read_file_limit(root, find_listening(root, first.port))
    needed = count_open_files(config)
    if soft is None:
        yield skipped("open files", f"no Forebay that listens at {first} is seen from here")
    elif soft < needed:
        text = f"the Forebay that runs may have {soft}, and may need {needed}"
        yield warned(
            "open files", text, "raise its hard limit (LimitNOFILE, ulimits), and restart it"
        )
    else:
        yield passed("open files", f"the Forebay that runs may have {soft}, and may need {needed}")


def _check_broker(root: Path, name: str, upstream: Address) -> CheckLine:
    subject = "open files"
    if not is_here(upstream.host):
        return skipped(subject, f"the broker of {name} is on another machine")
    limit = read_file_limit(root, find_listening(root, upstream.port))
    if limit is None:
        return skipped(subject, f"the process that listens at {upstream} is not seen from here")
    text = f"the broker's process may have {limit}; Kafka's guide recommends {BROKER_FILES}"
    if limit < BROKER_FILES:
        remedy = f"LimitNOFILE={BROKER_FILES} in the broker's unit, or its container's ulimit"
        return warned(subject, text, remedy)
    return passed(subject, text)


def is_here(host: str) -> bool:
    """Whether an address is certainly this machine's: loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def find_listening(root: Path, port: int) -> int | None:
    """A process that listens at a TCP port of any address; None: there is none, or it is not ours to see."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in read_text(root / "proc/net" / name).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENS and words[1].endswith(f":{port:04X}"):
                inodes.add(f"socket:[{words[9]}]")
    if not inodes:
        return None
    return next((pid for pid in _list_processes(root) if _holds(root, pid, inodes)), None)


def _list_processes(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from sorted(
            int(one.name) for one in (root / "proc").iterdir() if one.name.isdecimal()
        )


def _holds(root: Path, pid: int, links: set[str]) -> bool:
    """Whether an open file of a process is one of `links`."""
    try:
        opened = list((root / f"proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for one in opened:
        with contextlib.suppress(OSError):
            if str(one.readlink()) in links:
                return True
    return False


def read_file_limit(root: Path, pid: int | None) -> int | None:
    """The soft limit of a process's open files; None if it cannot be read."""
    if pid is None:
        return None
    limits = read_text(root / f"proc/{pid}/limits")
    match = re.search(r"^Max open files +(\d+)", limits, re.MULTILINE)
    return int(match[1]) if match else None


def ask_clock() -> tuple[int, int]:
    """(the clock's state, its largest error in microseconds) by adjtimex(2), which changes nothing here; state -1: the
    kernel does not tell.
    """
    timex = (ctypes.c_long * TIMEX_WORDS)()
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)))
    except (AttributeError, OSError):
        return NO_SUCH_CALL, 0
    return state, timex[MAX_ERROR_AT]


def check_own_clock(ask: Callable[[], tuple[int, int]] = ask_clock) -> CheckLine:
    """Whether this machine's clock follows another. Certificates end, tokens and logs are read by it; leases are not
    (CLOCK_BOOTTIME).
    """
    state, error_us = ask()
    if state == NO_SUCH_CALL:
        return skipped("clock", "the kernel does not tell whether it is synchronised")
    if state == TIME_ERROR:
        text = "this machine's clock is not synchronised, says the kernel: certificates and logs go by it"
        return warned("clock", text, "run chrony or systemd-timesyncd; see `chronyc tracking`")
    return passed("clock", f"synchronised, at most {error_us / 1000:g} ms off")
