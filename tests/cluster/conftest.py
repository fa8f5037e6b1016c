"""The cluster that all tests here share. [process]

Owns the fixture `cluster`: one for the session, which ends with it; a cluster that `python -m tests.cluster up` started
is used, and stays. Without root, namespaces or overlays all tests are skipped with that reason.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.__main__ import fill_cache, load_images, start_loaded
from tests.cluster.clients import RESULTS
from tests.cluster.cluster import Cluster, find_obstacle
from tests.cluster.layout import State

HEAD = (
    "| scenario | acknowledged | failed | duplicates | slowest acknowledgement, s | "
    "longest pause of the producer, s | of the group, s | warnings of the clients |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with a node and all images."""
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(f"no cluster: {obstacle}")
    fill_cache()
    running = Cluster(State.default())
    if running.is_up:
        load_images(running)
        yield running
        return
    running.down()
    start_loaded(running)
    yield running
    running.down()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what clients saw, as the documents have it."""
    if RESULTS:
        terminalreporter.write_line("\n".join([HEAD, *(seen.format_row() for seen in RESULTS)]))
