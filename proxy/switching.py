"""Switcher: the worker's part in the switches. It puts the overrides in force that the store holds.

Owns when that happens, the guard of a trial, and drops of topics. Must not know how a key is applied (proxy/reload.py)
or who has thrown a switch. Invariants:
* a switch is an override over live keys, applied by the same functions as a reload: there is no second path through
  the data path. `bypass` alone has no key: listeners finish their clients, which are then piped, or relayed unread.
* a change of the store is seen within a tick, whoever has made it.
* a worker that is born begins with the overrides in force, before it accepts a client.
* a fault of Forebay's own, or bytes that differ from the broker's, end a trial.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from proxy.switches.bypass import list_bypassed, list_piped
from proxy.switches.overlay import explain_override
from proxy.switches.override import SwitchRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.broker import Broker
    from proxy.net.listener import AnyListener
    from proxy.reload import Reloader
    from proxy.switches.override import Override
    from proxy.switches.state import SwitchState
    from proxy.switches.store import SwitchStore

log = logging.getLogger("forebay.switches")

DROPPED = "dropped"
"""Reason of an invalidation: somebody asked for it."""


class Switched(Protocol):
    """The parts of the process that switches change (`proxy.app.Forebay`)."""

    @property
    def broker(self) -> Broker: ...
    @property
    def listeners(self) -> Sequence[AnyListener]: ...
    @property
    def reloader(self) -> Reloader: ...


class Switcher:
    """Follows the store. Call `begin` before clients are accepted, then `tick`."""

    def __init__(self, parts: Switched, store: SwitchStore) -> None:
        self._parts = parts
        self._store = store
        self._version = -1
        self._dropped = 0
        self._errors: dict[str, int] | None = None
        """What was counted of each kind of error when the trial began here; None: there is none."""

    def begin(self) -> None:
        """Put in force what is switched now. Drops were done by the worker before."""
        self._dropped = self._store.read().dropped
        self.settle()

    def tick(self, _now: float) -> None:
        """Timed: put in force what has changed, and end a trial that harms."""
        self.settle()
        if self._errors is not None and (reason := self._find_harm(self._errors)):
            self._change(lambda state: state.revert(reason))
            log.error("the trial of a switch was ended", extra={"reason": reason})
            self.settle()

    def explain(self, override: Override) -> str:
        """Why this process cannot have an override; "" if it can."""
        reloader = self._parts.reloader
        return explain_override(reloader.base, override, reloader.at_start)

    def refuse_drop(self) -> str:
        """Why no topic can be dropped now; "" if one can."""
        if self._parts.broker.cache.is_pending:
            return "what an earlier process left is still looked at: try again in some seconds"
        return ""

    def settle(self) -> None:
        """Put in force what the store holds, if it has changed."""
        version = self._store.version
        if version == self._version:
            return
        self._version, state = version, self._store.read()
        changes = self._parts.reloader.put_in_force()
        self._bypass(state)
        for pattern in state.find_drops(self._dropped):
            self._drop(pattern)
        self._dropped = state.dropped
        if state.trial is None:
            self._errors = None
        elif self._errors is None:
            self._errors = self._count_errors()
        if changes:
            keys = " ".join(f"{one.key}={one.new}" for one in changes)
            log.warning("switches are in force", extra={"changed": keys})

    def _bypass(self, state: SwitchState) -> None:
        config = self._parts.reloader.base
        bypassed = list_bypassed(config, state)
        piped = list_piped(config, state) if self._store.is_shared else frozenset()
        for listener in self._parts.listeners:
            listener.bypass(listener.name in bypassed, listener.name in piped)

    def _drop(self, pattern: str) -> None:
        """Drop all that is stored of the topics of a pattern. What an earlier process left and nobody has asked for yet
        may belong to any topic: it goes, too.
        """
        broker = self._parts.broker
        dropped = broker.partitions.drop_unclaimed()
        for partition in list(broker.partitions):
            if fnmatchcase(partition.topic.name or "", pattern):
                broker.invalidate(partition, 0, DROPPED)
                dropped += 1
        log.warning("topics were dropped", extra={"topics": pattern, "partitions": dropped})

    # -- the guard of a trial ---------------------------------------------------------------------

    def _count_errors(self) -> dict[str, int]:
        broker = self._parts.broker
        return {
            "bytes from memory differ from the broker's": broker.verifier.verdicts["mismatch"],
            "an error of Forebay's own": broker.counters.faults.internal_errors,
        }

    def _find_harm(self, before: dict[str, int]) -> str:
        return next((name for name, n in self._count_errors().items() if n > before[name]), "")

    def _change(self, follow: Callable[[SwitchState], SwitchState]) -> None:
        try:
            self._store.change(follow)
        except SwitchRefused as refusal:  # the lock is held: at the next tick
            log.warning("a switch waits", extra={"reason": f"{refusal}"})
