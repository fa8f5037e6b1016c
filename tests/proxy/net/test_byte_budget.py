"""The limit of bytes in flight, and the connections that pause at it."""

import pytest

from proxy.net.byte_budget import RESUME_AT, ByteBudget
from proxy.net.framed_transport import FramedTransport, Hooks


def ignore(*_):
    return None


def build_wire():
    return FramedTransport(1000, Hooks(ignore, ignore, ignore))


def test_reading_stops_at_the_bound_and_not_below():
    bound, framed = ByteBudget(100), build_wire()
    bound.add(99, framed)
    assert not framed.reading_held
    bound.add(1, framed)
    assert framed.reading_held
    assert (bound.in_flight_bytes, bound.pauses, bound.paused_transports) == (100, 1, 1)


def test_reading_goes_on_below_three_quarters():
    bound, framed = ByteBudget(100), build_wire()
    bound.add(100, framed)
    assert RESUME_AT == 0.75
    bound.sub(25)
    assert framed.reading_held
    bound.sub(1)
    assert not framed.reading_held
    assert (bound.in_flight_bytes, bound.pauses, bound.paused_transports) == (74, 1, 0)


def test_only_senders_at_the_limit_are_paused():
    bound = ByteBudget(100)
    early, first, second = build_wire(), build_wire(), build_wire()
    bound.add(60, early)
    bound.add(40, first)
    bound.add(10, second)
    bound.add(10, second)  # was on its way already
    assert [w.reading_held for w in (early, first, second)] == [False, True, True]
    assert (bound.pauses, bound.paused_transports) == (2, 2)
    bound.sub(60)
    assert not any(w.reading_held for w in (early, first, second))


@pytest.mark.parametrize("size_bytes", [100, 101, 100_000])
def test_frame_larger_than_the_limit_passes(size_bytes):
    bound, framed = ByteBudget(100), build_wire()
    bound.add(size_bytes, framed)
    assert bound.in_flight_bytes == size_bytes
    assert framed.reading_held
    bound.sub(size_bytes)
    assert bound.in_flight_bytes == 0
    assert not framed.reading_held


def test_a_wire_may_be_paused_again():
    bound, framed = ByteBudget(100), build_wire()
    for _ in range(2):
        bound.add(100, framed)
        bound.sub(100)
    assert bound.pauses == 2
    assert not framed.reading_held


def test_other_reasons_to_hold_a_wire_stand():
    bound, framed, reason = ByteBudget(100), build_wire(), object()
    framed.hold_reading(reason)
    bound.add(100, framed)
    bound.sub(100)
    assert framed.reading_held
    framed.release_reading(reason)
    assert not framed.reading_held


def test_a_wire_that_is_gone_is_forgotten():
    bound, sent_count, other = ByteBudget(100), build_wire(), build_wire()
    bound.add(100, sent_count)
    bound.add(1, other)
    bound.forget(sent_count)
    assert bound.paused_transports == 1
    bound.forget(sent_count)
    bound.sub(101)
    assert (
        sent_count.reading_held
    )  # nobody reads it any more; its bytes were taken away by who held them
    assert not other.reading_held


def test_a_smaller_limit_keeps_what_is_held_and_pauses_only_new_work():
    bound, held, new = ByteBudget(100), build_wire(), build_wire()
    bound.add(80, held)
    bound.set_limit(50)
    assert not held.reading_held
    assert bound.in_flight_bytes == 80
    bound.add(1, new)
    assert (new.reading_held, bound.in_flight_bytes) == (True, 81), "what arrived is held, too"
    bound.sub(80)
    assert not new.reading_held


def test_a_larger_limit_resumes_who_has_room_by_it():
    bound, framed = ByteBudget(100), build_wire()
    bound.add(100, framed)
    bound.set_limit(120)
    assert framed.reading_held, "still above three quarters"
    bound.set_limit(200)
    assert not framed.reading_held
    bound.add(100, framed)
    assert framed.reading_held
