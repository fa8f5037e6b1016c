"""`python -m bench.ladder.growth`: how Forebay's cost grows with bytes, requests, partitions and connections.

Owns the series, the bar of each, their tables and their picture. Invariants: one Forebay with the ladder's settings
before one broker; where points can be measured in any order each is the median of REPEATS turns of all; CPU is the
sidecar's, where said the broker's. A line is straight if one more costs the same at both ends (`compare_ends`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.demo.progress import Progress
from bench.ladder import arms, extras, loads, report
from bench.ladder.raw import Line
from bench.ladder.steps import Bench
from bench.shape import requests, tails
from bench.shape.clients import LibrdkafkaClients
from tests.kit.broker.topics import create_topic
from tests.kit.frames import build_batch, build_produce
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).parents[1] / "results" / "growth"
SIZES = (1_000, 30_000, 120_000, 300_000, 600_000, 900_000)
REQUESTS = (1_000, 2_000, 4_000, 8_000)
PARTITIONS = (0, 250, 500, 1_000, 2_000)
CONNECTIONS = (0, 1_000, 2_500, 5_000)
HOT = (10, 100, 1_000, 2_000, 4_000)
SENDERS = (1, 100, 500, 1_000, 2_000)
NAMED = (1, 10, 50, 100, 200)
"""Partitions at the tail that all get records; connections that all send; partitions in one request."""
HOT_RATE, HOT_S = 500.0, 5.0
NAMED_BYTES, NAMED_CALLS = 1_000, 50
SENT_CALLS = 4_000
BYTES_CALLS, BESIDE_CALLS = 60, 500
REPEATS = 3
MOST_RATIO = 2.0
"""Bar of each straight line: a quadratic one is above 5 with these points, and the noise of a straight one below."""
FLAT_RATIO = 2.0
"""Where all points cost less than so many times the cheapest, nothing grows, and the ends differ by noise."""
STRAIGHT = "Forebay, "
"""Figures with this name have the bar."""


class Series(NamedTuple):
    """`points`: x, then the figures by name, each the median of its turns."""

    title: str
    x: str
    points: list[tuple[int, dict[str, float]]]


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Least squares: the value at 0, the growth for one more, and the largest distance of a point from that line as a
    share of the largest value.
    """
    slope, at_zero = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    top = max(abs(y) for _, y in points) or 1.0
    return at_zero, slope, max(abs(y - at_zero - slope * x) for x, y in points) / top


def compare_ends(points: Sequence[tuple[float, float]]) -> float:
    """Compare what one more costs: between the last two points, over that between the first and the middle one. 1 on a
    straight line, 0 on a flat one, infinite where nothing is added at first; needs three points.
    """
    costs = [cost for _, cost in points]
    if max(costs) < FLAT_RATIO * min(costs):
        return 0.0
    (first, middle), (late, last) = (points[0], points[len(points) // 2]), points[-2:]
    early_cost = (middle[1] - first[1]) / (middle[0] - first[0])
    late_cost = (last[1] - late[1]) / (last[0] - late[0])
    return late_cost / early_cost if early_cost > 0 else float("inf")


def median_series(
    title: str, x: str, at: Sequence[int], measure: Callable[[int], dict[str, float]]
) -> Series:
    """All points in turn, REPEATS times, up and down, so that what drifts does not look like growth."""
    turns: dict[int, list[dict[str, float]]] = {one: [] for one in at}
    for turn in range(REPEATS):
        for one in at if turn % 2 == 0 else reversed(at):
            turns[one].append(measure(one))
    medians = [
        (
            one,
            {name: statistics.median(said[name] for said in turns[one]) for name in turns[one][0]},
        )
        for one in at
    ]
    return Series(title, x, medians)


def measure_bytes(bench: Bench, arm: arms.Arm) -> Series:
    """CPU of one Produce, acknowledged and stored, by the size of its batch."""
    topic = f"p-{arm.name}"
    frames = {size: build_produce(topic, build_batch(size, min(size, 1000))) for size in SIZES}

    def one(size: int) -> dict[str, float]:
        with Line(arm.address) as line:
            line.time_calls(frames[size], 3)
            meter = loads.Meter(arm.pid, bench.ladder.broker_pid)
            line.time_calls(frames[size], BYTES_CALLS)
            _, cpu_s, _ = meter.stop()
        return {"Forebay, us": cpu_s / BYTES_CALLS * 1e6}

    return median_series("one Produce, stored", "bytes of its batch", SIZES, one)


def measure_requests(bench: Bench, arm: arms.Arm) -> Series:
    """CPU of so many Produces of 1 KB, one after the other."""
    frame = build_produce(f"p-{arm.name}", build_batch(loads.SMALL_BYTES, loads.SMALL_BYTES))

    def one(calls: int) -> dict[str, float]:
        with Line(arm.address) as line:
            line.time_calls(frame, loads.WARM_CALLS)
            meter = loads.Meter(arm.pid, bench.ladder.broker_pid)
            line.time_calls(frame, calls)
            _, cpu_s, _ = meter.stop()
        return {"Forebay, ms": cpu_s * 1e3}

    return median_series("Produces of 1 KB", "requests", REQUESTS, one)


def measure_partitions(bench: Bench, arm: arms.Arm) -> Series:
    """CPU a second of Forebay and of the broker beside one consumer at the tail of so many idle partitions."""
    topic = create_topic(bench.direct, "wide", partitions=max(PARTITIONS))
    points = []
    for count in PARTITIONS:  # upwards alone: what was watched once is let go of only after a while
        said = extras.tail_idle(bench, arm, topic, count)
        points.append(
            (
                count,
                {
                    "Forebay, ms a second": said.own * 1e3,
                    "broker, ms a second": said.broker * 1e3,
                    "own requests a second": said.requests_per_s,
                },
            )
        )
    return Series("idle partitions at the tail of one consumer", "partitions", points)


def measure_connections(bench: Bench, arm: arms.Arm) -> Series:
    """CPU a second beside so many silent connections, and what a small Produce costs beside them."""
    frame = build_produce(f"p-{arm.name}", build_batch(loads.SMALL_BYTES, loads.SMALL_BYTES))
    points = []
    for count in CONNECTIONS:
        with ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(RawClient(arm.address))
            time.sleep(extras.SETTLE_S)
            idle = extras.idle_share(arm, bench)
            line = stack.enter_context(Line(arm.address))
            line.time_calls(frame, loads.WARM_CALLS)
            meter = loads.Meter(arm.pid, bench.ladder.broker_pid)
            line.time_calls(frame, BESIDE_CALLS)
            _, cpu_s, _ = meter.stop()
        points.append(
            (
                count,
                {
                    "Forebay, idle, ms a second": idle * 1e3,
                    "a Produce, us": cpu_s / BESIDE_CALLS * 1e6,
                },
            )
        )
    return Series("silent connections", "connections", points)


def measure_hot(bench: Bench, arm: arms.Arm, at: Sequence[int] = HOT) -> Series:
    """CPU a second beside one consumer at the tail of so many partitions, HOT_RATE records a second over all."""
    topic, points = create_topic(bench.direct, partitions=max(at)), []
    for count in at:
        loads.wait_unwatched(arm)
        address = arm.address
        with closing(LibrdkafkaClients(address, topic, count, 1, tails.RECORD_BYTES)) as clients:
            said = tails.tail_many(arm, bench.ladder.broker_pid, clients, 1, HOT_RATE, HOT_S)
        points.append(
            (
                count,
                {
                    "Forebay, ms a second": said["cpu_ms_per_s"],
                    "broker, ms a second": said["broker_ms_per_s"],
                },
            )
        )
    return Series("hot partitions at the tail of one consumer", "partitions", points)


def measure_senders(bench: Bench, arm: arms.Arm, at: Sequence[int] = SENDERS) -> Series:
    """CPU of a round in which each of so many connections sends a Produce of 1 KB."""
    frame = build_produce(f"p-{arm.name}", build_batch(loads.SMALL_BYTES, loads.SMALL_BYTES))

    def one(count: int) -> dict[str, float]:
        rounds = max(SENT_CALLS // count, 3)
        with ExitStack() as stack:
            lines = [stack.enter_context(RawClient(arm.address)) for _ in range(count)]
            _send_round(lines, frame)
            meter = loads.Meter(arm.pid, bench.ladder.broker_pid)
            for _ in range(rounds):
                _send_round(lines, frame)
            _, cpu_s, _ = meter.stop()
        return {"Forebay, ms a round": cpu_s / rounds * 1e3}

    return median_series("a Produce of 1 KB from each connection", "connections", at, one)


def _send_round(lines: Sequence[RawClient], frame: bytes) -> None:
    for line in lines:
        line.send(frame)
    for line in lines:
        line.receive()


def measure_named(bench: Bench, arm: arms.Arm, at: Sequence[int] = NAMED) -> Series:
    """CPU of one Produce, and of one Fetch from memory, of so many partitions."""
    topic, pid = create_topic(bench.direct, partitions=max(at)), bench.ladder.broker_pid
    loads.prove_codec(arm, bench.direct, topic)
    loads.wait_unwatched(arm)

    def one(count: int) -> dict[str, float]:
        produced = requests.wide_produce(arm, pid, topic, count, NAMED_BYTES, NAMED_CALLS)
        fetched = requests.wide_fetch(
            arm, pid, bench.direct, topic, count, NAMED_BYTES, NAMED_CALLS
        )
        return {
            "Forebay, a Produce, us": produced["cpu_us_per_request"],
            "Forebay, a Fetch from memory, us": fetched["cpu_us_per_request"],
        }

    return median_series("partitions in a request, 1 KB of each", "partitions", at, one)


def build_bars(series: Sequence[Series]) -> list[str]:
    """The rows of the bars: of each figure of Forebay's own with three points or more, whether its line is straight."""
    rows = []
    for one in series:
        for name in one.points[0][1]:
            if name.startswith(STRAIGHT) and len(one.points) > 2:
                ratio = compare_ends([(float(x), figures[name]) for x, figures in one.points])
                verdict = "holds" if ratio <= MOST_RATIO else "BROKEN"
                rows.append(f"| {one.title}: {name} | {MOST_RATIO:g} | {ratio:.2f} | {verdict} |")
    return rows


def build_page(series: Sequence[Series], command: str) -> str:
    """A table for each series, with the line through its points."""
    parts = [
        "# How cost grows",
        "",
        f"`{command}`",
        "",
        *(f"* {one}" for one in report.describe_machine()),
        "",
        "## Bars",
        "",
        "What one more costs between the last two points, over that between the first and the middle one.",
        "",
        "| line | at most | measured | |",
        "| --- | --- | --- | --- |",
        *build_bars(series),
    ]
    for one in series:
        names = list(one.points[0][1])
        parts += [
            "",
            f"## {one.title}",
            "",
            f"| {one.x} | {' | '.join(names)} |",
            f"| --- |{' --- |' * len(names)}",
        ]
        parts += [
            f"| {x:,} | {' | '.join(f'{figures[name]:.4g}' for name in names)} |"
            for x, figures in one.points
        ]
        parts.append("")
        for name in names:
            at_zero, slope, off = fit([(float(x), figures[name]) for x, figures in one.points])
            line = f"{at_zero:.3g} + {slope:.3g} for each"
            parts.append(
                f"* {name}: {line}; no point is off this line by more than {off:.0%} of the largest"
            )
    return "\n".join(parts) + "\n"


def plot(series: Sequence[Series], path: Path) -> None:
    """A panel for each series, with its points and the lines through them."""
    figure, axes = plt.subplots(1, len(series), figsize=(4 * len(series), 3.2), squeeze=False)
    for axis, one in zip(axes[0], series, strict=True):
        for name in one.points[0][1]:
            xs = [float(x) for x, _ in one.points]
            ys = [figures[name] for _, figures in one.points]
            at_zero, slope, _ = fit(list(zip(xs, ys, strict=True)))
            (drawn,) = axis.plot(xs, [at_zero + slope * x for x in xs], linewidth=0.8)
            axis.plot(xs, ys, "o", color=drawn.get_color(), markersize=4, label=name)
        axis.set_ylim(bottom=0)
        axis.set_title(one.title, fontsize=9)
        axis.set_xlabel(one.x, fontsize=8)
        axis.legend(fontsize=6)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def write_report(directory: Path, page: str, series: Sequence[Series]) -> None:
    """README.md, result.json (four digits of each figure) and growth.png."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "README.md").write_text(page + "\n![all series](growth.png)\n")
    rounded = [
        {
            "title": one.title,
            "x": one.x,
            "points": [
                [x, {name: float(f"{value:.4g}") for name, value in figures.items()}]
                for x, figures in one.points
            ],
        }
        for one in series
    ]
    (directory / "result.json").write_text(json.dumps(rounded, indent=1) + "\n")
    plot(series, directory / "growth.png")


MEASURED: tuple[Callable[[Bench, arms.Arm], Series], ...] = (
    measure_bytes,
    measure_requests,
    measure_named,
    measure_senders,
    measure_connections,
    measure_partitions,
    measure_hot,
)


def run(progress: Progress, directory: Path, command: str) -> str:
    """All of them; the page."""
    with ExitStack() as stack:
        progress.step("starting the broker and Forebay")
        ladder = arms.open_ladder(stack, [arms.DIRECT, arms.CACHE], None)
        bench = Bench(ladder, loads.Scale())
        bench.prepare()
        arm, series = ladder.arms[arms.CACHE], []
        for measure in MEASURED:
            progress.step(str(measure.__doc__).splitlines()[0])
            series.append(measure(bench, arm))
    page = build_page(series, command)
    write_report(directory, page, series)
    return page


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ladder.growth", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the page goes")
    options = parser.parse_args()
    try:
        print(run(Progress(), options.directory, "python -m bench.ladder.growth"))
    except arms.CANNOT_RUN as error:
        print(f"it could not run: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
