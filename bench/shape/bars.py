"""What each load may cost, as ratios within one round.

Owns the bars. Must not know how a figure was measured (`bench.ladder.bars`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.ladder.arms import BARE, CACHE, DIRECT, PASS, RELAY, STORE, TUNED, WORKERS
from bench.ladder.bars import Bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.ladder.bars import Round

    Ratio = tuple[str, Callable[[Round], float]]

REQUEST, RATE, SECOND, BROKER = (
    "cpu_us_per_request",
    "requests_per_s",
    "cpu_ms_per_s",
    "broker_ms_per_s",
)
P50 = "end_to_end_p50_ms"
PRODUCES = {(1, 1): 1.2, (8, 1): 2.0, (32, 1): 3.0, (8, 16): 2.5}
"""Partitions and KB of each batch, to the bar: CPU in that of tuned haproxy."""
FETCHES = {(1, 64): None, (8, 64): 0.6, (32, 16): 0.7}
TAILS = {
    (1, 1000, 4): (120.0, None),
    (48, 1000, 4): (300.0, None),
    (300, 500, 1): (250.0, 5.0),
    (1000, 500, 1): (300.0, 5.0),
    (4000, 500, 1): (400.0, 15.0),
}
"""Partitions, records a second and groups, to the bars: CPU in ms a second, p50 beyond direct in ms."""
LIBRDKAFKA, JAVA = "librdkafka", "Java"
JAVA_TAILS = ((1, 1000, 4), (48, 1000, 4))
MOST_LINES = 1.2
"""Of the access log for each partition answered with records, beside one a second for each connection and topic."""
SESSION, NEWS = (200, 10), (10, 10)
CROWD = 64
MOST_BUSY_TIMES = 2.0
MOST_OF_ONE = 1 / 0.92
"""CPU of two workers and their keeper, in that of one worker."""


def name_produce(partitions: int, size_kb: int) -> str:
    """The load's name."""
    return f"produce {partitions} x {size_kb} KB"


def name_fetch(partitions: int, size_kb: int) -> str:
    """The load's name."""
    return f"fetch {partitions} x {size_kb} KB"


def name_session(partitions: int, news: int) -> str:
    """The load's name."""
    return f"session of {partitions}, {news} with news"


def name_crowd(connections: int) -> str:
    """The load's name."""
    return f"{connections} connections, 1 KB"


def name_tail(
    partitions: int, rate: int, groups: int, is_busy: bool, clients: str = LIBRDKAFKA
) -> str:
    """The load's name."""
    beside = ", busy" if is_busy else ""
    return f"{clients}, {partitions} partitions, {rate}/s, {groups} groups{beside}"


def list_tails() -> list[tuple[str, tuple[int, int, int]]]:
    """Clients and shape of each tail."""
    return [(LIBRDKAFKA, shape) for shape in TAILS] + [(JAVA, shape) for shape in JAVA_TAILS]


def _ratio(
    load: str, figure: str, theirs: str = TUNED, ours: str = CACHE
) -> Callable[[Round], float]:
    return lambda one: one[load, ours, figure] / one[load, theirs, figure]


def _own(load: str, figure: str) -> Callable[[Round], float]:
    return lambda one: one[load, CACHE, figure]


def _beyond_direct(load: str) -> Callable[[Round], float]:
    return lambda one: one[load, CACHE, P50] - one[load, DIRECT, P50]


def _session(one: Round) -> float:
    whole, alone = name_session(*SESSION), name_session(*NEWS)
    return one[whole, CACHE, "cpu_us_per_round"] / one[alone, CACHE, "cpu_us_per_round"]


def build_bars() -> tuple[Bar, ...]:
    """All of them."""
    found = [
        Bar(f"{load}: CPU / tuned haproxy", bound, True, _ratio(load, REQUEST))
        for load, bound in [
            *((name_produce(*shape), bound) for shape, bound in PRODUCES.items()),
            *((name_fetch(*shape), bound) for shape, bound in FETCHES.items()),
            (name_crowd(CROWD), 1.8),
        ]
        if bound is not None
    ]
    found.append(
        Bar(
            f"{name_crowd(CROWD)}: requests/s / tuned haproxy",
            0.85,
            False,
            _ratio(name_crowd(CROWD), RATE),
        )
    )
    found.append(Bar(f"{name_session(*SESSION)}: CPU / those alone", 1.5, True, _session))
    for clients, shape in list_tails():
        found += _build_tail(clients, shape)
    return (*found, *_build_workers())


def _build_workers() -> list[Bar]:
    """What a second worker may cost."""
    fetched = [name_fetch(*shape) for shape in FETCHES]
    asked = [(load, REQUEST) for load in (*PRODUCED, *fetched)]
    asked += [
        (name_tail(*shape, is_busy=False, clients=clients), SECOND)
        for clients, shape in list_tails()
    ]
    return [
        Bar(
            f"{load}: CPU of two workers / one",
            MOST_OF_ONE,
            True,
            _ratio(load, figure, CACHE, WORKERS),
        )
        for load, figure in asked
    ]


def _build_tail(clients: str, shape: tuple[int, int, int]) -> list[Bar]:
    """The bars of one tail, and of the same beside busy processors."""
    most_ms, later_ms = TAILS[shape]
    load = name_tail(*shape, is_busy=False, clients=clients)
    busy = name_tail(*shape, is_busy=True, clients=clients)
    found = [
        Bar(f"{load}: CPU, ms a second", most_ms, True, _own(load, SECOND)),
        Bar(f"{load}: broker's CPU / direct", 1.0, True, _ratio(load, BROKER, DIRECT)),
    ]
    if later_ms is not None:
        found.append(Bar(f"{load}: p50 - direct, ms", later_ms, True, _beyond_direct(load)))
    found.append(Bar(f"{busy}: p50 / direct", MOST_BUSY_TIMES, True, _ratio(busy, P50, DIRECT)))
    for one in (load, busy):
        found.append(Bar(f"{one}: share of hits", 0.999, False, _own(one, "hit_share")))
        found.append(
            Bar(f"{one}: log lines / answer", MOST_LINES, True, _own(one, "log_lines_per_answer"))
        )
        found.append(Bar(f"{one}: log lines dropped", 0.0, True, _own(one, "log_lines_dropped")))
    return found


def _stand_beside(load: str, name: str, floor: str) -> tuple[Ratio, Ratio]:
    """Forebay beside a floor, and that beside tuned haproxy."""
    return (
        (f"{load}: CPU / {name}", _ratio(load, REQUEST, floor)),
        (f"{load}, {name}: CPU / tuned haproxy", _ratio(load, REQUEST, TUNED, floor)),
    )


PRODUCED = (*(name_produce(*shape) for shape in PRODUCES), name_crowd(CROWD))
FLOOR: tuple[Ratio, ...] = (
    *(
        row
        for load in (name_fetch(*shape) for shape in FETCHES)
        for row in _stand_beside(load, "bare send", BARE)
    ),
    *(
        row
        for load in PRODUCED
        for name, floor in (("bare store", STORE), ("bare relay", RELAY))
        for row in _stand_beside(load, name, floor)
    ),
    (f"{name_crowd(CROWD)}: requests/s / bare store", _ratio(name_crowd(CROWD), RATE, STORE)),
    *(
        (f"{load}, passing: CPU / tuned haproxy", _ratio(load, REQUEST, TUNED, PASS))
        for load in PRODUCED
    ),
)
"""Beside the same bytes by programs that do nothing else: cached Fetches from a C program; Produces through a C program
that keeps a copy of each, through a relay in this language on Forebay's event loop, and through Forebay as a relay that
reads nothing and keeps nothing.
"""
