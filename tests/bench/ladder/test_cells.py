"""A cell that lost time to the hypervisor is measured again, not for ever, and its best attempt counts."""

import pytest

from bench.ladder.cells import ATTEMPTS, Row, describe_stolen, measure_cell
from bench.stolen import Ticks


class Machine:
    """Attempts of 1,000 ticks each, of which some are stolen; the figures tell which attempt they are of."""

    def __init__(self, *stolen):
        self.stolen = list(stolen)
        self.now = Ticks(0, 0)
        self.runs = 0

    def read(self):
        return self.now

    def run(self):
        self.now = Ticks(self.now.total + 1000, self.now.stolen + self.stolen[self.runs])
        self.runs += 1
        return {"attempt": self.runs}

    def measure(self):
        return measure_cell(3, "fetch", "haproxy", self.run, self.read)


def test_a_cell_that_lost_one_percent_is_measured_once():
    machine = Machine(10)

    assert machine.measure() == Row(3, "fetch", "haproxy", {"attempt": 1}, 0.01, 1)
    assert machine.runs == 1


def test_one_that_lost_more_is_measured_again_until_it_has_not():
    machine = Machine(11, 0)

    assert machine.measure() == Row(3, "fetch", "haproxy", {"attempt": 2}, 0.0, 2)


@pytest.mark.parametrize("best", range(ATTEMPTS))
def test_after_the_last_attempt_the_one_that_lost_least_is_kept(best):
    machine = Machine(*(20 if number == best else 300 for number in range(ATTEMPTS)))

    assert machine.measure() == Row(3, "fetch", "haproxy", {"attempt": best + 1}, 0.02, ATTEMPTS)
    assert machine.runs == ATTEMPTS


def test_an_attempt_that_fails_ends_the_cell():
    def fail():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        measure_cell(0, "fetch", "haproxy", fail, Machine().read)


def test_the_page_says_how_many_and_the_worst():
    rows = [
        Row(0, "fetch", arm, {}, *how)
        for arm, how in (("a", (0.0, 1)), ("b", (0.034, 3)), ("c", (0.01, 2)))
    ]

    said = describe_stolen(rows)
    assert "2 of 3 cells" in said
    assert "3.4% at most is left" in said
    assert "0 of 0 cells" in describe_stolen([])


def test_no_more_attempts_are_made_than_are_allowed():
    machine = Machine(300, 0)

    row = measure_cell(3, "fetch", "haproxy", machine.run, machine.read, attempts=1)

    assert row == Row(3, "fetch", "haproxy", {"attempt": 1}, 0.3, 1)
