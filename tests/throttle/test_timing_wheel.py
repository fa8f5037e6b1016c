"""The timing wheel against a sorted list, at its edges; its work is counted at 100,000 items."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle.timing_wheel import SLOTS, WHEELS, TimingWheel

TICK = 0.01
MANY = 100_000


def test_nothing_is_pending() -> None:
    wheel: TimingWheel[str] = TimingWheel(5.0)
    assert wheel.next_due_s() is None
    assert wheel.advance(1e9) == []
    assert wheel.statistics().steps == 0


def test_never_early_and_less_than_a_tick_late() -> None:
    wheel: TimingWheel[str] = TimingWheel(100.0, TICK)
    wheel.schedule(100.254, "a")
    assert wheel.advance(100.2539) == []
    assert wheel.next_due_s() == pytest.approx(100.26)
    assert wheel.advance(100.26) == ["a"]
    assert len(wheel) == 0


def test_past_is_due_at_once() -> None:
    wheel: TimingWheel[str] = TimingWheel(100.0, TICK)
    wheel.schedule(90.0, "past")
    wheel.schedule(100.0, "now")
    assert wheel.next_due_s() == 100.0
    assert wheel.advance(100.0) == ["past", "now"]


def test_clock_that_goes_back_stands_still() -> None:
    wheel: TimingWheel[str] = TimingWheel(100.0, TICK)
    wheel.advance(110.0)
    wheel.schedule(105.0, "a")
    assert wheel.advance(50.0) == ["a"]


@pytest.mark.parametrize(
    "ticks", [1, SLOTS - 1, SLOTS, SLOTS + 1, SLOTS**2 - 1, SLOTS**2, SLOTS**3 + 1]
)
def test_edges_of_each_wheel(ticks: int) -> None:
    wheel: TimingWheel[int] = TimingWheel(0.0, TICK)
    wheel.schedule(ticks * TICK, ticks)
    assert wheel.advance((ticks - 0.5) * TICK) == []
    assert wheel.advance(ticks * TICK) == [ticks]


def test_beyond_the_last_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel(0.0, TICK)
    far_s = 3 * SLOTS**WHEELS * TICK
    wheel.schedule(far_s, "far")
    assert wheel.advance(far_s - 1) == []
    assert wheel.advance(far_s + TICK) == ["far"]


def test_cancel() -> None:
    wheel: TimingWheel[str] = TimingWheel(0.0, TICK)
    timers = [wheel.schedule(at_s, str(at_s)) for at_s in (0.0, 0.5, 500.0)]
    assert [wheel.cancel(timer) for timer in timers] == [True] * 3
    assert [wheel.cancel(timer) for timer in timers] == [False] * 3
    assert wheel.next_due_s() is None
    assert wheel.advance(1000.0) == []
    assert wheel.statistics().cancelled == 3


def test_cancel_after_it_was_handed_out() -> None:
    wheel: TimingWheel[str] = TimingWheel(0.0, TICK)
    timer = wheel.schedule(1.0, "a")
    assert timer.pending
    assert wheel.advance(1.0) == ["a"]
    assert not timer.pending
    assert not wheel.cancel(timer)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["schedule", "cancel", "advance"]), st.floats(0, 9000)),
        max_size=60,
    )
)
def test_like_a_sorted_list(steps: list[tuple[str, float]]) -> None:
    wheel: TimingWheel[int] = TimingWheel(7.0, TICK)
    now_s = 7.0
    model: dict[int, Any] = {}
    timers: list[Any] = []
    for what, amount in steps:
        if what == "schedule":
            timers.append(wheel.schedule(now_s + amount, len(timers)))
            model[len(timers) - 1] = timers[-1].at_s
        elif what == "cancel" and timers:
            number = int(amount) % len(timers)
            assert wheel.cancel(timers[number]) == (model.pop(number, None) is not None)
        elif what == "advance":
            now_s += amount / 3
            got = wheel.advance(now_s)
            assert all(model[number] <= now_s + TICK * 1e-5 for number in got)
            assert got == sorted(
                got, key=lambda number: math.ceil((model[number] - 7) / TICK - 1e-6)
            )
            for number in got:
                del model[number]
            assert all(at_s > now_s - TICK for at_s in model.values())
        due_s = wheel.next_due_s()
        assert (due_s is None) == (not model)
        assert due_s is None or due_s <= max(now_s, min(model.values())) + TICK
    assert len(wheel) == len(model)


def test_waking_when_told_misses_nothing() -> None:
    wheel: TimingWheel[float] = TimingWheel(0.0, TICK)
    wanted = [0.3, 0.3, 17.77, 61.0, 4000.5, 90_000.0]
    for at_s in wanted:
        wheel.schedule(at_s, at_s)
    wakes, got = 0, []
    while (due_s := wheel.next_due_s()) is not None:
        wakes += 1
        for at_s in wheel.advance(due_s):
            got.append(at_s)
            assert 0 <= due_s - at_s + 1e-6 < TICK + 1e-5
    assert got == wanted
    assert wakes <= len(wanted) * WHEELS


def test_work_does_not_grow_with_the_number_waiting() -> None:
    wheel: TimingWheel[int] = TimingWheel(0.0, TICK)
    timers = [wheel.schedule(1 + (number * 7919 % MANY) / 1000, number) for number in range(MANY)]
    assert wheel.statistics().steps == MANY  # one each
    before = wheel.statistics().steps
    for timer in timers[::2]:
        wheel.cancel(timer)
    assert wheel.statistics().steps - before == MANY // 2
    before, got, now_s = wheel.statistics().steps, 0, 0.0
    while len(wheel):
        now_s += 0.1
        got += len(wheel.advance(now_s))
    assert got == MANY // 2
    slots_opened = 101 / TICK * (1 + 1 / SLOTS + 1 / SLOTS**2 + 1)
    assert wheel.statistics().steps - before <= MANY // 2 * 4 + slots_opened
