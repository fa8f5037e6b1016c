"""Handover: all that a worker is given by the supervisor, in a memory file that it inherits.

Owns the file's format. Must not know what either process does with it. Invariants: the configuration
is read and checked once, by the supervisor; both processes are of one build.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.config.model import Config
from proxy.sockets import Sockets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST_BYTES = 16 << 20


class NoHandover(Exception):
    """The descriptor is none of a handover."""


@dataclass(frozen=True, slots=True)
class Handover:
    """`heartbeat`: descriptor of the pipe to the supervisor. `owner`: the supervisor's process id,
    the same for each of its workers. `restarts`: workers replaced so far, by reason.
    """

    config: Config
    sockets: Sockets
    heartbeat: int
    owner: int
    restarts: Mapping[str, int]


def write_handover(handover: Handover) -> int:
    """A descriptor to be inherited, from which `read_handover` reads. The caller closes it."""
    content = {
        "config": handover.config.model_dump(mode="json", by_alias=True),
        "listeners": [list(map(socket.socket.fileno, one)) for one in handover.sockets.listeners],
        "admin": list(map(socket.socket.fileno, handover.sockets.admin)),
        "heartbeat": handover.heartbeat,
        "owner": handover.owner,
        "restarts": dict(handover.restarts),
    }
    fd = os.memfd_create("forebay-handover", 0)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(content).encode())
    return fd


def read_handover(fd: int) -> Handover:
    """What the supervisor has written; closes `fd`, and keeps its descriptors from further
    processes. Raises NoHandover.
    """
    try:
        content = json.loads(os.pread(fd, LARGEST_BYTES, 0))
        os.close(fd)
        os.set_inheritable(content["heartbeat"], False)
        sockets = Sockets(tuple(map(_open, content["listeners"])), _open(content["admin"]))
        return Handover(
            Config.model_validate(content["config"], by_alias=True, by_name=False),
            sockets,
            content["heartbeat"],
            content["owner"],
            content["restarts"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoHandover(f"descriptor {fd} holds no configuration: {error}") from error


def _open(descriptors: Sequence[int]) -> tuple[socket.socket, ...]:
    sockets = tuple(socket.socket(fileno=fd) for fd in descriptors)
    for one in sockets:
        one.set_inheritable(False)
        one.setblocking(False)
    return sockets
