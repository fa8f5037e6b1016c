"""What all tests share: the session's real broker, its logs beside a failure, and who runs beside whom.

Owns the fixture `broker` (one Kafka per worker, plain text, no Forebay in front) and the order: end-to-end tests
first, so that their files, each on one worker (--dist loadfile), are not what the last worker is left with.
A worker thus has the session's broker and those of the file it is at.
"""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.broker.kafka import KafkaBroker, KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

settings.register_profile("forebay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("forebay")


@pytest.fixture(scope="session")
def broker() -> "Iterator[KafkaCluster]":
    """A single-node Kafka 4; topics are the test's own (tests.broker.topics)."""
    with KafkaBroker() as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Generator[None, Any, Any]":
    """A failed test shows the end of the logs of the brokers it was given."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, KafkaCluster):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report
