"""Purgatory: the delayed Fetches of each connection, and the idle partitions of its fetch sessions.

Owns both lists and the limit on delayed Fetches. Must not know why a Fetch waits
(fetch/delayed_fetch.py), or how changes are detected. Invariant: a connection without delayed
Fetches has no entry.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from proxy.net.client_connection import AnyLink
    from proxy.net.response_order import Place
    from proxy.partitions.table import Partition

REST_S = 10.0
"""Seconds after a session's last Fetch during which its clean partitions are remembered
(fetch/sessions/idle_partitions.py).
"""


class Delayed(Protocol):
    """A delayed Fetch."""

    @property
    def place(self) -> Place:
        """Its place in the response order."""

    @property
    def held(self) -> list[Partition]:
        """The partitions that it waits on."""

    def leave(self) -> None:
        """Answer now, with the bytes that are readable."""

    def drop(self) -> None:
        """End without an answer: the client has disconnected."""

    def evaluate_again(self) -> None:
        """Evaluate again; no effect once it is done."""


class Idle(Protocol):
    """The idle partitions of one fetch session."""

    @property
    def fetch(self) -> object | None:
        """The session's delayed Fetch, or None."""

    @property
    def used_at(self) -> float:
        """When they were last evaluated, in seconds."""

    def close(self) -> None:
        """Stop tracking them."""


class Purgatory:
    """All delayed Fetches of the process, `parked` of them, at most `limit` at a time."""

    def __init__(self, limit: int) -> None:
        self.parked = 0
        self._limit = limit
        self._waiting: dict[AnyLink, dict[Delayed, None]] = defaultdict(dict)
        self._idle_partitions: dict[AnyLink, dict[Idle, None]] = defaultdict(dict)

    def park(self, link: AnyLink, fetch: Delayed) -> bool:
        """Add a delayed Fetch. Return False, and do nothing, if the limit is reached."""
        if self.parked >= self._limit:
            return False
        self._waiting[link][fetch] = None
        self.parked += 1
        return True

    def set_limit(self, limit: int) -> None:
        """Take another limit. Delayed Fetches beyond it keep waiting; no more are added."""
        self._limit = limit

    def unpark(self, link: AnyLink, fetch: Delayed) -> None:
        """Remove a delayed Fetch; no effect if it is not listed."""
        waiting = self._waiting.get(link)
        if waiting is None or waiting.pop(fetch, fetch) is fetch:
            return
        self.parked -= 1
        if not waiting:
            del self._waiting[link]

    def leave(self, link: AnyLink) -> None:
        """Answer every delayed Fetch of `link` with the bytes that are readable now."""
        for fetch in list(self._waiting.get(link, ())):
            fetch.leave()

    def evaluate_all(self) -> None:
        """Forget all idle partitions and have every delayed Fetch evaluate all of its partitions: what memory
        serves has changed.
        """
        for tracked in list(self._idle_partitions.values()):
            for one in list(tracked):
                one.close()
        for waiting in list(self._waiting.values()):
            for fetch in list(waiting):
                fetch.evaluate_again()

    def leave_one(self, link: AnyLink, place: Place) -> None:
        """Answer the delayed Fetch that holds `place` in the response order, if there is one, with
        the bytes readable now.
        """
        for fetch in self._waiting.get(link, ()):
            if fetch.place is place:
                fetch.leave()
                return

    def drop(self, link: AnyLink) -> None:
        """Drop the delayed Fetches and idle partitions of `link`: its client has disconnected."""
        for fetch in list(self._waiting.get(link, ())):
            fetch.drop()
        for one in list(self._idle_partitions.get(link, ())):
            one.close()

    def track(self, link: AnyLink, idle_partitions: Idle) -> None:
        """Close these idle partitions of `link` when its client disconnects, or after REST_S."""
        self._idle_partitions[link][idle_partitions] = None

    def untrack(self, link: AnyLink, idle_partitions: Idle) -> None:
        """Undo `track`: they are closed."""
        tracked = self._idle_partitions[link]
        tracked.pop(idle_partitions, None)
        if not tracked:
            del self._idle_partitions[link]

    def tick(self, now: float) -> None:
        """Periodic: forget the idle partitions of sessions without a Fetch for REST_S. `now` is in
        seconds.
        """
        for idle_partitions in list(self._idle_partitions.values()):
            for unused in [
                one for one in idle_partitions if one.fetch is None and now - one.used_at > REST_S
            ]:
                unused.close()

    def list_partitions(self, link: AnyLink) -> list[Partition]:
        """Return the partitions that the delayed Fetches of one client wait on, each once."""
        waiting = self._waiting.get(link, ())
        return list(dict.fromkeys(p for fetch in waiting for p in fetch.held))
