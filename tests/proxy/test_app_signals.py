"""Signals of process managers, terminals and log rotators: each ends Forebay in order, or not at all."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.proxy.forebay_process import PATIENCE_S, Alone, wait_until


@pytest.fixture
def forebay(tmp_path: Path) -> Iterator[tuple[Alone, Path]]:
    path = tmp_path / "log"
    with path.open("wb") as log, Alone(log.fileno()) as running:
        yield running, path


def is_said(log: Path, text: str) -> bool:
    return text in log.read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda one: one.name
)
def test_only_ending_signals_stop_the_process(
    forebay: tuple[Alone, Path], number: signal.Signals
) -> None:
    """Others have another meaning elsewhere."""
    running, path = forebay
    running.process.send_signal(signal.SIGHUP)
    wait_until(partial(is_said, path, '"message":"the configuration was reloaded"'))
    running.process.send_signal(signal.SIGUSR1)
    wait_until(partial(is_said, path, '"signal":"SIGUSR1"'))
    assert running.is_alive()
    assert running.arena.exists()
    running.process.send_signal(number)
    assert running.process.wait(PATIENCE_S) == 0
    assert not running.arena.exists()
    assert '"message":"stopped"' in path.read_text()
