"""Spawner: starts the processes of all posts, each with what its role needs.

Owns the running processes, the spare one, and which descriptors each is given. Must not know when a process is
started, nor why.
Invariants:
* a worker is given neither the arena nor the admin port, the keeper no sockets of clients.
* no two processes that run have one worker's number.
* there is at most one spare process, of the build that was on disk at its start; a successor is none of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from proxy.config.model import MOST_WORKERS
from proxy.sockets import Sockets
from proxy.supervisor.figures import ABSENT, CONNECTIONS, STARVATIONS
from proxy.supervisor.handover import ConfigInForce, Handover
from proxy.supervisor.launch import Spare, launch
from proxy.supervisor.role import Role
from proxy.supervisor.worker_process import WorkerProcess, reap_orphans

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

    from blockcache.arena_file import ArenaMemory
    from proxy.config.model import Config
    from proxy.supervisor.figures import Figures
    from proxy.switches.store import SwitchStore

log = logging.getLogger("forebay.supervisor")

STOP_MARGIN_S = 10.0
"""Time beyond `shutdown.gracePeriod` for a process to write its log and free its memory."""


class Spawner:
    """All processes that run. `sockets`, `arena`, `figures` and `keeper` are the caller's to close."""

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        arguments: Sequence[str],
        sockets: Sockets,
        arena: ArenaMemory | None,
        figures: Figures,
        keeper: socket.socket | None,
        switches: SwitchStore | None = None,
        on_reloaded: Callable[[], object] = lambda: None,
    ) -> None:
        """`command` starts a worker. `keeper`: the keeper's listening socket, where there is one. `on_reloaded`:
        called when a keeper has put another configuration in force.
        """
        self.config = config
        self.in_force = ConfigInForce()
        self._command = command
        self._arguments = arguments
        self._sockets = sockets
        self._arena = arena
        self._figures = figures
        self._keeper = keeper
        self._switches = switches
        self._on_reloaded = on_reloaded
        self._spare: Spare | None = None
        self.running: dict[WorkerProcess, tuple[Role, int]] = {}
        """Role and number of each process."""

    def find_config(self) -> Config:
        """The configuration of the next process: as it was read last."""
        return self.in_force.read() or self.config

    @property
    def patience_s(self) -> float:
        """How long a process may take to drain and end."""
        return self.config.shutdown.grace_period_s + STOP_MARGIN_S

    @property
    def heartbeat_timeout_s(self) -> float:
        """Silence after which a process is killed."""
        return self.config.supervisor.heartbeat_timeout_s

    def start(
        self, role: Role, number: int, on_ready: Callable[[], object], is_successor: bool = False
    ) -> WorkerProcess:
        """Start a process with the configuration in force. Raises OSError."""
        self.config = self.find_config()

        def launch_with(heartbeat: int) -> tuple[int, int]:
            handover = self._build_handover(heartbeat, role, number, is_successor)
            spare = None if is_successor else self._take_spare()
            return (spare and spare.give(handover)) or launch(self._command, handover)

        process = WorkerProcess(
            launch_with,
            self.config,
            on_ready,
            self._note_starved,
            on_reloaded=self._on_reloaded,
        )
        self.running[process] = role, number
        process.ended.add_done_callback(lambda _end: self._forget(process))
        return process

    def prepare_spare(self) -> None:
        """Have a process ready that the next start takes: it has begun half a second of processor time earlier."""
        if self._spare is None:
            try:
                self._spare = Spare(self._command)
            except OSError as error:
                log.warning("cannot start a spare process: %s", error)

    def drop_spare(self) -> None:
        """End the spare process: the next start is of the build that is on disk."""
        if (spare := self._take_spare()) is not None:
            spare.drop()

    def _take_spare(self) -> Spare | None:
        spare, self._spare = self._spare, None
        return spare

    def _build_handover(
        self, heartbeat: int, role: Role, number: int, is_successor: bool
    ) -> Handover:
        return Handover(
            self.config,
            self.in_force,
            self._arguments,
            share_sockets(self._sockets, role),
            heartbeat,
            self._arena if role.has_arena else None,
            self._figures,
            is_successor,
            role,
            number,
            self._share_keeper(role),
            self._switches,
        )

    def _share_keeper(self, role: Role) -> socket.socket | bytes | None:
        if self._keeper is None or role is Role.KEEPER:
            return self._keeper
        address = self._keeper.getsockname()
        assert isinstance(address, bytes)
        return address

    def list_running(self, role: Role) -> list[WorkerProcess]:
        """The processes of a role, retired ones and successors included."""
        return [process for process, (its_role, _) in self.running.items() if its_role is role]

    def list_free_numbers(self, taken: Iterable[int]) -> list[int]:
        """Numbers of workers that no process has, nor any of `taken`, in order."""
        used = {number for _, number in self.running.values()} | set(taken)
        return [number for number in range(1, MOST_WORKERS + 1) if number not in used]

    def reap_orphans(self) -> None:
        """Reap ended children that are none of `running`."""
        reap_orphans([process.pid for process in self.running])

    def _forget(self, process: WorkerProcess) -> None:
        role, number = self.running.pop(process)
        if role is Role.WORKER:
            self._figures[CONNECTIONS, str(number)] = ABSENT
        self.reap_orphans()

    def _note_starved(self) -> None:
        self._figures[STARVATIONS,] += 1
        log.warning("a worker is silent for want of a processor: it is not killed yet")


def share_sockets(sockets: Sockets, role: Role) -> Sockets:
    """Those for a process of that role; without any, each listener stays in its place."""
    listeners = sockets.listeners if role.has_clients else tuple(() for _ in sockets.listeners)
    return Sockets(listeners, sockets.admin if role.has_arena else ())
