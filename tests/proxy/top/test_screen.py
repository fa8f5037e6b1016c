"""The screen of `forebay top`: what stands there, at every state, and what a terminal must never get."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from proxy.admin.live_state import Reader
from proxy.admin.live_view import describe
from proxy.fetch.readers import ReadSums
from proxy.top import words
from proxy.top.screen import Order, build_screen
from tests.proxy.admin.live_states import build_behind, build_state
from throttle.controller import ControllerRule
from throttle.disks import BusyRule
from throttle.throttle import Throttle, ThrottleRules
from throttle.tickets import DelayRule

if TYPE_CHECKING:
    from collections.abc import Mapping


def draw(said: Mapping[str, Any], order: Order = "bytes", rows: int = 8) -> str:
    console = Console(file=io.StringIO(), width=220, color_system=None)
    console.print(build_screen(said, order, rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_all_of_it_is_there() -> None:
    text = draw(describe(build_state()))
    for part in (
        "Forebay ready  1.0 0123abc, node 7 at 127.0.0.1:19092, cache.mode serve",
        "hit ratio 75.0 % (since start 75.0 %), clients read 100 B/s, 3 clients",
        "memory reaches 90 s back (full), 600 B of 1.0 KB, 100 B/s come; leases 3 of 4, 0 lapsed",
        "Readers behind: 1 in 1 partitions",
        "in 10 s",
        "in 2 min",
        "nightly",
        "2025-11-21 00:00:00Z  WARNING  forebay.x  the disk is slow",
    ):
        assert part in text, text


def test_nobody_reads_and_nothing_is_wrong() -> None:
    state = build_state(
        readers={},
        behind=[],
        record_bytes={},
        warnings=[],
        queues=[],
        is_ready=False,
        reasons=["the broker is away"],
    )
    text = draw(describe(state))
    assert text.count("none\n") == 8
    assert "not ready: the broker is away" in text and "hit ratio –" in text


def test_the_order_is_the_one_that_is_asked_for() -> None:
    readers = {
        Reader("much", None, "t"): ReadSums(1, 1, 100, 0, 0, 0.0),
        Reader("often", None, "t"): ReadSums(9, 9, 1, 0, 0, 0.0),
        Reader("late", None, "t"): ReadSums(1, 1, 1, 0, 0, 9.0),
    }
    said = describe(build_state(readers=readers, behind=[]))
    for order, first in (("bytes", "much"), ("misses", "often"), ("delay", "late")):
        text = draw(said, order, rows=1)  # type: ignore[arg-type]
        assert first in text and not any(one in text for one in {"much", "often", "late"} - {first})


def test_a_disk_that_is_busy_and_one_without_counters() -> None:
    rules = ThrottleRules(
        busy=BusyRule(),
        controller=ControllerRule(0.6, 1e6, 1e9, 2e6),
        queue=DelayRule(1.0, 10, 1000, 1.0),
        stale_s=5.0,
    )
    text = draw(describe(build_state(Throttle(rules, ["sdx"], 0.0))))
    assert "sdx" in text and "no counters" in text and "60.0 %" in text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"admitted_at": None}, "not in memory"),
        ({"bytes_pace": 1e9}, "no: keeps up"),
        ({"retention_ms": -1}, "never"),
        ({"record_age_s": 101.0}, "may be deleted now"),
        ({"time_pace": 9.0}, "no: catches up"),
    ],
)
def test_each_end_has_its_words(changed: dict[str, Any], said: str) -> None:
    assert said in draw(describe(build_state(behind=[build_behind(**changed)])))


def test_workers_are_counted_where_there_are_several() -> None:
    assert "workers" not in draw(describe(build_state()))
    assert "1 of 2 workers" in draw(describe(build_state(workers=(1, 2))))


def test_names_of_clients_are_neither_markup_nor_commands_to_a_terminal() -> None:
    name = "\x1b]0;pwned\x07[bold red]x[/]\x9b2J\n\u202e"
    readers = {Reader(name, name, name): ReadSums(1, 0, 1)}
    text = draw(
        describe(
            build_state(readers=readers, behind=[build_behind(reader=Reader(name, name, name))])
        )
    )
    assert "[bold red]x[/]" in text
    assert all(one.isprintable() or one == "\n" for one in text)
    assert len(words.plain("x" * 1000)) == words.LONGEST_NAME


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 KB"),
        (150_000, "150 KB"),
        (3e15, "3000 TB"),
        (None, "?"),
    ],
)
def test_sizes(value: float | None, said: str) -> None:
    assert words.size(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.05, "50 ms"),
        (59, "59 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
        (864_000, "10.0 d"),
        (None, "?"),
    ],
)
def test_times(value: float | None, said: str) -> None:
    assert words.time(value) == said
