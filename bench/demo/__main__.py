"""`python -m bench.demo [--seconds S] [--no-audit]`: the demo; answers go to stdout, progress to stderr.

Owns the order of things, the folders, signals and exit codes: 0 all well, 1 it could not run or a client lost
records, 3 the tailing groups hit less than they must, 128 + n ended by signal n. Must not know how a step
works. Invariants: everything temporary lies in one folder, removed at the end whatever ended it; nothing has
a fixed name or port; the first signal begins the cleaning up, and further ones do not disturb it.
"""

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType

from bench.demo.audit import AuditFailed, run_audit
from bench.demo.load import TAIL_CLIENT, Load, LoadFailed
from bench.demo.plan import DIRECT, THROUGH, Sizes, plan_slices
from bench.demo.progress import Progress
from bench.demo.result import WANTED_RATIO, Result, build_result, describe
from tests.kit.broker.jars import FetchFailed, kafka_jars
from tests.kit.broker.java import JavaMissing
from tests.kit.broker.kafka import BrokerFailed
from tests.kit.broker.topics import create_topic
from tests.kit.log_lines import unfold
from tests.kit.sidecar import Pair, SidecarFailed

RUNS = Path(__file__).parents[2] / ".build" / "demo"
EXPECTED = (
    AuditFailed,
    LoadFailed,
    FetchFailed,
    JavaMissing,
    BrokerFailed,
    SidecarFailed,
    TimeoutError,
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_EVERY_S = 5.0
EXIT_WELL, EXIT_FAILED, EXIT_FEW_HITS = 0, 1, 3
UPSTREAM_BYTES = "forebay_upstream_fetch_bytes_total"


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; its number."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    options = build_parser().parse_args(argv)
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # a new broker has no coordinator at first
    progress = Progress()
    scratch = Path(tempfile.mkdtemp(prefix="forebay-demo-"))
    tempfile.tempdir = str(scratch)  # the broker's and the sidecar's folders too
    try:
        return run(options, progress, scratch)
    except Interrupted as ended:
        progress.step("interrupted; everything is cleaned up")
        return 128 + int(ended.args[0])
    except EXPECTED as error:
        progress.step(f"the demo failed: {error}")
        for note in getattr(error, "__notes__", ()):
            sys.stderr.write(f"{note}\n")
        return EXIT_FAILED
    finally:
        tempfile.tempdir = None
        shutil.rmtree(scratch, ignore_errors=True)


def build_parser() -> argparse.ArgumentParser:
    """The two options."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=24.0,
        help="how long latencies are compared (default: 24)",
    )
    parser.add_argument("--no-audit", action="store_true", help="without the Spark audit")
    return parser


def run(options: argparse.Namespace, progress: Progress, scratch: Path) -> int:
    """Everything between the arguments and the end."""
    kafka_jars()
    RUNS.mkdir(parents=True, exist_ok=True)
    kept = Path(tempfile.mkdtemp(prefix=f"{datetime.now():%Y%m%d-%H%M%S}-", dir=RUNS))
    try:
        result = measure(options.seconds, progress, kept)
    except BaseException:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    print(f"\n{describe(result)}\n", flush=True)
    if not options.no_audit:
        progress.step("auditing the access log with Spark")
        page = run_audit(kept / "access", kept / "report", kept / "metrics.txt", scratch)
        print(f"The audit's page: {page}")
    print(f"The access log:   {kept / 'access'}", flush=True)
    if result.tail_ratio < WANTED_RATIO:
        progress.step(
            f"FAILED: the tailing groups hit {result.tail_ratio:.2%} of bytes, less than {WANTED_RATIO:.0%}"
        )
        return EXIT_FEW_HITS
    progress.step(f"done: the tailing groups hit {result.tail_ratio:.2%} of bytes")
    return EXIT_WELL


def measure(measured_s: float, progress: Progress, kept: Path) -> Result:
    """Broker, Forebay and clients; access log and scrape stay in `kept`."""
    sizes = Sizes()
    log_directory = kept / "access"
    log_directory.mkdir()
    settings = {
        "cache": {"size": f"{sizes.cache_bytes}B"},
        "accessLog": {"directory": str(log_directory)},
    }
    progress.step("starting a Kafka broker, and Forebay in front of it")
    load = Load(sizes, plan_slices(measured_s), progress)
    with Pair(settings=settings) as pair:
        addresses = {DIRECT: (pair.direct, "orders-direct"), THROUGH: (pair.through, "orders")}
        for bootstrap, topic in addresses.values():
            create_topic(bootstrap, topic, partitions=sizes.partitions)
        ended_by = asyncio.run(_run_load(load, addresses))
        if ended_by:
            raise Interrupted(ended_by)
        progress.step("stopping")
        (kept / "metrics.txt").write_text(pair.sidecar.admin("/metrics"))
        samples = pair.sidecar.metrics()
        pair.sidecar.stop()
        pair.sidecar.log_directory = log_directory
        lines = list(unfold(pair.sidecar.access_lines()))
    upstream_bytes = round(sum(value for key, value in samples.items() if key[0] == UPSTREAM_BYTES))
    tails = [f"{TAIL_CLIENT}{number}" for number in range(1, sizes.groups + 1)]
    return build_result(lines, tails, upstream_bytes, load.latencies_ms)


async def _run_load(load: Load, addresses: dict[str, tuple[str, str]]) -> int:
    """The number of the signal that ended it, or 0. Only the load is cancelled: the clients' own tasks live
    on until it has stopped them, which they need; a client that cannot stop is given up after a while.
    """
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(load.run(addresses))
    ended_by: list[int] = []

    def end(number: int) -> None:
        if not ended_by:
            ended_by.append(number)
            insist()

    def insist() -> None:
        running.cancel()
        loop.call_later(STOP_EVERY_S, insist)

    for number in SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        await running
    except asyncio.CancelledError:
        pass
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if ended_by else _interrupt)
    return ended_by[0] if ended_by else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def _seconds(text: str) -> float:
    measured_s = float(text)
    if not 1 <= measured_s <= 3600:
        raise argparse.ArgumentTypeError("1 to 3600")
    return measured_s


if __name__ == "__main__":
    sys.exit(main())
