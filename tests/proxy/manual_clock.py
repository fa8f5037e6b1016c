"""A clock that a test moves, with the timers of an event loop.

Owns time in seconds and the timers that are due. It must not know what a timer does. Invariant: timers run in the order
of their times; nothing sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


@dataclass(eq=False)
class ManualTimer:
    """A call at time `at`; `cancel` may come before or after it."""

    at: float
    call: Callable[[], object]
    timers: list[ManualTimer]

    def cancel(self) -> None:
        if self in self.timers:
            self.timers.remove(self)


class ManualClock:
    """Stands for the running loop: `call_later` as asyncio has it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[ManualTimer] = []

    def replace_loop(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        """The product's `module` takes this clock for the running loop."""
        asyncio = SimpleNamespace(get_running_loop=lambda: self)
        monkeypatch.setattr(f"{module}.asyncio", asyncio)

    def call_later(
        self, delay_s: float, action: Callable[..., object], *args: object
    ) -> ManualTimer:
        timer = ManualTimer(self.now + delay_s, lambda: action(*args), self.timers)
        self.timers.append(timer)
        return timer

    def advance(self, delay_s: float) -> None:
        """Move on by `delay_s`, and run what becomes due at its time."""
        end = self.now + delay_s
        while due := [timer for timer in self.timers if timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            timer.cancel()
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = end
