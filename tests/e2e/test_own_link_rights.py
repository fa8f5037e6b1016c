"""Forebay's own principal is refused a topic, and later is not: it asks for itself again.

The broker wants credentials, Forebay has some, and its clients others. While Forebay may not read a topic its waiting
clients' links carry the watch; when it may, its own do, and the topic is among the watched partitions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.e2e.signed import Signed, SignedBroker, start_signed
from tests.e2e.test_security import TIMEOUT_S, sign_in, tail
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
POLL_S = 0.1
READ_S = 1.0
"""Between two readings of the topic: it stays one that somebody reads."""


@pytest.fixture(scope="module")
def signed(signed_broker: SignedBroker) -> Iterator[Signed]:
    with start_signed(signed_broker, PATIENT_CACHE | {"authorizeEvery": "2s"}) as running:
        yield running


def grant(signed: Signed, topic: str, operation: AclOperation) -> None:
    """Alice, who is Forebay, may do that."""
    what = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*", operation)
    admin = AdminClient({"bootstrap.servers": signed.broker.direct})
    for done in admin.create_acls([AclBinding(*what, AclPermissionType.ALLOW)]).values():
        done.result(TIMEOUT_S)


def watched(signed: Signed) -> float:
    """Partitions that polls of Forebay's own follow."""
    return signed.sidecar.metrics()["forebay_watch_partitions",]


def tail_once(signed: Signed, topic: str) -> float:
    """Some records, written and read through Forebay by a client that may; bytes from memory."""
    return tail(signed.sidecar, signed.sidecar.bootstrap, topic, sign_in("PLAIN"))


def test_a_right_that_is_given_later_is_used(signed: Signed) -> None:
    """Until then clients' links serve the topic from memory, too; from then on Forebay's own does."""
    topic = create_topic(signed.broker.direct)
    grant(signed, topic, AclOperation.DESCRIBE)
    assert tail_once(signed, topic) > 0, "a waiting client's own link carries the watch"
    deadline = time.monotonic() + PATIENCE_S
    while watched(signed):
        assert time.monotonic() < deadline, "a topic that nobody reads is still watched"
        time.sleep(POLL_S)
    grant(signed, topic, AclOperation.READ)
    deadline = time.monotonic() + PATIENCE_S
    while not watched(signed):
        assert time.monotonic() < deadline, (
            "Forebay may read the topic, and still does not ask for itself"
        )
        tail_once(signed, topic)
        time.sleep(READ_S)


def test_a_right_that_is_given_before_is_used_at_once(signed: Signed) -> None:
    """So the count of watched partitions tells them apart."""
    topic = create_topic(signed.broker.direct)
    grant(signed, topic, AclOperation.DESCRIBE)
    grant(signed, topic, AclOperation.READ)
    assert tail_once(signed, topic) > 0
    assert watched(signed) > 0
