"""Renewal: certificates, authorities and revocation lists of listeners are loaded when their files change.

Owns when it looks, and the watched files of all listeners. Must not know how TLS is set up: it loads by the
functions of a reload. Invariants:
* files are looked at each LOOK_EVERY_S, and read beside the event loop.
* no renewal runs beside a reload: both hold one lock, and use the configuration in force.
* one side's broken file keeps nothing else from being loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from proxy.net.listener import load_dials, load_listener_context
from proxy.tls_files import TlsSide, WatchedFiles, explain_ended, list_files, read_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proxy.broker import Broker
    from proxy.config.model import Config, ListenerConfig
    from proxy.net.listener import AnyListener
    from proxy.tls_files import FileKind, FileStates

log = logging.getLogger("forebay.tls")

LOOK_EVERY_S: Final = 3.0


class RenewedParts(Protocol):
    """The parts of the process that a renewal changes (`proxy.app.Forebay`)."""

    @property
    def broker(self) -> Broker: ...
    @property
    def listeners(self) -> Sequence[AnyListener]: ...


def list_side_files(config: ListenerConfig, side: TlsSide) -> dict[FileKind, str]:
    """The paths of a listener's TLS files toward `side`."""
    if side == "client":
        return list_files(config.tls)
    return list_files(config.upstream_tls) if config.upstream_tls.enabled else {}


class Renewal:
    """Watches the files of all listeners. `lock` is held while something is loaded: it is that of reloads."""

    def __init__(self, parts: RenewedParts, lock: asyncio.Lock) -> None:
        self._parts = parts
        self._lock = lock
        self._looked_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        sides: tuple[TlsSide, ...] = ("client", "broker")
        self._watched = {
            (one.name, side): WatchedFiles(
                one.name, side, read_files(list_side_files(one.config, side))
            )
            for one in parts.listeners
            for side in sides
        }
        for each in self._watched.values():
            each.tell_ended(time.time())

    @property
    def watched(self) -> Sequence[WatchedFiles]:
        """All sides with files, for metrics."""
        return [one for one in self._watched.values() if one.in_use.states]

    def tick(self, now: float) -> None:
        """Look at the files if LOOK_EVERY_S have passed, and load those that have changed. `now` is in seconds."""
        if now - self._looked_at < LOOK_EVERY_S or (self._task and not self._task.done()):
            return
        self._looked_at = now
        changed = [
            (one, watched.side)
            for one in self._parts.listeners
            for watched in (self._watched[one.name, "client"], self._watched[one.name, "broker"])
            if watched.look(list_side_files(one.config, watched.side))
        ]
        if changed:
            self._task = asyncio.get_running_loop().create_task(self._load(changed), name="renewal")

    async def stop(self) -> None:
        """Load nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def read_all(self, config: Config) -> dict[tuple[str, TlsSide], FileStates]:
        """The present files of all listeners. May block; for `note_reload`."""
        by_name = {one.name: one for one in config.listeners}
        return {
            (name, side): read_files(list_side_files(by_name[name], side))
            for name, side in self._watched
        }

    def note_reload(self, found: Mapping[tuple[str, TlsSide], FileStates]) -> None:
        """Note that a reload has put in use what `read_all` has found before it."""
        for key, states in found.items():
            self._watched[key].adopt(states)

    async def _load(self, changed: Sequence[tuple[AnyListener, TlsSide]]) -> None:
        async with self._lock:
            for listener, side in changed:
                try:
                    await self._load_side(listener, side)
                except Exception:
                    log.exception("loading TLS files failed")

    async def _load_side(self, listener: AnyListener, side: TlsSide) -> None:
        watched, config = self._watched[listener.name, side], listener.config
        found = await asyncio.to_thread(read_files, list_side_files(config, side))
        reason = explain_ended(found, watched.in_use, time.time())
        if reason:
            watched.refuse(reason)
            return
        try:
            if side == "client":
                context = await asyncio.to_thread(load_listener_context, config)
                if context is not None:
                    listener.set_context(context)
            else:
                limits = self._parts.broker.config.limits
                listener.set_dials(*await asyncio.to_thread(load_dials, config, limits))
        except ValueError as error:
            watched.refuse(str(error))
            return
        watched.adopt(found)
