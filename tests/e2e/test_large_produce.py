"""Large batches from Produce, received into the arena: what is served is the broker's, and all memory comes back."""

from __future__ import annotations

import random
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_bytes import hit_bytes, read_until
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

BATCHES, RECORDS = 30, 4
ADOPTED, LENT = ("forebay_cache_adopted_batches_total",), ("forebay_cache_lent_bytes",)
PINNED = ("forebay_cache_pinned_bytes",)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def large_batches(seed: int, batches: int = BATCHES) -> Iterator[bytes]:
    """From 70 KB to 1 MB, incompressible."""
    source = random.Random(seed)
    for _ in range(batches):
        yield batch_v2(RECORDS, value=source.randbytes(source.randrange(18_000, 255_000)))


def wait_until_given_back(sidecar: Sidecar) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (now := sidecar.metrics())[LENT] or now[PINNED]:
        assert time.monotonic() < deadline, (now[LENT], now[PINNED])
        time.sleep(0.05)


def write(pair: Pair, topic: str, seed: int) -> int:
    """The number of records."""
    with RawClient(pair.through, "large") as client:
        for number, sent in enumerate(large_batches(seed)):
            assert client.produce(topic, sent) == number * RECORDS
    return BATCHES * RECORDS


def produce_and_read(client: RawClient, reader: RawReader, batches: Iterator[bytes]) -> None:
    """One after the other, to the reader's topic."""
    for sent in batches:
        reader.read_to(client.produce(reader.topic.name, sent) + RECORDS)


def test_large_batches_are_stored_where_they_arrive_and_served_as_the_broker_has_them(
    pair: Pair,
) -> None:
    topic = create_topic(pair.direct)
    adopted, hits = pair.sidecar.metrics()[ADOPTED], hit_bytes(pair)
    with RawClient(pair.through, "tail") as client, ThreadPoolExecutor(1) as pool:
        reader, enough = RawReader(client, topic).settle(), threading.Event()
        reading = pool.submit(read_until, reader, enough)
        end = write(pair, topic, 1)
        enough.set()
        reading.result(60)
        reader.read_to(end)
    direct = read_all(pair.direct, topic)
    assert bytes(reader.raw) == direct, explain(bytes(reader.raw), direct)
    again = read_all(pair.through, topic, end=end)
    assert again == direct, explain(again, direct)
    assert pair.sidecar.metrics()[ADOPTED] - adopted >= BATCHES * 0.6
    assert hit_bytes(pair) - hits >= len(direct), pair.sidecar.fetch_counts()
    wait_until_given_back(pair.sidecar)


def test_more_than_the_arena_holds_passes_through_it(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    adopted = pair.sidecar.metrics()[ADOPTED]
    with RawClient(pair.through, "tail") as tail, RawClient(pair.through, "large") as client:
        reader = RawReader(tail, topic).settle()
        produce_and_read(client, reader, large_batches(2, 150))
    now = pair.sidecar.metrics()
    assert now[ADOPTED] - adopted >= 150 * 0.6
    assert now["forebay_cache_evicted_bytes_total",] > 0
    direct = read_all(pair.direct, topic)
    through = read_all(pair.through, topic, end=reader.offset)
    assert bytes(reader.raw) == through == direct, explain(through, direct)
    wait_until_given_back(pair.sidecar)


def test_clients_that_die_in_the_middle_of_a_frame_give_back(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.through, "tail") as tail, RawClient(pair.through, "large") as client:
        produce_and_read(client, RawReader(tail, topic).settle(), large_batches(3, 8))
    sent = batch_v2(RECORDS, value=bytes(250_000))
    lent = 0.0
    for number in range(24):
        client = RawClient(pair.through, "large")
        frame = client.build_produce(topic, sent)
        client._socket.sendall(frame[: len(frame) * (number % 8 + 1) // 9])
        if number % 8 == 4:
            deadline = time.monotonic() + PATIENCE_S
            while not (lent := pair.sidecar.metrics()[LENT]) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert lent > 0
        client.abort()
    wait_until_given_back(pair.sidecar)
    adopted = pair.sidecar.metrics()[ADOPTED]
    with RawClient(pair.through, "large") as client:
        at = client.produce(topic, sent)
        assert client.produce(topic, sent) == at + RECORDS
    assert pair.sidecar.metrics()[ADOPTED] > adopted
    direct = read_all(pair.direct, topic)
    through = read_all(pair.through, topic, end=at + 2 * RECORDS)
    assert through == direct, explain(through, direct)
    wait_until_given_back(pair.sidecar)


class TlsClient(RawClient):
    """A client that trusts whoever it meets."""

    def __init__(self, address: str, client_id: str) -> None:
        super().__init__(address, client_id)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._socket = context.wrap_socket(self._socket)


def test_over_tls(pair: Pair, tmp_path: Path) -> None:
    server = write_certificates(tmp_path).server
    with lease_port() as lease:
        entry = {
            "listen": f"{HOST}:{lease.port}",
            "upstream": pair.direct,
            "tls": {"certificateFile": str(server.certificate), "keyFile": str(server.key)},
        }
        with Sidecar([entry], {"cache": PATIENT_CACHE}) as sidecar:
            topic = create_topic(pair.direct)
            with (
                TlsClient(sidecar.bootstrap, "tail") as tail,
                TlsClient(sidecar.bootstrap, "large") as client,
            ):
                reader = RawReader(tail, topic).settle()
                produce_and_read(client, reader, large_batches(5, 24))
                frame = client.build_produce(topic, next(large_batches(6)))
                client._socket.sendall(frame[: len(frame) // 2])
                client.abort()
            direct = read_all(pair.direct, topic)
            assert bytes(reader.raw) == direct, explain(bytes(reader.raw), direct)
            assert sidecar.metrics()[ADOPTED] >= 6
            wait_until_given_back(sidecar)
