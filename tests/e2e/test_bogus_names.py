"""Topic names that nobody can explain: the broker is hardly asked about them, whoever names them.

Owns one broker that wants credentials, and one that does not, each with a Forebay. What is counted is Metadata under
Forebay's own principal (`forebay_topic_questions_total`).
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from protocol import fetch
from protocol.fetch_build import build_request
from proxy.replica_fetcher.topic_metadata import RETRY_EVERY_S
from tests.e2e.raw_frames import FETCH_VERSION, Raw
from tests.e2e.signed import Signed, SignedBroker, start_signed
from tests.e2e.test_security import TIMEOUT_S, sign_in, tail_until_hit
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

NAMES = 10_000
TOPICS = 10
WATCHED_S = 3.0


@pytest.fixture(scope="module")
def signed(signed_broker: SignedBroker) -> Iterator[Signed]:
    with start_signed(signed_broker, PATIENT_CACHE) as running:
        yield running


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def questions(sidecar: Sidecar, way: str = "own") -> float:
    return sidecar.metrics()["forebay_topic_questions_total", way]


def build_bogus(names: int) -> bytes:
    asked = [fetch.FetchPartition(f"bogus-{n}", 0, -1, 0, -1, -1, 1000) for n in range(names)]
    return build_request(
        FETCH_VERSION,
        1,
        "bogus",
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=asked,
    )


def test_who_has_not_signed_in_asks_nothing_by_way_of_forebay(signed: Signed) -> None:
    before = questions(signed.sidecar)
    with Raw(signed.sidecar.bootstrap) as client:
        client.send(build_bogus(NAMES))
        assert client.ends(), "a broker closes who does not sign in"
    time.sleep(RETRY_EVERY_S)
    assert questions(signed.sidecar) == before
    assert signed.sidecar.metrics()["forebay_queue_depth", "topic_lookup"] == 0


def test_names_that_the_broker_does_not_know_are_not_asked_about(pair: Pair) -> None:
    before = questions(pair.sidecar)
    with Raw(pair.through) as client:
        for _ in range(3):
            answer = fetch.scan_response(client.call(build_bogus(NAMES)), FETCH_VERSION)
            assert len(answer.partitions) == NAMES
            assert all(one.error_code for one in answer.partitions)
    time.sleep(RETRY_EVERY_S)
    assert questions(pair.sidecar) == before


@pytest.mark.parametrize("version", [11, 13], ids=["by-name", "by-id"])
def test_deleted_topics_that_are_still_read_cost_a_question_a_second_at_most(
    pair: Pair, version: int
) -> None:
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(TOPICS):
            topic = create_topic(pair.direct)
            client = stack.enter_context(RawClient(pair.through))
            client.produce(topic, batch_v2(1))
            readers.append(RawReader(client, topic, version=version).settle(polls=3))
        admin = AdminClient({"bootstrap.servers": pair.direct})
        for done in admin.delete_topics([reader.topic.name for reader in readers]).values():
            done.result(TIMEOUT_S)
        for reader in readers:
            while not is_refused(reader):
                pass
        began, before = time.monotonic(), questions(pair.sidecar)
        while time.monotonic() - began < WATCHED_S:
            for reader in readers:
                is_refused(reader)
        asked, took_s = questions(pair.sidecar) - before, time.monotonic() - began
    assert asked <= 1 + took_s / RETRY_EVERY_S


def is_refused(reader: RawReader) -> bool:
    try:
        reader.poll()
    except FetchFailed:
        return True
    return False


def test_topics_that_forebay_may_not_describe_are_served_and_hardly_asked_about(
    signed: Signed,
) -> None:
    """The client that reads them asks for them, once each; afterwards nothing asks."""
    topics = [create_topic(signed.broker.direct) for _ in range(TOPICS)]
    before = questions(signed.sidecar), questions(signed.sidecar, "client")
    began = time.monotonic()
    for topic in topics:
        tail_until_hit(signed.sidecar, signed.sidecar.bootstrap, topic, sign_in("PLAIN"))
    own, client = (
        questions(signed.sidecar) - before[0],
        questions(signed.sidecar, "client") - before[1],
    )
    took_s = time.monotonic() - began
    assert client >= TOPICS
    assert own <= 2 * TOPICS + took_s / RETRY_EVERY_S, (
        "each by name and by id, and then one in a second"
    )
    assert client <= 2 * TOPICS + took_s / RETRY_EVERY_S
