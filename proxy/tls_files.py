"""TLS files: those of one side of a connection, which are loaded together and watched.

Owns what was loaded, when that ends, and what could not be loaded. Must not know what a load makes of the
files, nor when somebody looks. Invariants:
* a file is the same while time of change, inode, device and size are, links followed: Kubernetes changes a link.
* the state of the files is taken before they are read, so that a change meanwhile is seen at the next look.
* a failure is told once, until it is another one or a load succeeds; it is tried again at each look.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from proxy.certificates import LARGEST_PEM_BYTES, find_authority_end, find_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proxy.config.section import Section

log = logging.getLogger("forebay.tls")

TlsSide = Literal["client", "broker", "admin"]
"""Whom the connections lead to."""
FileKind = Literal["certificate", "authority", "crl", "key", "token"]
KINDS: Final[dict[str, FileKind]] = {
    "certificate_file": "certificate",
    "key_file": "key",
    "client_ca_file": "authority",
    "ca_file": "authority",
    "crl_file": "crl",
}
"""What the file of each key holds."""
FileState = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class FileStates:
    """The files of one side at a moment. `ends`: Unix time, in seconds, when what they hold ends, by kind."""

    states: tuple[tuple[str, FileState], ...]
    ends: Mapping[FileKind, float]


@dataclass(slots=True)
class LoadCounts:
    """Loads of a side's files since the start of the process, the first one not counted."""

    loaded: int = 0
    refused: int = 0


@dataclass(slots=True)
class WatchedFiles:
    """The files of one side of `listener` ("": the admin port)."""

    listener: str
    side: TlsSide
    in_use: FileStates
    counts: LoadCounts = field(default_factory=LoadCounts)
    failure: str = ""
    """Why the present files could not be loaded; "" if those in use are the present ones."""

    def look(self, paths: Mapping[FileKind, str]) -> bool:
        """Whether the files are to be loaded: other ones than those in use, or ones that could not be loaded."""
        return bool(self.failure) or find_states(paths) != self.in_use.states

    def adopt(self, found: FileStates) -> None:
        """Note that `found` is in use."""
        is_new = found.states != self.in_use.states
        self.in_use = found
        if is_new or self.failure:
            self.counts.loaded += 1
            log.info("the TLS files were loaded again", extra=self._fields())
        self.failure = ""

    def refuse(self, reason: str) -> None:
        """Note that the present files cannot be loaded."""
        self.counts.refused += 1
        if reason != self.failure:
            self.failure = reason
            log.error(
                "the TLS files cannot be loaded, the former ones stay in use: %s; put a certificate and its key "
                "there, and both are loaded by themselves",
                reason,
                extra=self._fields(),
            )

    def tell_ended(self, now_s: float) -> None:
        """Log which files hold what has ended."""
        for kind, end in self.in_use.ends.items():
            if end <= now_s:
                log.warning(
                    "the %s has ended: the other side refuses it, or is refused",
                    kind,
                    extra=self._fields(),
                )

    def _fields(self) -> dict[str, object]:
        return {"listener": self.listener, "side": self.side}


def list_files(section: Section | None) -> dict[FileKind, str]:
    """The paths of a section's TLS files, by what they hold."""
    if section is None:
        return {}
    values = {key: getattr(section, key, None) for key in KINDS}
    return {KINDS[key]: path for key, path in values.items() if path}


def find_states(paths: Mapping[FileKind, str]) -> tuple[tuple[str, FileState], ...]:
    """Each path and its file's state, None if there is no file."""
    return tuple((path, _find_state(path)) for path in paths.values())


def _find_state(path: str) -> FileState:
    try:
        found = os.stat(path)  # noqa: PTH116 - ten thousand times a day, and Path.stat does the same
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size


def read_files(paths: Mapping[FileKind, str]) -> FileStates:
    """The present files. One that cannot be read has no end: loading it fails, and says why."""
    states, ends, now_s = find_states(paths), {}, time.time()
    for kind, path in paths.items():
        if kind in ("key", "token"):
            continue
        try:
            with Path(path).open("rb") as file:
                pem = file.read(LARGEST_PEM_BYTES)
        except OSError:
            continue
        end = find_authority_end(pem, now_s) if kind == "authority" else find_end(pem)
        if end is not None:
            ends[kind] = end
    return FileStates(states, ends)


def explain_ended(found: FileStates, in_use: FileStates, now_s: float) -> str:
    """Why a certificate or list must not take the place of the one in use: it has ended, and that one has not."""
    for kind, end in found.ends.items():
        if end <= now_s < in_use.ends.get(kind, now_s):
            return f"the {kind} has ended already"
    return ""
