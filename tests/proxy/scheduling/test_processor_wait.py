"""The processors' slowdown of this process, from the kernel's own figures."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from proxy.scheduling.processor_wait import LEAST_RUN_NS, SCHEDSTAT, ProcessorWait
from tests.proxy.played_scheduler import make_broker

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def test_slowdown_is_waiting_and_running_over_running(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text(f"{100 * MS} {50 * MS} 7\n")
    wait = ProcessorWait(path)
    path.write_text(f"{110 * MS} {80 * MS} 9\n")
    assert wait.measure() == wait.slowdown == pytest.approx(4.0)
    path.write_text(f"{120 * MS} {80 * MS} 11\n")
    assert wait.measure() == 1.0


def test_a_thread_that_hardly_ran_keeps_its_slowdown(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("0 0 0\n")
    wait = ProcessorWait(path)
    path.write_text(f"{LEAST_RUN_NS} {LEAST_RUN_NS} 1\n")
    assert wait.measure() == 2.0
    path.write_text(f"{2 * LEAST_RUN_NS - 1} {9 * LEAST_RUN_NS} 2\n")
    assert wait.measure() == 2.0


@pytest.mark.parametrize("text", [None, "", "one two three\n", "0 0 0\n"])
def test_without_statistics_nothing_is_slowed_down(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    assert ProcessorWait(path).measure() == 1.0


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel keeps no scheduler statistics")
def test_the_kernels_figures_are_of_the_calling_thread() -> None:
    measured = []

    def measure() -> None:
        wait = ProcessorWait()
        sum(range(2_000_000))
        wait.measure()
        measured.append((wait.slowdown, wait._run_ns))

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    slowdown, run_ns = measured[0]
    assert slowdown >= 1.0
    assert run_ns > LEAST_RUN_NS


def test_the_scheduler_tells_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker(monkeypatch)
    monkeypatch.setattr(broker.scheduler.processor_wait, "measure", lambda: 7.0)
    broker.scheduler.tick(broker.now())
    assert broker.scheduler._peers.slowdown_beside("a limit", broker.now()) == 7.0
