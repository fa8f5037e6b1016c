"""Upgrades that do not come to their end, without a broker: a successor waits for one, and accepts nobody."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.proxy.forebay_process import PATIENCE_S, Alone, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Upgrading(Alone):
    """Forebay, and its log at `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            super().__init__(file.fileno())

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def list_workers(self) -> list[int]:
        found = []
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for child in map(int, children.split()):
            with contextlib.suppress(OSError):
                if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    found.append(child)
        return found

    def begin(self) -> tuple[int, int]:
        """Begin an upgrade; the former worker and the one that waits for the broker."""
        (former,) = self.list_workers()
        self.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: self.says("looking at what an earlier process left"))
        (successor,) = set(self.list_workers()) - {former}
        return former, successor

    def count(self, outcome: str) -> bool:
        with contextlib.suppress(OSError):
            return f'forebay_upgrades_total{{upgrade="{outcome}"}} 1' in self.ask("/metrics")
        return False


@pytest.fixture
def forebay(tmp_path: Path) -> Iterator[Upgrading]:
    with Upgrading(tmp_path / "log") as running:
        yield running


def test_a_former_worker_that_ends_meanwhile_is_replaced_as_ever(forebay: Upgrading) -> None:
    former, successor = forebay.begin()
    os.kill(former, signal.SIGKILL)
    wait_until(lambda: forebay.says("the former worker goes on: the worker ended meanwhile"))
    wait_until(lambda: not {former, successor} & set(forebay.list_workers()))
    wait_until(forebay.is_started)
    wait_until(lambda: forebay.count("failed"))
    assert len(forebay.list_workers()) == 1


def test_a_signal_ends_both_workers(forebay: Upgrading) -> None:
    forebay.begin()
    forebay.process.send_signal(signal.SIGTERM)
    assert forebay.process.wait(PATIENCE_S) == 0
    assert not forebay.arena.exists()
    assert forebay.says("the upgrade failed, the former worker goes on: Forebay is stopping")


def test_a_successor_has_a_time_to_come_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One upgrade at a time."""
    monkeypatch.setenv("FOREBAY_SUPERVISOR_START_TIMEOUT", "15s")
    with Upgrading(tmp_path / "log") as forebay:
        former, _ = forebay.begin()
        forebay.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: forebay.says("ignoring SIGUSR2: an upgrade is under way"))
        wait_until(lambda: forebay.says("the new worker does not accept clients after 15 s"))
        wait_until(lambda: forebay.list_workers() == [former])
        assert forebay.is_started() and forebay.count("failed")
