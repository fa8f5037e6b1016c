"""The Fetches that wait, by connection, and the sessions whose partitions are kept sorted for the next Fetch.

Owns both lists and the bound on waiting Fetches. It must not know why a Fetch waits (fetch/delayed_fetch.py), or how
news arrives. Invariant: a connection without waiting Fetches has no entry.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.accounting.counters import Counters
    from proxy.fetch.delayed_fetch import DelayedFetch
    from proxy.fetch.sessions.idle_partitions import IdlePartitions
    from proxy.net.client_connection import ClientConnection
    from proxy.net.response_order import Place
    from proxy.partitions.table import Partition

REST_S = 10.0
"""For so long after a session's last Fetch its partitions are kept sorted (fetch/sessions/idle_partitions.py)."""


class Purgatory:
    """At most `limit` Fetches wait at a time."""

    def __init__(self, counters: Counters, limit: int) -> None:
        self._counters = counters
        self._limit = limit
        self._waiting: dict[ClientConnection, dict[DelayedFetch, None]] = defaultdict(dict)
        self.idle_partitions: dict[ClientConnection, dict[IdlePartitions, None]] = defaultdict(dict)

    def park(self, link: ClientConnection, fetch: DelayedFetch) -> bool:
        """Let a Fetch wait. False at the bound."""
        if self._counters.parked_fetches >= self._limit:
            return False
        self._waiting[link][fetch] = None
        self._counters.parked_fetches += 1
        return True

    def unpark(self, link: ClientConnection, fetch: DelayedFetch) -> None:
        """A Fetch waits no longer."""
        waiting = self._waiting.get(link)
        if waiting is None or waiting.pop(fetch, fetch) is fetch:
            return
        self._counters.parked_fetches -= 1
        if not waiting:
            del self._waiting[link]

    def leave(self, link: ClientConnection) -> None:
        """Answer all that waits on `link` with what there is."""
        for fetch in list(self._waiting.get(link, ())):
            fetch.leave()

    def leave_one(self, link: ClientConnection, place: Place) -> None:
        """Answer the Fetch that waits in this place, if one does, with what there is."""
        for fetch in self._waiting.get(link, ()):
            if fetch.record.reply is place:
                fetch.leave()
                return

    def drop(self, link: ClientConnection) -> None:
        """The client of `link` is gone."""
        for fetch in list(self._waiting.get(link, ())):
            fetch.drop()
        for one in list(self.idle_partitions.get(link, ())):
            one.close()

    def tick(self, now: float) -> None:
        """Timed: let go of sessions that nobody polls."""
        for idle_partitions in list(self.idle_partitions.values()):
            for unused in [
                one for one in idle_partitions if one.fetch is None and now - one.used_at > REST_S
            ]:
                unused.close()

    def list_partitions(self, link: ClientConnection) -> list[Partition]:
        """The partitions that the Fetches of one client wait on, each once."""
        waiting = self._waiting.get(link, ())
        return list(dict.fromkeys(p for fetch in waiting for p in fetch.held))
