"""Signals to a Forebay of several workers, before a real broker: SIGUSR2, SIGHUP, SIGTERM.

Clients are at work meanwhile: no acknowledged record is lost, no delivery fails, and what memory serves is compared.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_supervisor import LASTING, VERIFIED, at_work
from tests.e2e.test_upgrade import list_workers
from tests.e2e.test_warm_restart import check_verified, count, wait_until
from tests.e2e.test_workers import attached
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

WORKERS = 2
CLIENTS = 4
"""Producers, and as many consumers."""


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    settings = {**VERIFIED, "supervisor": PATIENT_SUPERVISOR | LASTING, "workers": WORKERS}
    with Pair(shared=proxied, settings=settings) as running:
        wait_until("all are attached", lambda: attached(running) == WORKERS)
        yield running


def count_or_none(pair: Pair, name: str, *labels: str) -> float:
    """-1 while nobody answers."""
    try:
        return count(pair, name, *labels)
    except OSError:
        return -1


def count_restarts(pair: Pair) -> float:
    names = "forebay_worker_restarts_total", "forebay_keeper_restarts_total"
    return sum(
        count(pair, name, one) for name in names for one in ("exit", "signal", "hung", "oom")
    )


def test_clients_work_through_an_upgrade_of_all(pair: Pair) -> None:
    """Every process is another one then, and the arena is the same."""
    former = set(list_workers(pair.sidecar))
    assert len(former) == WORKERS + 1
    with ExitStack() as stack:
        clients = [stack.enter_context(at_work(pair)) for _ in range(CLIENTS)]
        os.kill(pair.sidecar.pid, signal.SIGUSR2)
        wait_until(
            f"the upgrade is done:\n{pair.sidecar.log_tail()}",
            lambda: count_or_none(pair, "forebay_upgrades_total", "done") == 1,
        )
        wait_until("the former end", lambda: not former & set(list_workers(pair.sidecar)))
        wait_until("all are attached", lambda: attached(pair) == WORKERS)
        wait_until(
            "the arena is taken over",
            lambda: count(pair, "forebay_cache_takeovers_total", "taken-over") == 1,
        )
        for writer, reader in clients:
            writer.wait_for_more()
            reader.wait_for_more()
        assert pair.sidecar.is_ready()
    assert count_restarts(pair) == 0
    assert count(pair, "forebay_workers") == WORKERS
    check_verified(pair)
    assert pair.sidecar.stop() == 0
    assert "Traceback" not in pair.sidecar.log_path.read_text()


def test_a_scrape_tells_what_each_process_uses(pair: Pair) -> None:
    processes = ("keeper", "worker-1", "worker-2")
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds"):
        assert all(count(pair, f"forebay_process_{name}", one) > 0 for one in processes)
    boots = [labels for name, *labels in pair.sidecar.metrics() if name == "forebay_boot_info"]
    assert len(boots) == WORKERS + 1


def test_a_reload_reaches_every_process(pair: Pair) -> None:
    with at_work(pair) as (writer, reader):
        os.kill(pair.sidecar.pid, signal.SIGHUP)
        log = pair.sidecar.log_path
        wait_until(
            "all have reloaded",
            lambda: log.read_text().count("the configuration was reloaded") == WORKERS + 1,
        )
        writer.wait_for_more()
        reader.wait_for_more()
    assert count(pair, "forebay_config_last_reload_success") == 1


def test_all_end_in_order(pair: Pair) -> None:
    with at_work(pair) as (writer, reader):
        writer.wait_for_more()
        reader.wait_for_more()
    assert pair.sidecar.stop() == 0
    log = pair.sidecar.log_path.read_text()
    assert len(re.findall(r"\bstopped\b", log)) == WORKERS + 1
    assert "Traceback" not in log
