"""Age in time of the oldest admitted bytes."""

import pytest

from proxy.accounting.age_clock import AgeClock


def test_age_is_unknown_without_a_mark():
    assert AgeClock().age_s(100, 50.0) == 0.0


@pytest.mark.parametrize(
    ("admitted_bytes", "age_s"),
    [(0, 90.0), (100, 90.0), (199, 90.0), (200, 80.0), (250, 80.0), (300, 70.0)],
)
def test_age_counts_from_the_last_earlier_mark(admitted_bytes, age_s):
    clock = AgeClock()
    for admitted, at in ((100, 10.0), (200, 20.0), (300, 30.0)):
        clock.mark(admitted, at)
    assert clock.age_s(admitted_bytes, 100.0) == age_s


def test_standing_clock_is_marked_at_its_start():
    clock = AgeClock()
    clock.mark(100, 10.0)
    clock.mark(100, 20.0)
    assert clock.age_s(100, 30.0) == 20.0


@pytest.mark.parametrize("limit", [4, 5, 64])
def test_old_marks_get_coarser_never_later(limit):
    clock = AgeClock(limit)
    for i in range(10 * limit + 1):
        clock.mark(i * 100, float(i))
        assert len(clock._admitted) == len(clock._times) <= limit
    ages = [clock.age_s(i * 100, 10.0 * limit) for i in range(10 * limit + 1)]
    assert ages == sorted(ages, reverse=True)
    assert ages[0] == 10.0 * limit
    assert all(age >= 10.0 * limit - i for i, age in enumerate(ages))


def test_marks_at_the_limit_are_all_kept():
    clock = AgeClock(4)
    for i in range(4):
        clock.mark(i, float(i))
    assert [clock.age_s(i, 10.0) for i in range(4)] == [10.0, 9.0, 8.0, 7.0]
    clock.mark(4, 4.0)
    assert [clock.age_s(i, 10.0) for i in range(5)] == [10.0, 10.0, 8.0, 8.0, 6.0]
