"""Kafka's own performance tools as clients: as fast as they go, and what that costs the rung.

Owns how the tools are told and what they print. Must not know rungs by name. Invariants: what the consumer reads
is what the producer has just written to a topic of that turn; rates are the tools' own (a JVM's start, and a
consumer's first rebalance, are not in them), CPU is that of the rung over the whole of both runs.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, NamedTuple

from bench.ladder.loads import GB, Figures, Meter, Wrong
from tests.kit.broker.process import kafka_tool

if TYPE_CHECKING:
    from bench.ladder.arms import Arm

RECORDS, RECORD_BYTES = 40_000, 1000
PATIENCE_MS = 30_000
SENT = re.compile(
    r"^(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec \((?P<mib>[\d.]+) MB/sec\).* (?P<p50>\d+) ms 50th"
    r".* (?P<p99>\d+) ms 99th",
    re.MULTILINE,
)
"""The summary of ProducerPerformance: its MB are MiB, its latencies count from its own call of `send`."""


class Sent(NamedTuple):
    """What the producer's tool says of its whole run."""

    records: int
    rate: float
    p50_ms: float
    p99_ms: float


def scan_sent(printed: str) -> Sent:
    """The last summary in what ProducerPerformance printed. Wrong where there is none."""
    found = list(SENT.finditer(printed))
    if not found:
        raise Wrong(f"ProducerPerformance printed no summary: {printed[-300:]!r}")
    last = found[-1]
    return Sent(int(last["records"]), float(last["rate"]), float(last["p50"]), float(last["p99"]))


def scan_read(printed: str) -> tuple[int, float]:
    """Records, and records a second while it fetched, of ConsumerPerformance. Wrong where it says neither."""
    rows = list(
        csv.DictReader([one for one in printed.splitlines() if ", " in one], skipinitialspace=True)
    )
    if len(rows) != 1 or "fetch.nMsg.sec" not in rows[0]:
        raise Wrong(f"ConsumerPerformance printed no table: {printed[-300:]!r}")
    return int(rows[0]["data.consumed.in.nMsg"]), float(rows[0]["fetch.nMsg.sec"])


def run_tools(arm: Arm, broker_pid: int, topic: str) -> Figures:
    """ProducerPerformance without a limit (acks=all), then ConsumerPerformance from the topic's beginning."""
    before = arm.sidecar.fetch_counts() if arm.sidecar is not None and arm.serves else {}
    meter = Meter(arm.pid, broker_pid)
    sent = scan_sent(
        kafka_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
            *(
                "--throughput",
                "-1",
                "--producer-props",
                f"bootstrap.servers={arm.address}",
                "acks=all",
            ),
        )
    )
    records, rate = scan_read(
        kafka_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", arm.address, "--topic", topic, "--messages", str(RECORDS)),
            *("--timeout", str(PATIENCE_MS)),
        )
    )
    _, cpu_s, broker_s = meter.stop()
    if sent.records != RECORDS or records < RECORDS:
        raise Wrong(f"{arm.name}: {sent.records} records were sent and {records} read of {RECORDS}")
    moved_gb = 2 * RECORDS * RECORD_BYTES / GB
    figures = {
        "produce_mb_per_s": sent.rate * RECORD_BYTES / 1e6,
        "produce_p50_ms": sent.p50_ms,
        "produce_p99_ms": sent.p99_ms,
        "consume_mb_per_s": rate * RECORD_BYTES / 1e6,
        "cpu_s_per_gb": cpu_s / moved_gb,
        "broker_s_per_gb": broker_s / moved_gb,
    }
    if arm.sidecar is not None and arm.serves:
        grown = {key: size - before.get(key, 0) for key, size in arm.sidecar.fetch_counts().items()}
        hit = sum(size for (result, _), size in grown.items() if result == "hit")
        figures["hit_share"] = hit / max(sum(grown.values()), 1)
    return figures
