"""What asking for rights costs Forebay and the broker: `python -m bench.rights`.

Owns a broker, a Forebay for each arm, and connections of one principal that wait at the ends of all topics. Must not
know how Forebay asks. Invariants: the arms differ in `cache.authorizeEvery` and `limits.principals` alone; figures are
CPU time of all threads, per second, while nothing is produced; the arm that asks once an hour is the floor.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from bench.ladder.cpu import read_cpu_ns, spent_ns
from protocol.fetch import FetchPartition
from tests.kit.raw_fetch import RawClient, TopicWords
from tests.kit.session_client import SessionClient
from tests.kit.sidecar import Pair

VERSION, WAIT_MS, TIMEOUT_S = 13, 500, 120.0
ASKED = ("forebay_authorization_proofs_total",), ("forebay_authorization_renewals_total",)


class Arm(NamedTuple):
    """`principals`: 0, no rights are shared."""

    name: str
    every_s: float
    principals: int


ARMS = (
    Arm("asks once an hour", 3600, 4096),
    Arm("60 s, shared", 60, 4096),
    Arm("10 s, shared", 10, 4096),
    Arm("10 s, each connection", 10, 0),
    Arm("2 s, shared", 2, 4096),
)


class Reader(threading.Thread):
    """One consumer with a fetch session, which long-polls at the ends of all topics until `stop`."""

    def __init__(self, address: str, topics: list[TopicWords], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._stop_event = stop
        self._client = SessionClient(RawClient(address, timeout_s=TIMEOUT_S), VERSION)
        for one in topics:
            key = one.id, 0
            self._client.want[key] = FetchPartition(*key, one.epochs[0], 0, -1, -1, 1 << 20)

    def run(self) -> None:
        while not self._stop_event.is_set():
            self._client.poll(WAIT_MS)


def make_topics(direct: str, count: int) -> list[TopicWords]:
    """Topics of one partition each, without records."""
    admin, names = AdminClient({"bootstrap.servers": direct}), [f"r{n:04}" for n in range(count)]
    made = admin.create_topics(
        [NewTopic(name, 1, 1) for name in names], operation_timeout=TIMEOUT_S
    )
    for done in made.values():
        done.result(TIMEOUT_S)
    with RawClient(direct) as client:
        return [client.topic(name) for name in names]


def measure(
    pair: Pair, arm: Arm, connections: int, topics: list[TopicWords], seconds: float
) -> str:
    """One line of the table: questions, and CPU time of Forebay and broker, per second."""
    stop = threading.Event()
    settings = {"authorizeEvery": f"{arm.every_s}s", "size": "64MiB"}
    report = pair.sidecar.reload({"cache": settings, "limits": {"principals": arm.principals}})
    assert report["success"], report
    readers = [Reader(pair.through, topics, stop) for _ in range(connections)]
    for one in readers:
        one.start()
    time.sleep(max(10.0, min(arm.every_s, 15.0)))  # rights of the arm before have ended
    pids = pair.sidecar.pid, pair.broker.pid()
    before, asked, began = (
        [read_cpu_ns(pid) for pid in pids],
        pair.sidecar.metrics(),
        time.monotonic(),
    )
    time.sleep(seconds)
    spent = [spent_ns(b, read_cpu_ns(pid)) for b, pid in zip(before, pids, strict=True)]
    took, now = time.monotonic() - began, pair.sidecar.metrics()
    stop.set()
    for one in readers:
        one.join(TIMEOUT_S)
    questions = sum(now[key] - asked[key] for key in ASKED) / took
    forebay_ms, broker_ms = (ns / 1e6 / took for ns in spent)
    return f"| {arm.name} | {questions:.2f} | {forebay_ms:.0f} | {broker_ms:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--topics", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--arms", help="first letters of arms, separated by commas; all")
    options = parser.parse_args()
    chosen = options.arms.split(",") if options.arms else [""]
    print("| arm | questions/s | Forebay, ms CPU/s | broker, ms CPU/s |\n| --- | --- | --- | --- |")
    with Pair({"authorizer": True}, settings={"cache": {"size": "64MiB"}}) as pair:
        topics = make_topics(pair.direct, options.topics)
        for arm in ARMS:
            if any(arm.name.startswith(one) for one in chosen):
                line = measure(pair, arm, options.connections, topics, options.seconds)
                print(line, flush=True)


if __name__ == "__main__":
    main()
