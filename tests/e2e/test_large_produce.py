"""Large batches from Produce, received into the arena: what is served is the broker's, and all memory comes back."""

from __future__ import annotations

import itertools
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
PINNED, EVICTED = ("forebay_cache_pinned_bytes",), ("forebay_cache_evicted_bytes_total",)
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


def produce_until_adopted(
    sidecar: Sidecar, client: RawClient, reader: RawReader, count: int
) -> None:
    """A batch that comes while the partition's lease has lapsed, as on a busy machine, is received elsewhere."""
    wanted, seeds = sidecar.metrics()[ADOPTED] + count, itertools.count(100)
    deadline = time.monotonic() + PATIENCE_S
    while (adopted := sidecar.metrics()[ADOPTED]) < wanted:
        assert time.monotonic() < deadline, (adopted, wanted)
        produce_and_read(client, reader, large_batches(next(seeds), min(count, BATCHES)))


def test_large_batches_are_served_as_the_broker_has_them(pair: Pair) -> None:
    """The reader's own fetch may bring a batch before the acknowledgement does: then it is not stored where it lies."""
    topic = create_topic(pair.direct)
    hits = hit_bytes(pair)
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
    assert hit_bytes(pair) - hits >= len(direct), pair.sidecar.fetch_counts()
    wait_until_given_back(pair.sidecar)


def test_more_than_the_arena_holds_is_stored_where_it_arrives(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.through, "tail") as tail, RawClient(pair.through, "large") as client:
        reader = RawReader(tail, topic).settle()
        produce_until_adopted(pair.sidecar, client, reader, 150)
    assert pair.sidecar.metrics()[EVICTED] > 0
    direct = read_all(pair.direct, topic)
    through = read_all(pair.through, topic, end=reader.offset)
    assert bytes(reader.raw) == through == direct, explain(through, direct)
    wait_until_given_back(pair.sidecar)


def send_part(pair: Pair, topic: str, sent: bytes, ninths: int) -> RawClient:
    """A client that has sent so much of a Produce."""
    client = RawClient(pair.through, "large")
    frame = client.build_produce(topic, sent)
    client._socket.sendall(frame[: len(frame) * ninths // 9])
    return client


def has_lent(sidecar: Sidecar, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not sidecar.metrics()[LENT]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_clients_that_die_in_the_middle_of_a_frame_give_back(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.through, "tail") as tail, RawClient(pair.through, "large") as client:
        produce_until_adopted(pair.sidecar, client, RawReader(tail, topic).settle(), 8)
    sent = batch_v2(RECORDS, value=bytes(250_000))
    for number in range(24):
        send_part(pair, topic, sent, number % 8 + 1).abort()
    deadline, lent = time.monotonic() + PATIENCE_S, False
    while not lent:
        assert time.monotonic() < deadline
        client = send_part(pair, topic, sent, 5)
        lent = has_lent(pair.sidecar, 2.0)
        client.abort()
    wait_until_given_back(pair.sidecar)
    with RawClient(pair.through, "tail") as tail, RawClient(pair.through, "large") as client:
        reader = RawReader(tail, topic).settle()
        produce_until_adopted(pair.sidecar, client, reader, 8)
    direct = read_all(pair.direct, topic)
    through = read_all(pair.through, topic, end=reader.offset)
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
                produce_until_adopted(sidecar, client, reader, 6)
                frame = client.build_produce(topic, next(large_batches(6)))
                client._socket.sendall(frame[: len(frame) // 2])
                client.abort()
            direct = read_all(pair.direct, topic)
            assert bytes(reader.raw) == direct, explain(bytes(reader.raw), direct)
            wait_until_given_back(sidecar)
