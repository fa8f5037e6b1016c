"""A page's rows can be read again, so that a later run adds its rounds to them."""

from bench.ladder.arms import CACHE
from bench.ladder.cells import Row
from bench.ladder.report import read_rows, write_report

LOAD, FIGURE = "produce 1 KB", "cpu_us_per_request"


def test_what_was_written_is_read_again(tmp_path):
    rows = [Row(0, LOAD, CACHE, {FIGURE: 91.2}, 0.25, 3), Row(1, LOAD, CACHE, {FIGURE: 90.0})]

    write_report(tmp_path, "page", rows, shown={LOAD: (FIGURE, "CPU"), LOAD + " ": (FIGURE, "us")})

    assert read_rows(tmp_path) == rows


def test_where_nothing_was_written_there_are_no_rows(tmp_path):
    assert read_rows(tmp_path) == []
