"""Several real workers and their keeper, without a broker: what they say, reload and leave behind."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.proxy.forebay_process import PATIENCE_S, Alone, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WORKERS = 2
PROCESSES = {"keeper", "worker-1", "worker-2"}


@pytest.fixture
def several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Alone, Callable[[str], int]]]:
    """The process, and how often its log has a message."""
    monkeypatch.setenv("FOREBAY_WORKERS", str(WORKERS))
    path = tmp_path / "log"

    def count(message: str) -> int:
        return path.read_text().count(f'"message":"{message}"')

    with path.open("wb") as log, Alone(log.fileno()) as running:
        wait_until(lambda: count("started") == WORKERS + 1)
        yield running, count


def test_they_reload_are_shown_as_one_and_end_in_order(
    several: tuple[Alone, Callable[[str], int]],
) -> None:
    forebay, count = several
    wait_until(lambda: forebay.metric("forebay_workers") == WORKERS)
    text = forebay.ask("/metrics")
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds"):
        shown = {one for one in PROCESSES if f'forebay_process_{name}{{process="{one}"}}' in text}
        assert "keeper" in shown, "workers are shown once the keeper has decided about the arena"
    assert text.count("forebay_boot_info{") == len(shown)
    forebay.process.send_signal(signal.SIGHUP)
    wait_until(lambda: count("the configuration was reloaded") == WORKERS + 1)
    assert forebay.arena.exists()
    forebay.process.terminate()
    assert forebay.process.wait(PATIENCE_S) == 0
    assert count("stopped") == WORKERS + 1
    assert not forebay.arena.exists()
