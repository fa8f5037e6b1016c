"""A broker that is frozen answers nothing and closes nothing: Forebay says so, and is ready again when it goes on.

Owns one pair. Must not know how Forebay finds out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
