"""Upgrade in place (SIGUSR2): another worker takes sockets, clients and arena; clients connect anew, and no more.

Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1). The broker is shared.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_supervisor import LASTING, VERIFIED, at_work, mismatches
from tests.e2e.test_warm_restart import check_verified, count, wait_until
from tests.kit.sidecar import (
    PATIENT_SUPERVISOR,
    Pair,
    ProxiedBroker,
    Sidecar,
    find_worker,
    refuse_workers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

CLIENTS = 8
"""Producers, and as many consumers."""


@pytest.fixture
def pair(proxied: ProxiedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {**VERIFIED, "supervisor": PATIENT_SUPERVISOR | LASTING}
    with Pair(shared=proxied, settings=settings) as running:
        yield running


def wait_for_upgrade(sidecar: Sidecar, former: int, outcome: str = "done") -> None:
    """Until the upgrade is over, and one worker is left."""
    wait_until(
        f"the upgrade is {outcome}:\n{sidecar.log_tail()}",
        lambda: sidecar.metrics()["forebay_upgrades_total", outcome] == 1,
    )
    has_ended = outcome == "done"
    wait_until("the former ends", lambda: Path(f"/proc/{former}").exists() != has_ended)


def count_read(sidecar: Sidecar) -> tuple[float, float]:
    """Bytes that were read from memory, and all."""
    counts = sidecar.fetch_counts()
    return sum(size for (result, _), size in counts.items() if result == "hit"), sum(
        counts.values()
    )


def test_clients_work_through_an_upgrade(pair: Pair) -> None:
    """No acknowledged record is lost, no delivery fails, and memory serves what it held."""
    sidecar = pair.sidecar
    with ExitStack() as stack:
        clients = [stack.enter_context(at_work(pair)) for _ in range(CLIENTS)]
        former = sidecar.worker_pid
        os.kill(sidecar.pid, signal.SIGUSR2)
        wait_for_upgrade(sidecar, former)
        assert find_worker(sidecar.pid) not in (None, former)
        assert sidecar.is_ready()
        wait_until(
            "the arena is taken over",
            lambda: count(pair, "forebay_cache_takeovers_total", "taken-over") == 1,
        )
        wait_until(
            "all are proven",
            lambda: count(pair, "forebay_cache_taken_over_partitions_total") >= CLIENTS,
        )
        for writer, reader in clients:
            writer.wait_for_more()
            reader.wait_for_more()  # each connection has shown its right
        hits, all_bytes = count_read(sidecar)
        for writer, reader in clients:
            writer.wait_for_more()
            reader.wait_for_more()
        more_hits, more_bytes = count_read(sidecar)
        assert more_hits - hits > 0.95 * (more_bytes - all_bytes) > 0, sidecar.fetch_counts()
    assert count(pair, "forebay_worker_restarts_total", "exit") == 0
    check_verified(pair)
    assert sidecar.stop() == 0
    assert "Traceback" not in sidecar.log_path.read_text()


def test_a_successor_that_does_not_come_up_changes_nothing(pair: Pair, tmp_path: Path) -> None:
    sidecar = pair.sidecar
    with at_work(pair) as (writer, reader):
        former = sidecar.worker_pid
        refuse_workers(tmp_path).touch()
        os.kill(sidecar.pid, signal.SIGUSR2)
        wait_for_upgrade(sidecar, former, "failed")
        assert sidecar.worker_pid == former
        writer.wait_for_more()
        reader.wait_for_more()
        sidecar.wait_for_log(
            "the upgrade failed, the former worker goes on: the new worker ended: exit code 3"
        )
    assert mismatches(sidecar) == 0
