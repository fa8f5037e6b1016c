"""Fallback: what the supervisor does for clients and operators while no other process does.

Owns the pipes and an admin server. Must not know why nobody else serves. Invariants:
* pipes are open only while `open_pipes` was called last, but for those of bypassed listeners.
* at the admin port it answers /livez, /readyz, /metrics and /switches between `answer_admin` and `leave_admin`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from proxy.admin.access import METRICS, AdminAccess
from proxy.admin.http import PROMETHEUS_TEXT, AdminServer, HttpResponse, build_probes
from proxy.build_info import find_commit
from proxy.supervisor.broker_probe import BrokerProbe
from proxy.supervisor.figures import FALLBACK, LABELS, PIPES_REFUSED, PIPES_TOTAL, WORKERS, Figures
from proxy.supervisor.pipes import Pipes
from proxy.supervisor.switching import SwitchKeeper
from proxy.switches.bypass import find_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.config.model import Config
    from proxy.sockets import Sockets

log = logging.getLogger("forebay.supervisor")


class Fallback:
    """Pipes and admin server over the supervisor's sockets, which the caller closes. `switches`: its part in them."""

    def __init__(
        self,
        config: Config,
        sockets: Sockets,
        figures: Figures,
        version: str,
        find_config: Callable[[], Config],
    ) -> None:
        """`find_config` returns the configuration of the next process."""
        self._sockets = sockets
        self._figures = figures
        self._version = version
        self._pipes = Pipes(config, sockets.listeners, figures)
        self._probe = BrokerProbe(config)
        self.switches = SwitchKeeper(config, self._pipes, figures, find_config)
        self.is_stopping = False
        """Whether the supervisor is stopping: nobody is asked in any more."""
        routes = {
            **build_probes(self.check_readiness),
            METRICS: lambda: HttpResponse(self.render_metrics(), PROMETHEUS_TEXT),
            **self.switches.access.routes,
        }
        self._admin = AdminServer(
            routes,
            actions=self.switches.access.actions,
            max_connections=config.admin.max_connections,
            request_timeout_s=config.admin.request_timeout_s,
            access=AdminAccess(config.admin).check,
            keeps_alive=False,
        )

    @property
    def is_open(self) -> bool:
        """Whether clients are piped."""
        return self._pipes.is_open

    def check_readiness(self) -> tuple[bool, list[str]]:
        """Whether clients should connect although nobody else answers here, and the reasons if not: they should while
        a worker accepts (the keeper is missing), or all listeners are piped.
        """
        if self.is_stopping:
            return False, ["stopping"]
        if self._figures[WORKERS,]:
            return True, []
        if not self._pipes.is_open:
            return False, ["no worker is ready yet"]
        problems = self._pipes.list_problems()
        if self._probe.problem and self._probe.problem not in problems:
            problems.append(self._probe.problem)
        return not problems, problems

    def render_metrics(self) -> bytes:
        """What `/metrics` answers meanwhile, in Prometheus' text format."""
        pipes = self._pipes
        values = {
            "forebay_ready": int(self.check_readiness()[0]),
            "forebay_active_connections": len(pipes),
            "forebay_connections_total": self._figures[PIPES_TOTAL,],
            "forebay_connection_errors_total": self._figures[PIPES_REFUSED,],
        }
        lines = [f"{name} {value}" for name, value in values.items()]
        build = f'version="{self._version}",commit_id="{find_commit()}"'
        lines.append(f"forebay_build_info{{{build}}} 1")
        for (name, *labeled), number in self._figures.read():
            labels = f'{{{LABELS[name]}="{labeled[0]}"}}' if labeled else ""
            lines.append(f"{name}{labels} {number}")
        lines += self.switches.list_lines()
        return "".join(f"{line}\n" for line in lines).encode()

    async def answer_admin(self) -> None:
        """Answer at the admin port, unless stopping."""
        if not self._admin.is_serving and not self.is_stopping:
            await self._admin.start([one.dup() for one in self._sockets.admin])

    def leave_admin(self) -> None:
        """Accept nobody at the admin port: another process does."""
        self._admin.stop_accepting()

    def open_pipes(self, reason: str) -> None:
        """Pipe clients to the broker."""
        if not self._pipes.is_open:
            log.error("clients are piped to the broker, without cache", extra={"reason": reason})
            self._pipes.open()
            self._figures[FALLBACK,] = 1
            self._probe.start()

    def close_pipes(self) -> None:
        """Leave clients to a worker, which accepts now."""
        if self._pipes.is_open:
            log.warning("a worker runs again: clients are served by it")
            self._pipes.close()
            self._figures[FALLBACK,] = 0
            self._probe.stop()

    def stop_pipes(self) -> None:
        """Pipe nobody any more, and drain all pipes."""
        self._pipes.stop()

    async def finish_pipes(self) -> None:
        """Return once all pipes have ended, in `shutdown.gracePeriod` at most."""
        await self._pipes.finish()

    async def close(self) -> None:
        """Call last."""
        self._probe.stop()
        self.switches.close()
        await self._pipes.abort()
        await self._admin.close()


def tell_unpiped(config: Config) -> None:
    """Log which listeners' clients cannot be piped, and what happens to them instead."""
    for listener in config.listeners:
        if obstacle := find_obstacle(listener):
            log.warning(
                "while no worker can run, clients of listener %s are closed and try again: %s",
                listener.name,
                obstacle,
                extra={"listener": listener.name},
            )
