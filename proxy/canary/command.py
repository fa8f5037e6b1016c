"""`forebay canary`: arguments, the rounds' schedule, log lines and metrics.

Owns the command's loop and exit code. Must not know how a record is measured. Invariants:
* rounds are `--every` apart, from start to start; one that takes longer is followed at once, and none is made up for.
* exit codes as all of Forebay's: 0 done, 1 failed (with --once: the bar is broken), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import logging
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrics.collector import Exposition
from proxy.admin import log
from proxy.admin.http import PROMETHEUS_TEXT, AdminServer, HttpResponse, build_probes
from proxy.build_info import find_packages, find_version
from proxy.canary.outcome import StepFailed
from proxy.canary.plan import SIDES, TOPIC, CanaryPlan, LatencyBar, PlanRefused, derive_sides
from proxy.canary.tally import Tally, judge
from proxy.config.load import load
from proxy.config.units import parse_duration, parse_listen_address
from proxy.config.yaml_file import ConfigError
from proxy.sockets import bind, naming
from proxy.supervisor.signals import ENDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.canary.outcome import Round
    from proxy.canary.rounds import Canary
    from proxy.config.model import Config
    from proxy.config.units import Address

logger = logging.getLogger("forebay.canary")
OK, FAILED, USAGE = 0, 1, 2
ONCE_PAUSE_S = 0.05
_HELP = """\
Every few seconds the canary writes a record of 1 KiB through Forebay and one past it (direct), reads
both back, and shows both latencies: to the acknowledgement by all replicas in sync, and end to end.
Addresses, TLS and credentials are those of a listener in CONFIG: through its `listen`, directly at its
`upstream`, with its `upstreamCredentials`. The broker's advertised.listeners are not followed.

The topic is created where it is missing: partition 0 on this broker, one replica, ten minutes kept.
Rights: Describe, Read, Write and Create on the topic, DescribeConfigs on the cluster.

examples:
  forebay canary forebay.yaml --once
  forebay canary forebay.yaml --metrics :9191

exit codes: 0 done, 1 failed, or --once found the bar broken, 2 wrong command line or configuration
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog="forebay canary",
        description="Show what Forebay costs a producer and a consumer, beside the same without it.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="the configuration of `forebay serve`")
    add("--listener", metavar="NAME", help="listeners[].name to use; the first when unset")
    add("--through", metavar="HOST:PORT", help="Forebay's address, instead of `listen`")
    add("--direct", metavar="HOST:PORT", help="the broker's, instead of `upstream`; same security")
    add("--topic", default=TOPIC, metavar="NAME", help=f"{{node}}: the broker's node id ({TOPIC})")
    add("--every", type=_parse_time, default=5.0, metavar="TIME", help="from round to round (5s)")
    add("--timeout", type=_parse_time, default=10.0, metavar="TIME", help="of each step (10s)")
    add(
        "--metrics",
        type=_parse_address,
        default="127.0.0.1:9191",
        metavar="HOST:PORT",
        help="Prometheus metrics, /livez, /readyz (127.0.0.1:9191)",
    )
    add("--once", action="store_true", help="some rounds, a table, and the exit code by the bar")
    add("--rounds", type=_parse_count, default=30, metavar="N", help="rounds of --once (30)")
    add("--factor", type=_parse_factor, default=2.0, metavar="N", help="bar: N times direct (2)")
    add("--plus", type=_parse_time, default=0.01, metavar="TIME", help="bar: plus TIME (10ms)")
    add(
        "--client-certificate",
        nargs=2,
        default=(),
        metavar=("CERTIFICATE", "KEY"),
        help="PEM files, where the listener requires a client certificate",
    )
    return parser


def _parse_time(text: str) -> float:
    try:
        time_s = parse_duration(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}") from None
    if not 0.001 <= time_s <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 1ms and 1h")
    return time_s


def _parse_address(text: str) -> Address:
    try:
        return parse_listen_address(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}") from None


def _parse_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:6]) <= 10_000 or len(text) > 5:
        raise argparse.ArgumentTypeError(f"{text!r} must be 1 to 10000")
    return int(text)


def _parse_factor(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 1.0 <= float(text) <= 1000.0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be 1 to 1000")


def main(arguments: Sequence[str]) -> int:
    """Run `forebay canary ...` and return its exit code. Wrong arguments raise SystemExit(2)."""
    options = build_parser().parse_args(arguments)
    if importlib.util.find_spec("aiokafka") is None:
        command = [sys.executable, "-m", "pip", "install", *find_packages("canary")]
        return _refuse(f"aiokafka is missing; install it beside Forebay: {shlex.join(command)}")
    try:
        config = load(options.config, dict(os.environ), checks=False).config
        plan = build_plan(config, options)
    except ConfigError as refusal:
        return _refuse("; ".join(refusal.problems))
    except PlanRefused as refusal:
        return _refuse(f"{refusal}")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # each failure is told once, as ours
    if options.once:
        return asyncio.run(run_once(plan, options.rounds))
    with contextlib.closing(
        log.configure(config.log.level, config.log.format, config.log.queue_lines)
    ):
        try:
            return asyncio.run(serve(plan, options.metrics))
        except OSError as error:
            logger.error("stopped: %s", error)
            return FAILED


def build_plan(config: Config, options: argparse.Namespace) -> CanaryPlan:
    """The plan of these options. Raises PlanRefused."""
    through, direct = derive_sides(
        config, options.listener, options.through, options.direct, options.client_certificate
    )
    bar = LatencyBar(options.factor, options.plus)
    return CanaryPlan(through, direct, options.topic, options.every, options.timeout, bar)


def _refuse(text: str) -> int:
    print(f"forebay canary: {text}", file=sys.stderr)
    return USAGE


async def run_once(plan: CanaryPlan, count: int) -> int:
    """`--once`: so many rounds, one shortly after the other. Prints the table and returns the exit code."""
    from proxy.canary.rounds import Canary

    rounds: list[Round] = []
    async with Canary(plan) as canary:
        for _ in range(count):
            rounds.append(await canary.run_round())
            if all(isinstance(one, StepFailed) for one in rounds[-1]):
                break  # nothing to compare: the reason is in the table
            await asyncio.sleep(ONCE_PAUSE_S)
    verdict = judge(rounds, plan.bar)
    print(verdict.table, end="")
    return OK if verdict.holds else FAILED


async def serve(plan: CanaryPlan, metrics: Address) -> int:
    """Rounds until a signal of ENDING, with metrics. Raises OSError if their port cannot be had."""
    from proxy.canary.rounds import Canary

    tally, stopping = Tally(plan.bar), asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = AdminServer(build_routes(tally))
    with naming("the canary's metrics", metrics, "--metrics"):
        bound = await server.start(bind(metrics))
    logger.info(
        "Forebay %s canary: through %s, direct %s, metrics at %s",
        find_version(),
        plan.through.address,
        plan.direct.address,
        bound,
    )
    try:
        async with Canary(plan) as canary:
            await _keep_running(plan, canary, tally, stopping)
    finally:
        await server.close()
    return OK


async def _keep_running(
    plan: CanaryPlan, canary: Canary, tally: Tally, stopping: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    until_stopped = loop.create_task(stopping.wait())
    while not stopping.is_set():
        due_at = loop.time() + plan.every_s
        running = loop.create_task(canary.run_round())
        await asyncio.wait({running, until_stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return
        tally.add(running.result(), time.time())
        tell(tally.rounds, running.result(), plan)
        await asyncio.wait({until_stopped}, timeout=max(0.0, due_at - loop.time()))


def tell(number: int, round_: Round, plan: CanaryPlan) -> None:
    """One log line about a round: a warning where a side has failed or Forebay is above the bar."""
    words, fields = [], {}
    for side, outcome in zip(SIDES, round_, strict=True):
        if isinstance(outcome, StepFailed):
            words.append(f"{side} failed ({outcome.step}: {outcome})")
            continue
        words.append(f"{side} {outcome.received_s * 1000:.2f} ms end to end")
        fields[f"{side}AcknowledgedMs"] = round(outcome.acknowledged_s * 1000, 3)
        fields[f"{side}ReceivedMs"] = round(outcome.received_s * 1000, 3)
    is_slow = round_.is_slow(plan.bar)
    level = logging.WARNING if is_slow or len(fields) < 4 else logging.INFO
    text = ", ".join(words) + ("; above the bar" if is_slow else "")
    logger.log(level, "round %d: %s", number, text, extra=fields)


def build_routes(tally: Tally) -> dict[str, Any]:
    """The routes of the canary's port. Ready: a round has ended."""
    exposition = Exposition(tally.collect)
    return {
        **build_probes(lambda: (tally.rounds > 0, ("no round has ended yet",))),
        "/metrics": lambda: HttpResponse(exposition.render(), PROMETHEUS_TEXT),
    }
