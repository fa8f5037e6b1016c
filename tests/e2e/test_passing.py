"""Large answers where memory does not serve: past Forebay's memory or through it, the bytes are the broker's.

Owns a broker, a wire before it that can be cut, and a Forebay whose cache is off, with a plain listener and one that
speaks TLS. It must not know which way an answer goes, but for what is counted.
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from protocol import fetch
from tests.e2e.between import Between
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, TopicWords
from tests.kit.sidecar import CLIENT, ProxiedBroker, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.broker.kafka import KafkaCluster

pytestmark = pytest.mark.e2e

BATCHES, VALUE_BYTES = 40, 200_000
ASKED_BYTES = 3_000_000
ALL_BYTES = BATCHES * VALUE_BYTES * 2
VERSIONS = (4, 11, 12, 13)
COUNTED = ("pass", "disabled")
HEAP = "forebay_in_flight_bytes", "response"
SETTINGS = {"cache": {"mode": "off"}, "log": {"level": "info", "format": "text"}}
PATIENCE_S = 60.0


class Asking(RawClient):
    """Asks, and takes the answers later."""

    def take(self) -> bytes:
        """The next answer, a whole frame. OSError where the connection ends."""
        prefix = self._take(4)
        return prefix + self._take(int.from_bytes(prefix, "big"))


class Encrypted(RawClient):
    """The same over TLS; `trust`: the PEM file of the authority."""

    def __init__(self, address: str, trust: str) -> None:
        super().__init__(address)
        context = ssl.create_default_context(cafile=trust)
        context.check_hostname = False
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")


class Passing(NamedTuple):
    """`plain` and `encrypted` lead to the broker over `between`."""

    broker: KafkaCluster
    between: Between
    sidecar: Sidecar
    plain: str
    encrypted: str
    trust: str
    words: TopicWords


@pytest.fixture(scope="module")
def passing(proxied: ProxiedBroker) -> Iterator[Passing]:
    with contextlib.ExitStack() as stack:
        lease = lease_port()
        plain, encrypted = proxied.advertised, f"{HOST}:{lease.port}"
        broker = proxied.cluster
        between = stack.enter_context(Between(broker.address(CLIENT)))
        files = write_certificates(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        tls = {"certificateFile": str(files.server.certificate), "keyFile": str(files.server.key)}
        entries: list[dict[str, Any]] = [
            {"name": "plain", "listen": plain, "upstream": between.address},
            {"name": "encrypted", "listen": encrypted, "upstream": between.address, "tls": tls},
        ]
        sidecar = stack.enter_context(Sidecar(entries, SETTINGS, [lease]))
        topic = create_topic(broker.direct, partitions=2)
        with RawClient(broker.direct) as client:
            for number in range(BATCHES):
                client.produce(topic, batch_v2(1, value=bytes([number]) * VALUE_BYTES))
            words = client.topic(topic, 2)
        yield Passing(broker, between, sidecar, plain, encrypted, str(files.authority), words)


def asked(
    passing: Passing, version: int, offset: int, max_bytes: int = ASKED_BYTES
) -> fetch.FetchPartition:
    topic = passing.words.id if version >= fetch.TOPIC_IDS_FROM else passing.words.name
    return fetch.FetchPartition(topic, 0, -1, offset, -1, -1, max_bytes)


def frames(address: str, passing: Passing, version: int, offsets: range) -> list[bytes]:
    """The answers to a Fetch at each offset, all asked for at once, without their correlation ids."""
    with Asking(address) as client:
        for offset in offsets:
            client.send_fetch(version, [asked(passing, version, offset)], max_wait_ms=0)
        return [frame[:4] + frame[8:] for frame in (client.take() for _ in offsets)]


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_to_pipelined_fetches_are_the_brokers_byte_by_byte(
    passing: Passing, version: int
) -> None:
    offsets = range(0, BATCHES, 6)
    before = passing.sidecar.fetch_counts().get(COUNTED, 0)
    direct = frames(passing.broker.direct, passing, version, offsets)
    through = frames(passing.plain, passing, version, offsets)
    assert through == direct
    records = 0
    for frame in direct:
        (answered,) = fetch.scan_response(frame[:4] + bytes(4) + frame[4:], version).partitions
        records += answered.end - answered.start
    assert passing.sidecar.fetch_counts()[COUNTED] - before == records
    sent = passing.sidecar.metrics()["forebay_proxy_to_client_response_bytes_total", "Fetch"]
    assert sent >= records


def test_two_partitions_with_records_are_the_brokers_too(passing: Passing) -> None:
    second = asked(passing, 13, 0)._replace(partition=1)
    got = []
    for address in (passing.broker.direct, passing.plain):
        with RawClient(address) as client:
            got.append(client.fetch(13, [asked(passing, 13, 0), second], max_wait_ms=0))
    assert got[0] == got[1]


def test_over_tls_the_bytes_are_the_same(passing: Passing) -> None:
    with RawClient(passing.broker.direct) as client:
        request = client.build_fetch(13, [asked(passing, 13, 3)], max_wait_ms=0)
        direct = client.call(request)
    with Encrypted(passing.encrypted, passing.trust) as client:
        for _ in range(3):
            assert client.call(request) == direct


def test_a_link_that_is_cut_within_an_answer_cuts_the_clients(passing: Passing) -> None:
    with Asking(passing.plain) as client:
        client.fetch(13, [asked(passing, 13, 0)], max_wait_ms=0)
        passing.between.cut_after(1_500_000)
        try:
            client.send_fetch(13, [asked(passing, 13, 0)], max_wait_ms=0)
            with pytest.raises(OSError):
                client.take()
        finally:
            passing.between.heal()
    offsets = range(0, BATCHES, 10)
    assert frames(passing.plain, passing, 13, offsets) == frames(
        passing.broker.direct, passing, 13, offsets
    )
    assert passing.sidecar.metrics()[HEAP] == 0


def test_clients_that_do_not_read_hold_little_and_get_all(passing: Passing) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Asking(passing.plain)) for _ in range(3)]
        for client in slow:
            for offset in range(0, BATCHES, 4):
                client.send_fetch(13, [asked(passing, 13, offset, ALL_BYTES)], max_wait_ms=0)
        deadline, held = time.monotonic() + PATIENCE_S, 0.0
        while not held and time.monotonic() < deadline:
            held = passing.sidecar.metrics()[HEAP]
        offsets = range(0, BATCHES, 10)
        assert frames(passing.plain, passing, 13, offsets) == frames(
            passing.broker.direct, passing, 13, offsets
        )
        for client in slow:
            for offset in range(0, BATCHES, 4):
                (answered,) = fetch.scan_response(frame := client.take(), 13).partitions
                assert answered.error_code == 0
                assert frame[answered.start : answered.start + 8] == offset.to_bytes(8, "big")
                assert answered.end - answered.start > (BATCHES - offset) * VALUE_BYTES
    deadline = time.monotonic() + PATIENCE_S
    while passing.sidecar.metrics()[HEAP]:
        assert time.monotonic() < deadline
