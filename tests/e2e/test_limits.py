"""Every bound of `limits` reached by a real process with a tiny configuration: who is held back, and nothing is lost.

Owns one broker and a Forebay for each bound. Must not know how a bound is kept, beyond its metrics. Invariants: each
test reaches its bound, sees it in the metrics, and then sees every client served.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.raw_frames import (
    HIT,
    TIMEOUT_S,
    Raw,
    asked_correlation,
    build_fetch,
    build_metadata,
    build_produce,
    correlation,
    fetched,
    warm_up,
)
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, read_all
from tests.kit.sidecar import PATIENT_CACHE, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
KIB, MIB = 1 << 10, 1 << 20
REFUSED = ("forebay_partitions_refused_total",)
WATCH_A_WHILE_S = 0.5
"""For how long a bound is seen not to be passed: a broken one is within milliseconds."""


@contextlib.contextmanager
def limited(broker: KafkaCluster, *, mode: str = "serve", **limits: Any) -> Iterator[Sidecar]:
    """A Forebay with these keys of `limits`."""
    with lease_port() as lease:
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": broker.direct}
        cache = PATIENT_CACHE | {"size": "16MiB", "mode": mode}
        with Sidecar([entry], {"limits": limits, "cache": cache}) as sidecar:
            yield sidecar


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def most_in_a_while(read: Callable[[], float]) -> float:
    """The greatest value within WATCH_A_WHILE_S."""
    ends = time.monotonic() + WATCH_A_WHILE_S
    values = [read()]
    while time.monotonic() < ends:
        values.append(read())
        time.sleep(0.02)
    return max(values)


def call(connection: Raw, *frames: bytes) -> list[bytes]:
    """Send all; the answers, in order."""
    connection.send(*frames)
    answers = [connection.take() for _ in frames]
    assert [correlation(one) for one in answers] == [asked_correlation(one) for one in frames]
    return answers


def test_max_connections(broker: KafkaCluster) -> None:
    with limited(broker, maxConnections=2) as sidecar:
        with Raw(sidecar.bootstrap) as first, Raw(sidecar.bootstrap) as second:
            for client in (first, second):
                call(client, build_metadata())
            with Raw(sidecar.bootstrap) as third:
                assert third.ends()
            sidecar.wait_for_log("limits.maxConnections")
            for client in (first, second):
                call(client, build_metadata())
            assert sidecar.metrics()["forebay_active_connections",] == 2
        wait_until(
            lambda: sidecar.metrics()["forebay_active_connections",] == 0, "their places are free"
        )
        with Raw(sidecar.bootstrap) as later:
            call(later, build_metadata())


def test_pipelined_requests(broker: KafkaCluster) -> None:
    def arrived() -> float:
        name = "forebay_client_to_proxy_request_total"
        return sum(value for key, value in sidecar.metrics().items() if key[0] == name)

    with limited(broker, pipelinedRequests=3) as sidecar, Raw(sidecar.bootstrap) as client:
        call(client, build_metadata())
        before = arrived()
        few, more = ([build_metadata() for _ in range(count)] for count in (3, 30))
        broker.stall()
        try:
            client.send(*few)
            wait_until(lambda: arrived() == before + 3, "the bound is reached")
            client.send(*more)
            assert most_in_a_while(arrived) == before + 3
        finally:
            broker.wake()
        answers = [client.take() for _ in few + more]
        assert [correlation(one) for one in answers] == [
            asked_correlation(one) for one in few + more
        ]


def test_parked_fetches(broker: KafkaCluster) -> None:
    with (
        limited(broker, parkedFetches=1) as sidecar,
        Raw(sidecar.bootstrap) as first,
        Raw(sidecar.bootstrap) as second,
        RawClient(broker.direct) as writer,
    ):
        topic = create_topic(broker.direct)
        for client in (first, second):
            warm_up(sidecar, client, topic)
        before = sidecar.fetch_counts("partitions")
        for client in (first, second):
            client.send(build_fetch(topic, 0, 15_000))
        wait_until(lambda: sidecar.metrics()["forebay_parked_fetches",] == 1, "one is parked")
        assert most_in_a_while(lambda: sidecar.metrics()["forebay_parked_fetches",]) == 1
        sent = batch_v2(1)
        writer.produce(topic, sent)
        for client in (first, second):
            answer = client.take()
            found = fetched(answer)
            assert answer[found.start : found.end][16:] == sent[16:], (
                "all but offset, length and epoch"
            )
        after = sidecar.fetch_counts("partitions")
        grown = {
            key: after[key] - before.get(key, 0)
            for key in after
            if after[key] != before.get(key, 0)
        }
        assert sorted(result for result, _ in grown) == ["hit", "miss"], grown


def test_watched_partitions(broker: KafkaCluster) -> None:
    with limited(broker, watchedPartitions=1) as sidecar, Raw(sidecar.bootstrap) as client:
        watched, other = (create_topic(broker.direct) for _ in range(2))
        warm_up(sidecar, client, watched)
        hits = sidecar.fetch_counts("partitions")[HIT]
        with Raw(sidecar.bootstrap) as second, RawClient(broker.direct) as writer:
            for _ in range(10):
                call(second, build_fetch(other, 0, 20))
            assert sidecar.fetch_counts("partitions")[HIT] == hits, (
                "beyond the bound they are misses"
            )
            writer.produce(other, batch_v2(1))
            (answer,) = call(second, build_fetch(other, 0, 5000))
            assert fetched(answer).end > fetched(answer).start
            assert sidecar.metrics()["forebay_watch_partitions",] == 1
            call(client, build_fetch(watched, 0, 20))
            assert sidecar.fetch_counts("partitions")[HIT] > hits
            assert sidecar.metrics()[REFUSED] == 0, "twice as many are followed"
            third = create_topic(broker.direct)
            writer.topic(third)
            deadline = time.monotonic() + TIMEOUT_S
            while not sidecar.metrics()[REFUSED]:
                assert time.monotonic() < deadline
                assert fetched(call(second, build_fetch(third, 0, 20))[0]).error_code == 0


def in_flight(sidecar: Sidecar, direction: str) -> float:
    return sidecar.metrics()["forebay_in_flight_bytes", direction]


@pytest.mark.parametrize(
    ("limits", "clients", "most_bytes"),
    [
        ({"requestMemory": "1MiB", "connectionRequestMemory": "1MiB"}, 4, MIB),
        ({"connectionRequestMemory": "128KiB"}, 1, 128 * KIB),
    ],
    ids=["process", "connection"],
)
def test_request_memory(
    broker: KafkaCluster, limits: dict[str, str], clients: int, most_bytes: int
) -> None:
    """The broker stands still and producers go on: they are not read any more, and later all is appended once."""
    requests = 16
    batch = batch_v2(1, value=b"x" * 300_000 if clients > 1 else b"x" * 50_000)
    topics = [create_topic(broker.direct) for _ in range(clients)]
    with contextlib.ExitStack() as stack:
        sidecar = stack.enter_context(limited(broker, **limits))
        links = [stack.enter_context(Raw(sidecar.bootstrap)) for _ in range(clients)]
        pool = stack.enter_context(ThreadPoolExecutor(clients))
        for link in links:
            call(link, build_metadata())
        broker.stall()
        try:
            frames = [
                [build_produce(topic, batch, -1) for _ in range(requests)] for topic in topics
            ]
            calls = [
                pool.submit(call, link, *sent) for link, sent in zip(links, frames, strict=True)
            ]
            wait_until(lambda: in_flight(sidecar, "request") >= most_bytes, "the bound is reached")
            one_each = clients * (len(batch) + KIB) + (
                64 * KIB if clients == 1 else 0
            )  # what one receive may hold
            assert most_in_a_while(lambda: in_flight(sidecar, "request")) <= most_bytes + one_each
        finally:
            broker.wake()
        for done in calls:
            assert len(done.result(60)) == requests
        for topic in topics:
            assert len(read_all(broker.direct, topic)) == requests * len(batch)
        assert in_flight(sidecar, "request") == 0


def is_held(sidecar: Sidecar) -> bool:
    """The bound was reached, or, where answers pass memory by, something is left that a client did not take."""
    return (
        sidecar.metrics()["forebay_reads_paused", "response"] > 0
        or in_flight(sidecar, "response") > 0
    )


def test_response_memory(broker: KafkaCluster) -> None:
    """Clients do not read what the broker sends: it is not read for them either, and later all arrives."""
    clients, requests, asked_bytes = 3, 60, 400_000  # far more than the kernel holds
    topic = create_topic(broker.direct)
    with RawClient(broker.direct) as writer:
        for number in range(5):
            writer.produce(topic, batch_v2(1, value=b"%d" % number * 100_000))
    whole = read_all(broker.direct, topic)
    limits = {"responseMemory": "1MiB", "connectionResponseMemory": "512KiB"}
    with contextlib.ExitStack() as stack:
        sidecar = stack.enter_context(limited(broker, mode="off", **limits))
        links = [stack.enter_context(Raw(sidecar.bootstrap)) for _ in range(clients)]
        frames = [[build_fetch(topic, 0, 0, asked_bytes) for _ in range(requests)] for _ in links]
        for link, sent in zip(links, frames, strict=True):
            link.send(*sent)
        wait_until(
            lambda: is_held(sidecar), "what clients do not take is held, and no more is read"
        )
        assert most_in_a_while(lambda: in_flight(sidecar, "response")) <= MIB + clients * (
            asked_bytes + KIB
        )
        pool = stack.enter_context(ThreadPoolExecutor(clients))
        reading = [
            pool.submit(lambda one: [one.take() for _ in range(requests)], link) for link in links
        ]
        full = 0
        for done, sent in zip(reading, frames, strict=True):
            answers = done.result(60)
            assert [correlation(one) for one in answers] == [asked_correlation(one) for one in sent]
            for answer in answers:
                found = fetched(answer)
                full += found.end - found.start > asked_bytes // 2
                assert answer[found.start : found.end] == whole[: found.end - found.start]
        assert full > 0, "others may have been answered empty, after too long in a queue"
        wait_until(lambda: in_flight(sidecar, "response") == 0, "nothing is held")
        call(links[0], build_metadata())


def test_frame_timeout(broker: KafkaCluster) -> None:
    """One byte a second is no request; what is slow but in time is one."""
    with (
        limited(broker, frameTimeout="2s") as sidecar,
        Raw(sidecar.bootstrap) as dripping,
        Raw(sidecar.bootstrap) as good,
    ):
        frame = build_metadata()
        good.send(frame[:5])
        time.sleep(0.5)
        good.send(frame[5:])
        assert good.take()
        with contextlib.suppress(OSError):
            for number in range(len(frame) - 1):
                dripping.send(frame[number : number + 1])
                time.sleep(1)
                call(good, build_metadata())
                if "has not completed a frame in 2 s" in sidecar.log_path.read_text():
                    break
        assert dripping.ends()
        assert number < 10
        call(good, build_metadata())


def test_an_idle_client_goes_when_the_broker_takes_it_for_idle_and_one_that_waits_stays() -> None:
    """connections.max.idle.ms is not defeated by Forebay in between; limits.idleTimeout does it without the broker."""
    with KafkaCluster(overrides={"connections.max.idle.ms": 3000}) as broker:
        topic = create_topic(broker.direct)
        with (
            limited(broker, idleTimeout="20s") as sidecar,
            Raw(sidecar.bootstrap) as idle,
            Raw(sidecar.bootstrap) as waiting,
        ):
            warm_up(sidecar, waiting, topic)
            call(idle, build_metadata())
            waiting.send(build_fetch(topic, 0, 7_000))
            assert idle.ends()
            assert sidecar.metrics()["forebay_disconnects_total", "idle"] == 1
            assert fetched(waiting.take()).error_code == 0


def test_idle_timeout(broker: KafkaCluster) -> None:
    with limited(broker, idleTimeout="1s") as sidecar, Raw(sidecar.bootstrap) as idle:
        call(idle, build_metadata())
        assert idle.ends()
        assert sidecar.metrics()["forebay_disconnects_total", "idle"] == 1
