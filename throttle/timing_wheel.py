"""A hierarchical timing wheel: very many deadlines, each set, cancelled and reached in O(1).

Owns: wheels of 64 slots, each slot of a wheel as long as the whole wheel below it (Varghese and Lauck 1987,
scheme 7; Kafka's org.apache.kafka.server.util.timer.TimingWheel has the same meaning). Must not know: what
the items are, what time it is beyond the `now_s` it is told. Invariants:
* an item is handed out once, by the first `advance` at or after its moment, never before it, late by less
  than one tick; unless it was cancelled.
* an item moves at most once per wheel; empty slots cost nothing, however long the time between two calls
  (a bit per slot says which are occupied).
* all time is counted in whole ticks since `now_s` of the construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

SLOT_BITS = 6
SLOTS = 1 << SLOT_BITS
WHEELS = 6
"""64 to the power of 6 ticks: 21 years at 10 ms. What lies beyond waits in the last slot and is placed again.
"""
FULL = (1 << SLOTS) - 1
ROUNDING = 1e-6
"""Of a tick: what floating point may lose between two ways to compute the same moment."""


class Timer(Generic[T]):
    """A deadline, as `schedule` gave it. `pending` until it is handed out or cancelled."""

    __slots__ = ("_slot", "_tick", "_wheel", "at_s", "item")

    def __init__(self, at_s: float, item: T, tick: int) -> None:
        self.at_s = at_s
        self.item = item
        self._tick = tick
        self._wheel = self._slot = -1

    @property
    def pending(self) -> bool:
        return self._slot >= 0

    def place(self, wheel: int, slot: int) -> None:
        """It stands in this slot of this wheel; a slot below 0: in none, and is not pending."""
        self._wheel, self._slot = wheel, slot


@dataclass(frozen=True, slots=True)
class WheelStatistics:
    """`steps` counts every placing, removal and visit of a slot: the wheel's whole work."""

    pending: int
    scheduled: int
    cancelled: int
    expired: int
    steps: int


class TimingWheel(Generic[T]):
    """Deadlines by moment. `tick_s` is the precision; `now_s` may be any clock that does not go back."""

    def __init__(self, now_s: float, tick_s: float = 0.01) -> None:
        if not tick_s > 0:
            raise ValueError("a tick is longer than nothing")
        self._origin_s, self._tick_s = now_s, tick_s
        self._tick = 0
        self._slots: list[list[dict[Timer[T], None]]] = [
            [{} for _ in range(SLOTS)] for _ in range(WHEELS)
        ]
        self._occupied = [0] * WHEELS
        self._due: dict[Timer[T], None] = {}
        self._scheduled = self._cancelled = self._expired = self._steps = 0

    def __len__(self) -> int:
        return self._scheduled - self._cancelled - self._expired

    def schedule(self, at_s: float, item: T) -> Timer[T]:
        """Hands `item` out at `at_s`; at the next `advance` where that has passed."""
        timer = Timer(at_s, item, math.ceil((at_s - self._origin_s) / self._tick_s - ROUNDING))
        self._place(timer)
        self._scheduled += 1
        return timer

    def cancel(self, timer: Timer[T]) -> bool:
        """Whether it was pending, and is not any more."""
        if not timer.pending:
            return False
        self._remove(timer)
        self._cancelled += 1
        return True

    def advance(self, now_s: float) -> list[T]:
        """What has become due, in order of ticks. A clock that goes back is taken as standing still."""
        target = max(self._tick, math.floor((now_s - self._origin_s) / self._tick_s + ROUNDING))
        found = self._drain_due()
        while self._scheduled > self._cancelled + self._expired:
            event = self._next_event()
            if event > target:
                break
            self._tick = event
            self._open_slots()
            found += self._drain_due()
        self._tick = target
        return found

    def next_due_s(self) -> float | None:
        """When to call `advance` next: never after the earliest deadline's tick; None when nothing is pending.

        For a far deadline it is the moment at which that moves one wheel down, so `advance` may hand out
        nothing.
        """
        if not len(self):
            return None
        tick = self._tick if self._due else self._next_event()
        return self._origin_s + tick * self._tick_s

    def statistics(self) -> WheelStatistics:
        return WheelStatistics(
            len(self), self._scheduled, self._cancelled, self._expired, self._steps
        )

    def _place(self, timer: Timer[T]) -> None:
        self._steps += 1
        if timer._tick <= self._tick:
            timer.place(WHEELS, 0)
            self._due[timer] = None
            return
        for wheel in range(WHEELS):
            shift = SLOT_BITS * wheel
            position = self._tick >> shift
            distance = (timer._tick >> shift) - position
            if distance < SLOTS or wheel == WHEELS - 1:
                slot = (position + min(distance, SLOTS - 1)) % SLOTS
                timer.place(wheel, slot)
                self._slots[wheel][slot][timer] = None
                self._occupied[wheel] |= 1 << slot
                return

    def _remove(self, timer: Timer[T]) -> None:
        self._steps += 1
        if timer._wheel == WHEELS:
            del self._due[timer]
        else:
            slot = self._slots[timer._wheel][timer._slot]
            del slot[timer]
            if not slot:
                self._occupied[timer._wheel] &= ~(1 << timer._slot)
        timer.place(-1, -1)

    def _next_event(self) -> int:
        """The tick of the next occupied slot's start, over all wheels. Something is pending."""
        events = []
        for wheel, occupied in enumerate(self._occupied):
            if occupied:
                position = self._tick >> (SLOT_BITS * wheel)
                at = position % SLOTS
                ahead = ((occupied >> at) | (occupied << (SLOTS - at))) & FULL
                distance = (ahead & -ahead).bit_length() - 1
                events.append((position + distance) << (SLOT_BITS * wheel))
        return min(events)

    def _open_slots(self) -> None:
        """Places again what is in the slots that start at this tick: in a lower wheel, or due."""
        for wheel in reversed(range(WHEELS)):
            shift = SLOT_BITS * wheel
            if self._tick & ((1 << shift) - 1):
                continue
            slot = (self._tick >> shift) % SLOTS
            if self._occupied[wheel] >> slot & 1:
                timers, self._slots[wheel][slot] = self._slots[wheel][slot], {}
                self._occupied[wheel] &= ~(1 << slot)
                self._steps += 1
                for timer in timers:
                    self._place(timer)

    def _drain_due(self) -> list[T]:
        timers, self._due = self._due, {}
        for timer in timers:
            timer.place(-1, -1)
        self._expired += len(timers)
        self._steps += len(timers)
        return [timer.item for timer in timers]
