"""What holds for four workers together: a client gets the rate of its quota, and a record comes from the broker once.

Each worker gives by its own account of a quota, and hears ten times a second what the others gave.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.test_warm_restart import count, wait_until
from tests.e2e.test_workers import attached, hit_bytes, spread
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import FetchThrottled, RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, PATIENT_SUPERVISOR, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

WORKERS = 4
CLIENT = "limited"
RATE = 4 << 20
"""Bytes a second that the client may fetch."""
ANSWER_BYTES = 64 << 10
BATCH = batch_v2(1, value=b"v" * (16 << 10))
BATCHES = 16
AT_REST_S = 0.25
"""Half of the shortest pause: where no answer brings records for so long, all connections have been told to pause, and
what was fetched is paid for, or nearly so.
"""
RECORD = batch_v2(1, value=b"v" * 1000)
RECORDS = 300
RECORDS_FIRST = 50
"""Until the keeper knows that the broker stores batches as they are sent, and all readers have leases and rights."""
MOST_SHARE = 0.27
"""Of what WORKERS readers get. 1 of WORKERS would be each record once."""
LEAST_FROM_MEMORY = 0.8
PATIENCE_S, POLL_S = 120.0, 0.5


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    settings = {
        "cache": PATIENT_CACHE,
        "supervisor": PATIENT_SUPERVISOR,
        "workers": WORKERS,
        "isolation": {"clientQuotas": [{"pattern": CLIENT, "fetchRate": str(RATE)}]},
    }
    with Pair(shared=proxied, settings=settings) as running:
        wait_until("all are attached", lambda: attached(running) == WORKERS)
        yield running


class Answer(NamedTuple):
    """When it came, and its record bytes."""

    at: float
    size_bytes: int


class Taker(threading.Thread):
    """Reads the same records from `start` on again and again, and pauses as it is told, until `stop`."""

    def __init__(self, client: RawClient, topic: str, start: int) -> None:
        super().__init__(daemon=True)
        self._reader = RawReader(client, topic, max_bytes=ANSWER_BYTES)
        self._start = start
        self._over = threading.Event()
        self.answers: list[Answer] = []
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._take()
        except Exception as error:
            self.failed = error

    def _take(self) -> None:
        reader = self._reader
        reader.offset, before = self._start, reader.received_bytes
        reader.raw.clear()
        try:
            reader.poll()
        except FetchThrottled as throttled:
            self._over.wait(throttled.throttle_time_ms / 1e3)
        else:
            self.answers.append(Answer(time.monotonic(), reader.received_bytes - before))

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive()
        assert self.failed is None, self.failed


def store_batches(pair: Pair, topic: str) -> int:
    """The offset from which on BATCHES in a row are in memory, up to the end of the topic."""
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        in_a_row, end = 0, 0
        deadline = time.monotonic() + PATIENCE_S
        while in_a_row < BATCHES:
            assert time.monotonic() < deadline
            before = count(pair, "forebay_produce_batches_total", "store")
            end = client.produce(topic, BATCH) + 1
            reader.read_to(end)
            stored = count(pair, "forebay_produce_batches_total", "store") > before
            in_a_row = in_a_row + 1 if stored else 0
        return end - BATCHES


def list_beginnings(takers: list[Taker]) -> list[tuple[float, int]]:
    """The moments at which records came after nobody had got any for AT_REST_S, and the bytes until then."""
    answers = sorted(answer for taker in takers for answer in list(taker.answers))
    found, taken_bytes = [], 0
    for before, after in pairwise(answers):
        taken_bytes += before.size_bytes
        if after.at - before.at >= AT_REST_S:
            found.append((after.at, taken_bytes))
    return found


def share_of_rate(takers: list[Taker], seconds: float) -> float:
    """What all have taken beside RATE, between the first of such moments and the last; 0.0: these are not so far apart
    yet.
    """
    found = list_beginnings(takers) or [(0.0, 0)]
    (begin, first_bytes), (end, last_bytes) = found[0], found[-1]
    return (last_bytes - first_bytes) / (RATE * (end - begin)) if end - begin >= seconds else 0.0


@pytest.mark.parametrize(
    ("seconds", "within"), [(6.0, 0.1), pytest.param(30.0, 0.05, marks=pytest.mark.long)]
)
def test_all_workers_together_give_the_rate(pair: Pair, seconds: float, within: float) -> None:
    """Measured from where the first burst is paid for, and longer while the machine is busy with something else, so
    that leases lapse.
    """
    topic = create_topic(pair.direct)
    start = store_batches(pair, topic)
    with ExitStack() as stack:
        clients = spread(stack, pair, 2 * WORKERS, CLIENT)
        takers = [Taker(one, topic, start) for each in clients.values() for one in each[:2]]
        before, begun_at = hit_bytes(pair), time.monotonic()
        for taker in takers:
            stack.callback(taker.stop)
            taker.start()
        share = from_memory = 0.0
        while not (1 - within <= share <= 1 + within and from_memory >= LEAST_FROM_MEMORY):
            assert time.monotonic() < begun_at + PATIENCE_S, (share, from_memory)
            time.sleep(POLL_S)
            share = share_of_rate(takers, seconds)
            taken_bytes = sum(
                answer.size_bytes for taker in takers for answer in list(taker.answers)
            )
            from_memory = (hit_bytes(pair) - before) / max(1, taken_bytes)
        assert all(taker.answers for taker in takers)
    print(f"{share:.3f} of the rate, {len(takers)} connections")


def count_bytes(pair: Pair) -> tuple[float, float]:
    """Record bytes that Forebay got from the broker, and those that it gave to clients."""
    metrics = pair.sidecar.metrics()
    upstream = sum(
        value for key, value in metrics.items() if key[0] == "forebay_upstream_fetch_bytes_total"
    )
    return upstream, sum(pair.sidecar.fetch_counts().values())


def write_for(readers: list[RawReader], writer: RawClient, topic: str, records: int) -> None:
    """Write records, one after the other, which all readers read at the tail meanwhile."""
    with ThreadPoolExecutor(len(readers)) as pool:
        end = readers[0].offset + records
        reading = [pool.submit(reader.read_to, end) for reader in readers]
        for _ in range(records):
            writer.produce(topic, RECORD)
        for one in reading:
            one.result()


def test_a_record_comes_from_the_broker_once_for_readers_of_all_workers(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with ExitStack() as stack:
        clients = spread(stack, pair, WORKERS + 1)
        readers = [RawReader(each[0], topic).settle() for each in clients.values()]
        writer = next(each[-1] for each in clients.values() if len(each) > 1)
        write_for(readers, writer, topic, RECORDS_FIRST)
        before = count_bytes(pair)
        write_for(readers, writer, topic, RECORDS)
        upstream, delivered = (
            after - first for after, first in zip(count_bytes(pair), before, strict=True)
        )
    assert delivered >= WORKERS * RECORDS * len(RECORD)
    assert upstream <= MOST_SHARE * delivered
    print(f"{upstream / delivered:.3f} of the bytes")
