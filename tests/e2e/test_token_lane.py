"""History over the broker's second listener for clients that Forebay signs in by tokens: SCRAM users and certificates.

Owns a broker with ACLs and one Forebay. What lies in the topics was written past Forebay before it followed them, so
that it is history to it. Must not know how tokens are kept.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, ResourceType

from tests.e2e.certified import (
    PEOPLE,
    SCRAMS,
    Certified,
    let_create_tokens,
    start_certified,
    start_sidecar,
)
from tests.e2e.test_lane import read_history, write
from tests.e2e.test_security import open_consumer, refusal
from tests.kit.broker.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.sidecar import Sidecar

pytestmark = pytest.mark.e2e

COUNT = 2000
SMALL: dict[str, Any] = {
    "group.id": "unused",
    "enable.auto.commit": False,
    "fetch.message.max.bytes": 100_000,
    "queued.min.messages": 50,
    "fetch.wait.max.ms": 100,
}


class Laned(NamedTuple):
    """The broker, and a Forebay whose listeners SCRAM and REAUTH read history from the broker's listener SCRAM2."""

    certified: Certified
    sidecar: Sidecar

    def total(self, name: str) -> float:
        """`forebay_{name}_total`."""
        return self.sidecar.metrics()[f"forebay_{name}_total",]

    def history(self) -> str:
        """A topic with records that Forebay has not seen."""
        topic = create_topic(self.certified.broker.direct)
        write(self.certified.broker.direct, topic, COUNT)
        return topic

    def scram(self, mechanism: str) -> dict[str, Any]:
        """librdkafka's settings of alice."""
        return {
            "bootstrap.servers": self.certified.listen["SCRAM"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": PEOPLE["alice"],
        }


@pytest.fixture(scope="module")
def laned() -> Iterator[Laned]:
    with contextlib.ExitStack() as stack:
        certified = stack.enter_context(start_certified())
        let_create_tokens(certified)
        host, port = certified.broker.address("SCRAM2")
        second = {"catchUpUpstream": f"{host}:{port}"}
        entries = [
            certified.entry("SCRAM") | second,
            certified.certified_entry("REAUTH") | second,
        ]
        sidecar = stack.enter_context(start_sidecar(entries))
        yield Laned(certified, sidecar)


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_scram_users_read_history_over_the_second_link(laned: Laned, mechanism: str) -> None:
    topic = laned.history()
    laned.certified.allow("User:alice", topic)
    asked, lost = laned.total("lane_requests"), laned.total("lanes_lost")
    options = laned.scram(mechanism) | SMALL
    assert read_history(options, topic, COUNT) == list(range(COUNT))
    assert laned.total("lane_requests") > asked + 3
    assert laned.total("lanes_lost") == lost
    created = laned.sidecar.metrics()["forebay_delegation_tokens_total", "create"]
    assert created == 2, "one for the check, one for alice and both mechanisms"


def test_certificates_read_history_over_the_second_link(laned: Laned) -> None:
    topic = laned.history()
    laned.certified.allow("User:CN=reader", topic)
    asked, lost = laned.total("lane_requests"), laned.total("lanes_lost")
    options = laned.certified.client("reader", "REAUTH") | SMALL
    assert read_history(options, topic, COUNT) == list(range(COUNT))
    assert laned.total("lane_requests") > asked + 3
    assert laned.total("lanes_lost") == lost


def test_who_may_not_read_gets_nothing_of_history(laned: Laned) -> None:
    topic = laned.history()
    certified = laned.certified
    certified.change_acl("User:alice", ResourceType.GROUP, "*", AclOperation.READ, True)
    certified.change_acl(
        "User:alice", ResourceType.TOPIC, topic, AclOperation.DESCRIBE, True
    )  # as far as Fetch
    asked = laned.total("lane_requests")
    consumer = open_consumer(certified.listen["SCRAM"], topic, laned.scram(SCRAMS[0]) | SMALL)
    assert refusal(consumer).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    assert laned.total("lane_requests") == asked
