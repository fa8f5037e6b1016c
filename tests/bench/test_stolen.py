"""Stolen time is a share of all time, and a kernel that does not tell has none."""

import pytest

from bench.stolen import Ticks, read_cpu, scan_cpu, share

TOLD = "cpu  10 20 30 400 5 6 7 22 9 1\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5 0\n"


def test_the_first_line_is_summed_and_guests_are_not_counted_twice():
    assert scan_cpu(TOLD) == Ticks(500, 22)


@pytest.mark.parametrize("text", ["cpu  10 20 30 400 5 6 7\n", "cpu  10 20 30 448"])
def test_a_kernel_that_does_not_tell_has_nothing_stolen(text):
    ticks = scan_cpu(text)

    assert ticks.stolen == 0
    assert ticks.total in (478, 508)


def test_the_share_is_of_what_passed_between():
    assert share(Ticks(1000, 50), Ticks(1200, 53)) == pytest.approx(0.015)
    assert share(Ticks(1000, 50), Ticks(1000, 50)) == 0.0


def test_a_counter_that_runs_backwards_is_no_share():
    assert share(Ticks(1000, 50), Ticks(1100, 49)) == 0.0


def test_this_machine_has_ticks():
    now = read_cpu()

    assert 0 <= now.stolen <= now.total
    assert now.total > 0
