"""How many bytes may be in flight, and who stops reading when they are."""

import pytest

from proxy.net.byte_budget import RESUME_AT, ByteBudget
from proxy.net.framed_transport import FramedTransport


def ignore(*_):
    return None


def build_wire():
    return FramedTransport(1000, ignore, ignore, ignore)


def test_reading_stops_at_the_bound_and_not_below():
    bound, wire = ByteBudget(100), build_wire()
    bound.add(99, wire)
    assert not wire.reading_held
    bound.add(1, wire)
    assert wire.reading_held
    assert (bound.in_flight_bytes, bound.pauses, bound.paused_wires) == (100, 1, 1)


def test_reading_goes_on_below_three_quarters():
    bound, wire = ByteBudget(100), build_wire()
    bound.add(100, wire)
    assert RESUME_AT == 0.75
    bound.sub(25)
    assert wire.reading_held
    bound.sub(1)
    assert not wire.reading_held
    assert (bound.in_flight_bytes, bound.pauses, bound.paused_wires) == (74, 1, 0)


def test_only_who_brings_bytes_at_the_bound_is_paused_and_all_resume():
    bound = ByteBudget(100)
    early, first, second = build_wire(), build_wire(), build_wire()
    bound.add(60, early)
    bound.add(40, first)
    bound.add(10, second)
    bound.add(10, second)  # was on its way already
    assert [w.reading_held for w in (early, first, second)] == [False, True, True]
    assert (bound.pauses, bound.paused_wires) == (2, 2)
    bound.sub(60)
    assert not any(w.reading_held for w in (early, first, second))


@pytest.mark.parametrize("size_bytes", [100, 101, 100_000])
def test_one_frame_larger_than_the_bound_passes_at_full_charge(size_bytes):
    bound, wire = ByteBudget(100), build_wire()
    bound.add(size_bytes, wire)
    assert bound.in_flight_bytes == size_bytes
    assert wire.reading_held
    bound.sub(size_bytes)
    assert bound.in_flight_bytes == 0
    assert not wire.reading_held


def test_a_wire_may_be_paused_again():
    bound, wire = ByteBudget(100), build_wire()
    for _ in range(2):
        bound.add(100, wire)
        bound.sub(100)
    assert bound.pauses == 2
    assert not wire.reading_held


def test_other_reasons_to_hold_a_wire_stand():
    bound, wire, reason = ByteBudget(100), build_wire(), object()
    wire.hold_reading(reason)
    bound.add(100, wire)
    bound.sub(100)
    assert wire.reading_held
    wire.release_reading(reason)
    assert not wire.reading_held


def test_a_wire_that_is_gone_is_forgotten():
    bound, gone, other = ByteBudget(100), build_wire(), build_wire()
    bound.add(100, gone)
    bound.add(1, other)
    bound.forget(gone)
    assert bound.paused_wires == 1
    bound.forget(gone)
    bound.sub(101)
    assert gone.reading_held  # nobody reads it any more; its bytes were taken away by who held them
    assert not other.reading_held
