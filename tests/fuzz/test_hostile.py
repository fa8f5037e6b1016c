"""Clients that mean harm, or are broken, beside a good one: it hardly notices, and nothing of them stays.

Owns one broker with a Forebay and the hostile clients. Must not know how they are held off. Invariants: each kind is at
work all the while the good client is watched; bounds are generous, since what is looked for is a client that waits for
another, not a slow machine.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import statistics
import struct
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from isolation.classify import queue_of_topic
from protocol.api import FETCH, PRODUCE
from proxy.config.isolation import Isolation
from tests.e2e.raw_frames import FETCH_VERSION, Raw, build_fetch, build_metadata
from tests.fuzz.mutations import read_golden, spoil
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, end_of, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

ROUNDS = 30
PATIENCE_S = 30.0
SLOWER, SLOWEST_S = 10, 0.5
"""How many times slower the good client may be, and what is not worth a complaint."""
CLIENTS, READERS = 10, 40
HUNDRED_MB = struct.pack(">i", 100 * 1000 * 1000)
MOST_GROWTH_BYTES = 96 << 20
REQUEST_MEMORY_BYTES = 128 << 20
"""The default of limits.requestMemory."""
MOST_MORE_BYTES = 64 << 20
"""What the process may take beyond its bounds."""
RESPONSE_MEMORY_BYTES = 256 << 20
"""The default of limits.responseMemory."""
BIG_BYTES = 500_000


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(
        settings={"cache": PATIENT_CACHE, "limits": {"frameTimeout": "5s"}}, shared=proxied
    ) as running:
        yield running


class Hostile(threading.Thread):
    """Does `harm` again and again until `finish`; what the peer does to it is its own affair."""

    def __init__(
        self, harm: Callable[[Raw, random.Random], None], address: str, number: int
    ) -> None:
        super().__init__(daemon=True)
        self._harm, self._address = harm, address
        self._rng = random.Random(number)
        self._over = threading.Event()
        self.times = 0

    def finish(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError), Raw(self._address) as client:
                client.socket.settimeout(1)
                self._harm(client, self._rng)
            self.times += 1
            self._over.wait(0.02)


def send_garbage(client: Raw, rng: random.Random) -> None:
    client.send(rng.randbytes(rng.choice((1, 5, 100, 70_000))))
    client.ends()


def send_spoiled(client: Raw, rng: random.Random) -> None:
    """What looks like a request until it is read."""
    golden = rng.choice([one for one in read_golden() if one.api_key in (PRODUCE, FETCH)])
    frame = spoil(golden.frame, rng)
    client.send(struct.pack(">i", len(frame) - 4) + frame[4:])
    client.ends()


def drip(client: Raw, _rng: random.Random) -> None:
    """A byte a second."""
    for byte in build_metadata():
        client.send(bytes([byte]))
        time.sleep(1)


def announce_much(client: Raw, rng: random.Random) -> None:
    client.send(HUNDRED_MB + rng.randbytes(100))
    time.sleep(1)


def stay_half_open(client: Raw, _rng: random.Random) -> None:
    """Says it has finished in the middle of a frame, and waits."""
    client.send(build_metadata() + build_metadata()[:9])
    client.socket.shutdown(socket.SHUT_WR)
    time.sleep(1)


def measure(address: str, topic: str) -> list[float]:
    """Seconds from sending a batch to having read it, for a client that stands at the tail."""
    taken = []
    with RawClient(address) as writer, RawClient(address) as client:
        reader = RawReader(client, topic)
        reader.settle()
        for _ in range(ROUNDS):
            before = time.monotonic()
            end = writer.produce_past_errors(topic, batch_v2(1)) + 1
            while reader.offset < end:
                reader.read_past_errors(1000)
            taken.append(time.monotonic() - before)
    return taken


def check_nothing_stays(pair: Pair) -> None:
    held = (
        "forebay_active_connections",
        "forebay_parked_fetches",
        "forebay_in_flight_bytes",
        "forebay_cache_pinned_bytes",
        "forebay_internal_errors_total",
    )
    deadline = time.monotonic() + PATIENCE_S
    while found := {
        key: value for key, value in pair.sidecar.metrics().items() if key[0] in held and value
    }:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


@pytest.mark.parametrize(
    "harm",
    [send_garbage, send_spoiled, drip, announce_much, stay_half_open],
    ids=lambda harm: harm.__name__,
)
def test_a_good_client_hardly_notices(
    pair: Pair, harm: Callable[[Raw, random.Random], None]
) -> None:
    topic = create_topic(pair.direct)
    alone = measure(pair.through, topic)
    resident, opened = pair.sidecar.resident_bytes, pair.sidecar.descriptors
    crowd = [Hostile(harm, pair.through, number) for number in range(CLIENTS)]
    for one in crowd:
        one.start()
    beside, past = measure(pair.through, topic), measure(pair.direct, topic)
    time.sleep(1)
    growth = pair.sidecar.resident_bytes - resident
    for one in crowd:
        one.finish()
    for one in crowd:
        one.join(PATIENCE_S)
    check_calm(alone, beside, past)
    assert sum(one.times for one in crowd) >= CLIENTS or harm is drip
    assert growth < MOST_GROWTH_BYTES
    check_nothing_stays(pair)
    assert pair.sidecar.descriptors <= opened + 2
    direct = read_all(pair.direct, topic)
    assert read_all(pair.through, topic, end=end_of(direct)) == direct


def check_calm(alone: list[float], beside: list[float], direct: list[float]) -> None:
    """`direct`: past Forebay, beside the same crowd, since a busy machine makes both ways slow."""
    for level in (50, 90):
        before, after, past = (
            statistics.quantiles(one, n=100)[level - 1] for one in (alone, beside, direct)
        )
        assert after <= max(SLOWER * max(before, past), SLOWEST_S), (level, before, after, past)


def test_large_frames_that_never_end_are_held_in_bounds(pair: Pair) -> None:
    """Twelve of them, of 60 MB each, beside a good client and one whose requests are large, too."""
    topic = create_topic(pair.direct)
    alone = measure(pair.through, topic)
    resident, part = pair.sidecar.resident_bytes, bytes(1 << 20)
    over = threading.Event()

    def send_most() -> None:
        with contextlib.suppress(OSError), Raw(pair.through) as client:
            client.send(HUNDRED_MB)
            for _ in range(60):
                client.send(part)
            over.wait(PATIENCE_S)

    crowd = [threading.Thread(target=send_most, daemon=True) for _ in range(12)]
    for one in crowd:
        one.start()
    beside, past, most = measure(pair.through, topic), measure(pair.direct, topic), 0
    with RawClient(pair.through) as writer:
        for _ in range(20):
            writer.produce_past_errors(topic, batch_v2(1, value=b"x" * 900_000))
            most = max(most, pair.sidecar.resident_bytes - resident)
    over.set()
    for one in crowd:
        one.join(2 * PATIENCE_S)
    assert most < REQUEST_MEMORY_BYTES + MOST_MORE_BYTES
    check_calm(alone, beside, past)
    check_nothing_stays(pair)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("is_stored", [True, False], ids=["memory", "broker"])
def test_clients_that_ask_for_much_and_never_read(
    pair: Pair, encrypted: bool, is_stored: bool, tmp_path: Path
) -> None:
    """Forty of them, of 50 MB each, from memory or from the broker: the rest of their answers is held in bounds, is
    gone with them, and nobody else waits for it.
    """
    big = create_topic(pair.direct)
    topic = create_topic_apart(pair, big)
    with RawClient(pair.through if is_stored else pair.direct) as writer:
        for _ in range(100):
            writer.produce_past_errors(big, batch_v2(1, value=b"x" * BIG_BYTES))
    with contextlib.ExitStack() as stack:
        sidecar, address = pair.sidecar, pair.through
        if encrypted:
            lease = stack.enter_context(lease_port())
            server, address = write_certificates(tmp_path).server, f"{HOST}:{lease.port}"
            tls = {"certificateFile": str(server.certificate), "keyFile": str(server.key)}
            entry = {"listen": address, "upstream": pair.direct, "tls": tls}
            sidecar = stack.enter_context(Sidecar([entry], {"cache": PATIENT_CACHE}))
        alone = measure(pair.through, topic)
        resident, most = sidecar.resident_bytes, 0
        for _ in range(READERS):
            client = stack.enter_context(Raw(address))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            if encrypted:
                client.socket = stack.enter_context(trust_all().wrap_socket(client.socket))
            client.send(*(build_fetch(big, 0, 100, BIG_BYTES * 100) for _ in range(4)))
            most = max(most, sidecar.resident_bytes - resident)
        beside, past = measure(pair.through, topic), measure(pair.direct, topic)
        for _ in range(20):
            time.sleep(0.2)
            most = max(most, sidecar.resident_bytes - resident)
        assert most < REQUEST_MEMORY_BYTES + RESPONSE_MEMORY_BYTES + MOST_MORE_BYTES
        check_calm(alone, beside, past)
        direct = read_all(pair.direct, big, end=10)
        wait_until(lambda: not count_requests(sidecar, "waiting"))
        if not encrypted:
            assert read_all(pair.through, big, end=10) == direct
    check_nothing_stays(pair)


def create_topic_apart(pair: Pair, other: str) -> str:
    """A topic that shares no queue toward the broker with `other`, by name nor by id: within a queue, requests wait for
    each other by design.
    """
    with RawClient(pair.direct) as client:
        taken = find_queues(client, other)
        while True:
            topic = create_topic(pair.direct)
            if not find_queues(client, topic) & taken:
                return topic


def find_queues(client: RawClient, topic: str) -> set[int]:
    words, data_queues = client.topic(topic), Isolation().data_queues
    return {queue_of_topic(key, data_queues) for key in (words.name, words.id)}


def count_requests(sidecar: Sidecar, gauge: str) -> float:
    """Requests of all queues toward the broker, as the gauge counts them now."""
    name = f"forebay_isolation_{gauge}"
    return sum(value for key, value in sidecar.metrics().items() if key[0] == name)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_clients_that_never_read_keep_no_slots(pair: Pair) -> None:
    """Each of theirs would keep one of the topic's six as long as it likes: memory has nothing of what they ask for."""
    big = create_topic(pair.direct)
    with RawClient(pair.direct) as writer:
        for _ in range(60):
            writer.produce_past_errors(big, batch_v2(1, value=b"x" * BIG_BYTES))
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lease_port())
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": pair.direct}
        patient = {"cache": PATIENT_CACHE, "isolation": {"maxQueueWait": "5s"}}
        sidecar = stack.enter_context(Sidecar([entry], patient))
        follower = stack.enter_context(RawClient(sidecar.bootstrap))
        RawReader(follower, big, offset=60, version=FETCH_VERSION).settle()
        asked = sidecar.fetch_requests()
        for number in range(3):
            client = stack.enter_context(Raw(sidecar.bootstrap))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            # of two with the same offset, one would join the other
            offsets = range(20 + number * 4, 24 + number * 4)
            client.send(*(build_fetch(big, offset, 100, BIG_BYTES * 60) for offset in offsets))
        wait_until(lambda: sidecar.fetch_requests() >= asked + 12)
        read = partial(read_all, topic=big, version=FETCH_VERSION, end=10)
        assert read(sidecar.bootstrap) == read(pair.direct)
        wait_until(lambda: count_requests(sidecar, "unread") == 12)
        assert not sidecar.metrics()["forebay_fetch_refused_total",]


def trust_all() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
