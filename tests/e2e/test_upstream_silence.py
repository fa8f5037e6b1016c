"""A broker that is frozen answers nothing and closes nothing: Forebay says so, and is ready again when it goes on.

Owns one pair. Must not know how Forebay finds out.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker, refuse_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

TIMEOUT_S = 2.0
PATIENCE_S = 60.0


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"limits": {"upstreamTimeout": f"{TIMEOUT_S:g}s"}}, shared=proxied) as pair:
        yield pair


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def silent_s(pair: Pair) -> float:
    return pair.sidecar.metrics()["forebay_upstream_silent_seconds",]


def test_a_frozen_broker_is_noticed(pair: Pair) -> None:
    log = pair.sidecar.log_path
    wait_for(lambda: " ready" in log.read_text())
    pair.broker.stall()
    try:
        wait_for(lambda: not pair.sidecar.is_ready())
        assert silent_s(pair) >= TIMEOUT_S
        wait_for(lambda: "not ready: the broker" in log.read_text())
        assert "has not answered for 2 s" in log.read_text()
        assert "upstreamCredentials" not in log.read_text()
    finally:
        pair.broker.wake()
    wait_for(pair.sidecar.is_ready)
    wait_for(lambda: silent_s(pair) < TIMEOUT_S)
    assert "answers again" in log.read_text()


def test_a_frozen_broker_is_noticed_while_clients_are_piped(
    proxied: ProxiedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel still accepts connections: only an answer shows that it lives."""
    refusal = refuse_workers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {
        "limits": {"upstreamTimeout": f"{TIMEOUT_S:g}s"},
        "supervisor": PATIENT_SUPERVISOR | {"crashLimit": 1},
    }
    with Pair(shared=proxied, settings=settings) as piped:
        sidecar = piped.sidecar
        refusal.touch()
        sidecar.signal_worker(signal.SIGSEGV)
        wait_for(lambda: read_fallback(piped) == 1 and sidecar.is_ready())
        piped.broker.stall()
        try:
            wait_for(lambda: not sidecar.is_ready())
            assert sidecar.admin("/livez") == "alive\n"
            assert read_fallback(piped) == 1
        finally:
            piped.broker.wake()
        wait_for(sidecar.is_ready)


def read_fallback(pair: Pair) -> float:
    try:
        return pair.sidecar.metrics()["forebay_fallback",]
    except OSError:
        return -1.0
