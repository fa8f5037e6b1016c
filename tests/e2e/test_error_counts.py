"""Errors of a real broker are counted by API and code, relayed requests with their time, sign-ins by mechanism."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.raw_frames import Raw, build_plain, build_produce, read_batch
from tests.e2e.sasl_frames import sign_in_plain
from tests.e2e.signed import SignedBroker, start_signed
from tests.kit.broker.kafka import USERS
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader
from tests.kit.sidecar import Pair, ProxiedBroker, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e
PATIENCE_S = 60.0
HEARTBEAT = 12


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


def wait_for(sidecar: Sidecar, series: tuple[str, ...], least: float) -> None:
    """Until a series is at least so large. AssertionError."""
    deadline = time.monotonic() + PATIENCE_S
    while sidecar.metrics().get(series, 0) < least:
        assert time.monotonic() < deadline, (series, sidecar.metrics().get(series))
        time.sleep(0.05)


def code(api: str, error: str) -> tuple[str, str, str]:
    return "forebay_response_error_codes_total", api, error


def test_errors_of_produce_are_counted_in_the_pipeline_and_outside_of_it(pair: Pair) -> None:
    topic = create_topic(pair.direct, config={"max.message.bytes": "10"})
    batch = read_batch(pair)
    with Raw(pair.through) as client:
        for number in range(1, 6):
            assert client.call(build_produce(topic, batch, -1))
            wait_for(pair.sidecar, code("Produce", "MESSAGE_TOO_LARGE"), number)
        assert client.call(build_produce(create_topic(pair.direct), batch, -1))
    assert pair.sidecar.metrics()["forebay_response_errors_total", "Produce"] == 5


def test_errors_of_fetch_are_counted(pair: Pair) -> None:
    with RawClient(pair.through) as client:
        reader = RawReader(client, create_topic(pair.direct), offset=999)
        with pytest.raises(FetchFailed):
            reader.poll(10)
    wait_for(pair.sidecar, code("Fetch", "OFFSET_OUT_OF_RANGE"), 1)


def test_relayed_requests_are_counted_with_time_and_error(pair: Pair) -> None:
    def text(value: bytes) -> bytes:
        return len(value).to_bytes(2, "big") + value

    request = text(b"no-such-group") + (1).to_bytes(4, "big") + text(b"nobody")
    before = pair.sidecar.metrics().get(("forebay_relayed_request_seconds_count", "Heartbeat"), 0)
    with Raw(pair.through) as client:
        client.call(build_plain(HEARTBEAT, 1, request))
    wait_for(pair.sidecar, ("forebay_response_errors_total", "Heartbeat"), 1)
    count = pair.sidecar.metrics()["forebay_relayed_request_seconds_count", "Heartbeat"]
    assert count == before + 1


def test_sign_ins_are_counted_by_mechanism_and_outcome(signed_broker: SignedBroker) -> None:
    name = "forebay_authentications_total"
    with start_signed(signed_broker, {"size": "16MiB"}) as signed:
        with Raw(signed.sidecar.bootstrap) as client:
            assert sign_in_plain(client, "admin", "wrong").error_code
        wait_for(signed.sidecar, (name, "refused", "PLAIN"), 1)
        with Raw(signed.sidecar.bootstrap) as client:
            assert not sign_in_plain(client, "admin", USERS["admin"]).error_code
        wait_for(signed.sidecar, (name, "accepted", "PLAIN"), 1)
        metrics = signed.sidecar.metrics()
        assert metrics[name, "refused", "PLAIN"] == 1
        wait_for(
            signed.sidecar,
            code("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED"),
            1,
        )
