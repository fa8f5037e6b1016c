"""Wake-ups of delayed Fetches, gathered while a response of the broker is processed.

Owns the batch. Must not know what waits, beyond a `WaitingFetch`. Invariant: each waiter of a batch
evaluates once, after all of the response was learned.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class WaitingFetch(Protocol):
    """A delayed Fetch, as those see it that it waits for."""

    def evaluate_again(self) -> None:
        """Evaluate again: something that it waits for has changed. No effect once it is done."""


class WakeupBatch:
    """Sessions with a change and a delayed Fetch that must evaluate again.

    Outside a batch, each does so in the event loop's next turn. While a response is processed, all
    do so right after it, so that no Fetch waits for the loop's other work.
    """

    __slots__ = ("_gathered",)

    def __init__(self) -> None:
        self._gathered: list[WaitingFetch] | None = None

    def gather(self) -> None:
        """Begin a batch: a response is being processed. `look` must follow in the same callback of
        the event loop.
        """
        self._gathered = []

    def take(self, waiter: WaitingFetch) -> None:
        """Add a session that has a change and a delayed Fetch."""
        if self._gathered is None:
            asyncio.get_running_loop().call_soon(waiter.evaluate_again)
        else:
            self._gathered.append(waiter)

    def look(self, attempt: Callable[[Callable[[], object], str], object]) -> None:
        """End the batch: evaluate the delayed Fetches again.

        `attempt` runs each evaluation, and keeps its exception from the others.
        """
        gathered, self._gathered = self._gathered or (), None
        for waiter in gathered:
            attempt(waiter.evaluate_again, "waking a fetch")
