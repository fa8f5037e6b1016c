"""Handover: all that a worker or keeper is given by the supervisor, in a memory file that it inherits.

Owns the file's format. Must not know what either process does with it. Invariants: the configuration
of the start is read and checked once, by the supervisor. A worker of the same build takes its
objects as they are; one of another build, installed while the supervisor runs, validates it anew.
The supervisor alone writes the file, so that pickled objects are safe in it. A process inherits the
descriptors that its handover names, and no other.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockcache.arena_file import ArenaMemory
from proxy.config import model
from proxy.config.load import Loaded
from proxy.config.model import Config
from proxy.config.yaml_file import ConfigError
from proxy.sockets import Sockets
from proxy.supervisor.figures import Figures
from proxy.supervisor.role import Role
from proxy.switches.store import SwitchStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LARGEST_BYTES = 16 << 20


def find_build(folder: Path) -> list[tuple[str, int, int]]:
    """Name, time of change and size of each of the configuration's sources: what tells one build
    from another.
    """
    found = [(one.name, one.stat()) for one in sorted(folder.glob("*.py"))]
    return [(name, facts.st_mtime_ns, facts.st_size) for name, facts in found]


BUILD = find_build(Path(model.__file__).parent)
"""As it was when this process imported it."""


def _dump(config: Config) -> dict[str, Any]:
    """The configuration as JSON values, by its keys."""
    return config.model_dump(mode="json", by_alias=True)


def _validate(values: Any) -> Config:
    """What `_dump` returned, in any build that has these keys. ValueError: it is none."""
    return Config.model_validate(values, by_alias=True, by_name=False)


class NoHandover(Exception):
    """The descriptor is none of a handover."""


class ConfigInForce:
    """The configuration that is in force, in a memory file which outlives each worker: a worker
    writes it after a reload, of several processes the keeper; the supervisor reads it before the next
    worker.
    """

    __slots__ = ("_is_writable", "fd")

    def __init__(self, fd: int | None = None, is_writable: bool = True) -> None:
        """`fd` None: a new file, without a configuration. `is_writable` False: another process writes it."""
        self.fd = os.memfd_create("forebay-config") if fd is None else fd
        self._is_writable = is_writable

    def write(self, config: Config) -> None:
        """Replace the configuration, unless another process does."""
        if not self._is_writable:
            return
        text = json.dumps(_dump(config)).encode()
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text, 0)

    def close(self) -> None:
        """Forget it here."""
        os.close(self.fd)

    def read(self) -> Config | None:
        """Return what was written last; None if nothing was, or a writer ended within `write`."""
        try:
            content = json.loads(os.pread(self.fd, LARGEST_BYTES, 0))
            return _validate(content)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Handover:
    """`in_force`: where a reload leaves its configuration for later workers. `arguments`: those of
    `forebay serve`, by which the configuration is read again. `heartbeat`: descriptor of the pipe to
    the supervisor. `arena`: memory that outlives each worker; None: no arena of this mode outlives one.
    `figures`: what the supervisor counts. `is_successor`: another worker serves until this one
    accepts clients. `role`, `number`: a worker's is 1 to `MOST_WORKERS`, unique among those that run;
    the others' is 0. `keeper`: how workers reach the keeper: its listening socket, which the keeper alone is
    given, or that one's address for a worker; None: ALONE. A worker has no `arena` and no admin sockets, the
    keeper no sockets of listeners. `switches`: those of the supervisor; None: of a build that has none.
    """

    config: Config
    in_force: ConfigInForce
    arguments: Sequence[str]
    sockets: Sockets
    heartbeat: int
    arena: ArenaMemory | None
    figures: Figures
    is_successor: bool = False
    role: Role = Role.ALONE
    number: int = 0
    keeper: socket.socket | bytes | None = None
    switches: SwitchStore | None = None

    def read_in_force(self) -> Loaded:
        """What a worker loads at a reload: the configuration that the keeper has put in force. Raises ConfigError: the
        next one is being written just now, and will be told of.
        """
        config = self.in_force.read()
        if config is None:
            raise ConfigError(["the keeper is putting another configuration in force"])
        return Loaded(config, {}, (), ())

    def list_descriptors(self) -> Iterator[int]:
        """All that the process inherits."""
        for one in (*(one for each in self.sockets.listeners for one in each), *self.sockets.admin):
            yield one.fileno()
        yield from (self.in_force.fd, self.heartbeat, self.figures.fd)
        if self.arena is not None:
            yield self.arena.fd
        if isinstance(self.keeper, socket.socket):
            yield self.keeper.fileno()
        if self.switches is not None:
            yield self.switches.fd


def write_handover(handover: Handover) -> int:
    """A descriptor to be inherited, from which `read_handover` reads. The caller closes it."""
    keeper = handover.keeper
    content = {
        "build": BUILD,
        "pickled": pickle.dumps(handover.config),
        "config": _dump(handover.config),
        "inForce": handover.in_force.fd,
        "arguments": list(handover.arguments),
        "listeners": [list(map(socket.socket.fileno, one)) for one in handover.sockets.listeners],
        "admin": list(map(socket.socket.fileno, handover.sockets.admin)),
        "heartbeat": handover.heartbeat,
        "arena": None if handover.arena is None else (handover.arena.fd, handover.arena.path),
        "figures": (handover.figures.fd, handover.figures.names),
        "isSuccessor": handover.is_successor,
        "role": handover.role.value,
        "number": handover.number,
        "keeper": keeper.fileno() if isinstance(keeper, socket.socket) else keeper,
        "switches": None if handover.switches is None else handover.switches.fd,
    }
    fd = os.memfd_create("forebay-handover", 0)
    with os.fdopen(os.dup(fd), "wb") as file:
        pickle.dump(content, file)
    return fd


def _read_config(content: Mapping[str, Any]) -> Config:
    if content["build"] == BUILD:
        config: Config = pickle.loads(content["pickled"])
        return config
    return _validate(content["config"])


def read_handover(fd: int, received: Mapping[int, int] | None = None) -> Handover:
    """What the supervisor has written; closes `fd`, and keeps its descriptors from further
    processes. `received`: the process's own number of each descriptor of the supervisor's; None: they are
    inherited, and have the same. Raises NoHandover.
    """
    try:
        content = pickle.loads(os.pread(fd, LARGEST_BYTES, 0))
        os.close(fd)
        if received is not None:
            _renumber(content, received)
        figures = Figures(*content["figures"])
        for inherited in (content["heartbeat"], content["inForce"], figures.fd):
            os.set_inheritable(inherited, False)
        sockets = Sockets(tuple(map(_open, content["listeners"])), _open(content["admin"]))
        role = Role(content.get("role", Role.ALONE.value))  # a supervisor of a build without roles
        return Handover(
            _read_config(content),
            ConfigInForce(content["inForce"], is_writable=role is not Role.WORKER),
            content["arguments"],
            sockets,
            content["heartbeat"],
            _open_arena(content["arena"]),
            figures,
            content["isSuccessor"],
            role,
            content.get("number", 0),
            _open_keeper(content.get("keeper")),
            _open_switches(content.get("switches")),
        )
    except Exception as error:  # pickle raises of any kind
        raise NoHandover(f"descriptor {fd} holds no configuration: {error}") from error


def _renumber(content: dict[str, Any], received: Mapping[int, int]) -> None:
    """Put the process's own descriptors in place of the supervisor's."""
    for name in ("inForce", "heartbeat", "switches", "keeper"):
        if isinstance(content[name], int):
            content[name] = received[content[name]]
    for name in ("arena", "figures"):
        if content[name] is not None:
            fd, *more = content[name]
            content[name] = received[fd], *more
    content["admin"] = [received[fd] for fd in content["admin"]]
    content["listeners"] = [[received[fd] for fd in one] for one in content["listeners"]]


def _open_switches(fd: int | None) -> SwitchStore | None:
    if fd is None:
        return None
    os.set_inheritable(fd, False)
    return SwitchStore(fd, is_shared=True)


def _open_arena(given: tuple[int, Path | None] | None) -> ArenaMemory | None:
    if given is None:
        return None
    os.set_inheritable(given[0], False)
    return ArenaMemory(*given)


def _open_keeper(given: int | bytes | None) -> socket.socket | bytes | None:
    return _open([given])[0] if isinstance(given, int) else given


def _open(descriptors: Sequence[int]) -> tuple[socket.socket, ...]:
    sockets = tuple(socket.socket(fileno=fd) for fd in descriptors)
    for one in sockets:
        one.set_inheritable(False)
        one.setblocking(False)
    return sockets
