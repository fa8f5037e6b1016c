"""Switch keeper: the supervisor's part in the switches.

Owns their store, the moments at which a switch widens or ends by itself, and what the supervisor itself does by them:
it pipes the clients of bypassed listeners. Must not know live keys' effects (proxy/switching.py, in the worker).
Invariants:
* a schedule goes on while no worker runs.
* a worker that ends by a fault of its own, or hangs, while a trial is in force ends the trial.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from proxy.admin.switch_routes import SwitchAccess
from proxy.config.live_keys import list_at_start
from proxy.supervisor.figures import BYPASSED
from proxy.switches.bypass import list_piped
from proxy.switches.overlay import explain_override
from proxy.switches.override import SwitchRefused
from proxy.switches.report import list_switch_samples
from proxy.switches.store import SwitchStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.config.model import Config
    from proxy.supervisor.figures import Figures
    from proxy.supervisor.pipes import Pipes
    from proxy.switches.override import Override
    from proxy.switches.state import SwitchState

log = logging.getLogger("forebay.switches")

TICK_S: Final = 0.1
LABELS: Final = {
    "forebay_switches": "switch",
    "forebay_switch_changes_total": "happening",
}
"""The label of each metric that has one."""
read_clock_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class SwitchKeeper:
    """The switches, from `start` to `close`."""

    def __init__(
        self, config: Config, pipes: Pipes, figures: Figures, in_force: Callable[[], Config]
    ) -> None:
        """`in_force`: the configuration of the next worker."""
        self.store = SwitchStore(is_shared=True)
        self.access = SwitchAccess(self.store, read_clock_s, self._explain, self._settle)
        self._config, self._in_force = config, in_force
        self._pipes, self._figures = pipes, figures
        self._version = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Act on the switches from now on."""
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Act on them no more, and forget them."""
        if self._timer is not None:
            self._timer.cancel()
        self.store.close()

    def note_end(self, reason: str) -> None:
        """Note that a worker has ended by a fault: a trial ends with it."""
        state = self._change(lambda state: state.revert(reason))
        if state is not None and state.reverted == reason:
            log.error("the trial of a switch was ended", extra={"reason": reason})

    def list_lines(self) -> list[str]:
        """The switches in Prometheus' text format, one sample a line."""
        lines = []
        for name, labels, value in list_switch_samples(self.store.read(), time.time()):
            label = f'{{{LABELS[name]}="{labels[0]}"}}' if labels else ""
            lines.append(f"{name}{label} {value}")
        return lines

    def _explain(self, override: Override) -> str:
        config = self._in_force()
        return explain_override(config, override, list_at_start(config))

    def _tick(self) -> None:
        try:
            now = read_clock_s()
            if self.store.version and (state := self.store.read()).advance(now) is not state:
                self._change(lambda state: state.advance(now))
            self._settle()
        except Exception:
            log.exception("switches failed; they are looked at again")
        self.start()

    def _change(self, follow: Callable[[SwitchState], SwitchState]) -> SwitchState | None:
        try:
            return self.store.change(follow)
        except SwitchRefused as refusal:  # the lock is held: at the next tick
            log.warning("a switch waits", extra={"reason": f"{refusal}"})
            return None

    def _settle(self) -> None:
        """Pipe the clients of the listeners that are bypassed now."""
        if self.store.version == self._version:
            return
        self._version = self.store.version
        names = list_piped(self._config, self.store.read())
        if names != self._pipes.bypassed:
            fields = {"listeners": " ".join(sorted(names))}
            log.warning("clients of bypassed listeners are piped to the broker", extra=fields)
            self._pipes.bypass(names)
        self._figures[BYPASSED,] = len(names)
