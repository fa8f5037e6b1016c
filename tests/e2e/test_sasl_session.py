"""A SASL session ends (KIP-368): from then on memory serves its client no more than the broker would.

Owns a broker that ends sessions, and raw clients that sign in and read at the tail. Must not know how Forebay keeps
rights. Invariant: rights would be asked for anew only long after the session's end, so nothing else ends them.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import pytest

from protocol import control
from tests.e2e.raw_frames import HIT, Raw, build_fetch, fetched, numbers
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient
from tests.kit.sidecar import PATIENT_CACHE, Sidecar
from tests.protocol import oracle
from tests.protocol.batches import batch_v2
from tests.protocol.golden_capture import produce_body

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

LIFETIME_S = 4.0
LATE_S = 10.0
"""On a busy machine; without an end the connection would be read from memory for 45 s."""
PATIENCE_S = 60.0
PACE_S = 0.02
"""Between two records: nothing depends on how many there are within a session."""
MANY = 3000
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2


class Reauthenticated(NamedTuple):
    """`listen`: Forebay's listener before the broker's that ends sessions."""

    broker: KafkaCluster
    sidecar: Sidecar
    listen: str


@pytest.fixture(scope="module")
def pair() -> Iterator[Reauthenticated]:
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lease_port())
        listener = Listener(
            "CLIENT",
            "SASL_PLAINTEXT",
            ("PLAIN",),
            advertised=(HOST, lease.port),
            max_reauth_ms=round(LIFETIME_S * 1000),
        )
        broker = stack.enter_context(KafkaCluster(listeners=[listener]))
        secret = broker.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(USERS["admin"])
        host, port = broker.address("CLIENT")
        entry = {
            "listen": f"{HOST}:{lease.port}",
            "upstream": f"{host}:{port}",
            "upstreamCredentials": {
                "mechanism": "PLAIN",
                "username": "admin",
                "passwordFile": str(secret),
            },
        }
        settings = {"cache": PATIENT_CACHE | {"authorizeEvery": "60s"}}
        sidecar = stack.enter_context(Sidecar([entry], settings))
        yield Reauthenticated(broker, sidecar, sidecar.bootstrap)


def sign_in(client: Raw) -> None:
    hello = control.build_sasl_handshake_request(
        HANDSHAKE_VERSION, next(numbers), "raw", mechanism="PLAIN"
    )
    assert (
        control.scan_sasl_handshake_response(client.call(hello), HANDSHAKE_VERSION).error_code == 0
    )
    token = b"\0admin\0" + USERS["admin"].encode()
    shown = control.build_sasl_authenticate_request(
        AUTHENTICATE_VERSION, next(numbers), "raw", auth_bytes=token
    )
    answer = control.scan_sasl_authenticate_response(client.call(shown), AUTHENTICATE_VERSION)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, round(LIFETIME_S * 1000))


def build_wide_produce(version: int, topic: str) -> bytes:
    body = produce_body(version, topic, UUID(int=0), batch_v2(1))
    (entry,) = body.topic_data
    (partition,) = entry.partition_data
    many = tuple(replace(partition, index=index) for index in range(MANY))
    return bytes(
        oracle.request_frame(
            replace(body, topic_data=(replace(entry, partition_data=many),)), 1, "raw"
        )
    )


def read_on(pair: Reauthenticated, client: Raw, writer: RawClient, topic: str, offset: int) -> int:
    """Produce a record, and read up to it; the next offset. ConnectionError where the connection ends."""
    end = writer.produce(topic, batch_v2(1)) + 1
    deadline = time.monotonic() + PATIENCE_S
    while offset < end:
        assert time.monotonic() < deadline
        answer = client.call(build_fetch(topic, offset, 100))
        partition = fetched(answer)
        if partition.end > partition.start:
            offset = end
    time.sleep(PACE_S)
    return offset


def test_who_does_not_sign_in_again_is_cut_as_by_the_broker(pair: Reauthenticated) -> None:
    topic = create_topic(pair.broker.direct)
    before = pair.sidecar.fetch_counts().get(HIT, 0)
    with RawClient(pair.broker.direct) as writer, Raw(pair.listen) as client:
        sign_in(client)
        signed_in_at, offset = time.monotonic(), 0
        last_read_at = signed_in_at
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < signed_in_at + LIFETIME_S + LATE_S:
                offset = read_on(pair, client, writer, topic, offset)
                last_read_at = time.monotonic()
    assert pair.sidecar.fetch_counts().get(HIT, 0) > before, "it was read from memory meanwhile"
    assert last_read_at < signed_in_at + LIFETIME_S + LATE_S / 2


def test_who_has_not_signed_in_takes_no_place(pair: Reauthenticated) -> None:
    """A Produce to thousands of partitions of a topic that Forebay knows, of which the broker has one."""
    topic = create_topic(pair.broker.direct)
    followed = "forebay_queue_depth", "followed_partitions"
    others, before, offset = pair.sidecar.metrics()[followed], 0.0, 0
    with RawClient(pair.broker.direct) as writer, Raw(pair.listen) as client:
        sign_in(client)
        deadline = time.monotonic() + PATIENCE_S
        while before <= others:
            assert time.monotonic() < deadline, "the topic of a good client is not followed"
            offset = read_on(pair, client, writer, topic, offset)
            before = pair.sidecar.metrics()[followed]
    for version in (9, 3):
        with Raw(pair.listen) as stranger:
            stranger.send(build_wide_produce(version, topic))
            assert stranger.ends(), "the broker wants a handshake first"
    assert pair.sidecar.metrics()[followed] == before


def test_who_signs_in_again_is_served_on(pair: Reauthenticated) -> None:
    topic = create_topic(pair.broker.direct)
    with RawClient(pair.broker.direct) as writer, Raw(pair.listen) as client:
        offset = 0
        for _ in range(4):
            sign_in(client)
            again_at = time.monotonic() + LIFETIME_S / 2
            while time.monotonic() < again_at:
                offset = read_on(pair, client, writer, topic, offset)
        before = pair.sidecar.fetch_counts().get(HIT, 0)
        sign_in(client)
        again_at = time.monotonic() + LIFETIME_S / 2
        while time.monotonic() < again_at:
            offset = read_on(pair, client, writer, topic, offset)
        assert pair.sidecar.fetch_counts().get(HIT, 0) > before
