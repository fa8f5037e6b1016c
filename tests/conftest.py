"""Everything that all tests share: the session's real broker, its logs beside a failure, the order of tests.

Owns the fixture `broker` (one Kafka per worker, plain text, no Forebay in front), the marker `e2e` of tests that use
Spark, and the order: end-to-end tests first, then Spark's, so that the last worker is not left with a long test. A test
file stays on one worker (--dist loadfile), all tests that need Spark on the same worker; a worker thus has the
session's broker and its file's own.
"""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.kit.broker.kafka import KafkaBroker, KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SPARK = "tests/spark_audit/"
settings.register_profile("forebay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("forebay")


@pytest.fixture(scope="session")
def broker() -> "Iterator[KafkaCluster]":
    """A single-node Kafka 4; topics are the test's own (tests.kit.broker.topics)."""
    with KafkaBroker() as running:
        yield running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(
            item, "fixturenames", ()
        ):  # asked for by the test or by a fixture of its
            item.add_marker(pytest.mark.e2e)
    items.sort(key=lambda item: (item.get_closest_marker("e2e") is None, SPARK not in item.nodeid))


class SparkOnOneWorker(LoadFileScheduling):
    """xdist's own scheduling by file, but Spark starts once."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if SPARK in nodeid else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return SparkOnOneWorker(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Generator[None, Any, Any]":
    """A failed test shows the end of the logs of the brokers it was given."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, KafkaCluster):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report
