"""`python -m bench.micro.first_hit`: how long a new consumer's partition goes without a hit, by name and by topic id.

Owns one real broker, Forebay before it, and a fresh topic for each try: a consumer that stands at the tail while
somebody produces counts its Fetches, and the time, until memory has served one. Times hold the asking for counters.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSIONS = {"by name": 12, "by id": 13}
LONGEST_S = 30.0


def measure(pair: Pair, version: int) -> tuple[int, float]:
    """Fetches and milliseconds until the first hit of a new consumer of a new topic."""
    topic = create_topic(pair.direct)
    producer = Producer({"bootstrap.servers": pair.through, "linger.ms": 0})
    with RawClient(pair.direct) as direct:
        RawReader(
            direct, topic
        ).read_past_errors()  # Metadata names a new topic before its log is there
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, version=version)
        started, fetches = time.monotonic(), 0
        hits = pair.sidecar.fetch_counts().get(("hit", ""), 0)
        while time.monotonic() - started < LONGEST_S:
            producer.produce(topic, b"value", partition=0)
            producer.flush(10)
            fetches += 1
            reader.poll(100)
            if pair.sidecar.fetch_counts().get(("hit", ""), 0) > hits:
                return fetches, (time.monotonic() - started) * 1000
    raise TimeoutError(f"no hit within {LONGEST_S:g} s")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    given = parser.parse_args(arguments)
    print(
        "| consumer | Fetches until the first hit, median (most) | ms, median (most) |\n| --- | --- | --- |"
    )
    with contextlib.ExitStack() as stack:
        pair = stack.enter_context(Pair())
        for name, version in VERSIONS.items():
            found = list(try_again(pair, version, given.tries))
            fetches, took_ms = zip(*found, strict=True)
            print(
                f"| {name} | {statistics.median(fetches):g} ({max(fetches)}) | "
                f"{statistics.median(took_ms):.0f} ({max(took_ms):.0f}) |"
            )
    return 0


def try_again(pair: Pair, version: int, tries: int) -> Iterator[tuple[int, float]]:
    for number in range(tries):
        print(f"version {version}, {number + 1} of {tries}", file=sys.stderr, end="\r")
        yield measure(pair, version)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
