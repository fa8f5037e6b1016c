"""Everything that all tests share: the session's real broker, its logs beside a failure, the order of tests.

Owns the fixtures `proxied` and `broker` (one Kafka a worker, which most files share) and `proxied_39`, the marker
`e2e` of tests that use Spark, and the order: end-to-end tests first, the longest files before all, so that the workers
end together. A test file stays on one worker (--dist loadfile), as do the files that share Spark, Kafka 3.9 or a broker
with credentials; a worker thus has the session's broker and its file's own.
"""

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.kit.broker.jars import KAFKA_3
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

DESCRIPTORS, MANY_DESCRIPTORS = Path("/proc/self/fd"), 512
SPARK = "tests/spark_audit/"
KAFKA_39 = (
    "tests/e2e/test_clients.py",
    "tests/e2e/test_exactly_once.py",
    "tests/e2e/test_unread_fetch.py",
)
SIGNED = (
    "tests/e2e/test_bogus_names.py",
    "tests/e2e/test_error_counts.py",
    "tests/e2e/test_doctor.py",
    "tests/e2e/test_own_link_rights.py",
)
TOGETHER = {SPARK: (SPARK,), "Kafka 3.9": KAFKA_39, "signed": SIGNED}
"""Files that run on the same worker: what they share starts once."""
LONGEST = (
    SPARK,
    "tests/chaos/test_chaos.py",
    "tests/bench/test_demo.py",
    "tests/e2e/test_unclean_election.py",
    "tests/e2e/test_lane.py",
    "tests/e2e/test_hot_partitions.py",
    "tests/e2e/test_isolation_refusals.py",
    "tests/e2e/test_throttle.py",
    "tests/fuzz/test_hostile.py",
    "tests/chaos/test_hostile.py",
    "tests/bench/ladder/test_growth.py",
    "tests/e2e/test_exactly_once.py",
    "tests/matrix/",
    "tests/e2e/test_warm_restart.py",
    "tests/e2e/test_recreated_topic.py",
    "tests/e2e/test_invalidation.py",
    "tests/e2e/test_log_cleaning.py",
    "tests/e2e/test_read_committed.py",
    "tests/e2e/test_reload.py",
    "tests/fuzz/test_whole_stack.py",
    "tests/e2e/test_newer_protocols.py",
    "tests/e2e/test_own_link_rights.py",
    "tests/e2e/test_differential.py",
    "tests/kit/broker/test_kafka.py",
)
"""Run first, in this order: what takes long and begins late keeps one worker busy after the others have ended."""
settings.register_profile("forebay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("forebay")


@pytest.fixture(scope="session")
def proxied() -> "Iterator[ProxiedBroker]":
    """A single-node Kafka 4 for Pair(shared=...). A test that stops its broker starts its own;
    one that stalls it wakes it in the end."""
    with ProxiedBroker() as running:
        yield running


@pytest.fixture(scope="session")
def proxied_39() -> "Iterator[ProxiedBroker]":
    """The same of Kafka 3.9, for the files KAFKA_39."""
    with ProxiedBroker({"version": KAFKA_3}) as running:
        yield running


@pytest.fixture(scope="session")
def broker(proxied: ProxiedBroker) -> KafkaCluster:
    """Of `proxied`; topics are the test's own (tests.kit.broker.topics)."""
    return proxied.cluster


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> "Generator[None, object, object]":
    """What is imported and collected stays to the end: it is neither searched for garbage meanwhile nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(
            item, "fixturenames", ()
        ):  # asked for by the test or by a fixture of its
            item.add_marker(pytest.mark.e2e)
    items.sort(key=lambda item: (item.get_closest_marker("e2e") is None, find_rank(item.nodeid)))


def find_rank(node_id: str) -> int:
    """The place among LONGEST; behind them for all others."""
    ranks = (rank for rank, place in enumerate(LONGEST) if node_id.startswith(place))
    return next(ranks, len(LONGEST))


class LoadTogether(LoadFileScheduling):
    """xdist's own scheduling by file, but the files of TOGETHER are as one."""

    def _split_scope(self, nodeid: str) -> str:
        for name, places in TOGETHER.items():
            if any(place in nodeid for place in places):
                return name
        return super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return LoadTogether(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let go of what tests have left in cycles once it holds many descriptors, as arenas do: a later test's `select`
    takes none above 1,023.
    """
    if len(list(DESCRIPTORS.iterdir())) > MANY_DESCRIPTORS:
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> "Generator[None, Any, Any]":
    """A failed test shows the end of the logs of the brokers it was given."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Pair):
                value = value.broker
            if isinstance(value, KafkaCluster):
                report.sections.append((f"log of {name}", value.log_tail()))
    return report
