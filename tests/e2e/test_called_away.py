"""A parked Fetch that a control request behind it calls away, while the watch has not yet shown what was acknowledged.

Owns that moment: librdkafka's consumers send heartbeats and commits on the connection of their fetches where the
coordinator is that broker. Invariants: what was acknowledged before is in the answer; memory gives it where the
watch is a little late, the broker where it does not come.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.raw_frames import (
    Raw,
    build_fetch,
    build_metadata,
    build_produce,
    fetched,
    read_batch,
    warm_up,
)
from tests.e2e.slow_broker import SlowPair
from tests.kit.broker.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.sidecar import ProxiedBroker

pytestmark = pytest.mark.e2e

ROUNDS = 8
PATIENCE_S = 60.0
SETTLE_S = 0.3
PROOF_WAIT_S = 0.1
"""As in proxy/fetch/delayed_fetch.py."""
CACHE = {"size": "64MiB", "confirmEvery": "3s"}
"""A lease that outlasts the moments of a busy machine."""
OWN_RIGHTS = {"principals": 0}
"""Each connection asks for its own: none has the right of the one beside it."""
UNPROVEN = ("miss", "unproven")


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[SlowPair]:
    with SlowPair(proxied, {"cache": CACHE, "limits": OWN_RIGHTS}) as running:
        yield running


def wait_until_waiting(pair: SlowPair, forwarded_before: int) -> None:
    """Until the reader's Fetch waits in Forebay; or at the broker, if the watch was late for `cache.holeWait`."""
    deadline = time.monotonic() + PATIENCE_S
    while pair.slow.client_fetches == forwarded_before:
        if pair.sidecar.metrics()["forebay_parked_fetches",]:
            return
        assert time.monotonic() < deadline, "the Fetch waits nowhere"
        time.sleep(0.005)


def count_unproven(pair: SlowPair, late_s: float) -> int:
    """Misses of a tail that is called away ROUNDS times, each time right behind an acknowledgement."""
    topic = create_topic(pair.direct)
    batch = read_batch(pair)
    with Raw(pair.through) as reader, Raw(pair.through) as writer:
        warm_up(pair.sidecar, reader, topic)
        before = pair.sidecar.fetch_counts("bytes").get(UNPROVEN, 0)
        pair.slow.watch_delay_s = late_s
        for offset in range(ROUNDS):
            forwarded = pair.slow.client_fetches
            reader.send(build_fetch(topic, offset, round(3 * PATIENCE_S * 1000)))
            wait_until_waiting(pair, forwarded)
            writer.call(build_produce(topic, batch, -1))
            reader.send(build_metadata())
            found = fetched(reader.take())
            assert found.end > found.start, f"nothing at {offset}"
            reader.take()
        pair.slow.watch_delay_s = 0.0
    return int(pair.sidecar.fetch_counts("bytes").get(UNPROVEN, 0) - before) // len(batch)


def test_what_the_watch_is_about_to_show_is_not_read_from_the_broker(pair: SlowPair) -> None:
    """But where this machine itself takes longer, so that it is tried again: without the wait it was each time."""
    deadline = time.monotonic() + PATIENCE_S
    while (unproven := count_unproven(pair, PROOF_WAIT_S / 4)) >= ROUNDS / 2:
        assert time.monotonic() < deadline, unproven


def test_a_watch_that_does_not_come_is_not_waited_for(pair: SlowPair) -> None:
    assert count_unproven(pair, 5 * PROOF_WAIT_S) > 0


@pytest.mark.parametrize("finishes", [True, False])
def test_a_fetch_that_was_called_away_before_it_could_wait_does_not_wait(
    pair: SlowPair, finishes: bool
) -> None:
    """While a new connection's right is asked for, its client says that it is done, or that something cannot wait."""
    topic = create_topic(pair.direct)
    with Raw(pair.through) as other, Raw(pair.through) as reader:
        warm_up(pair.sidecar, other, topic)
        other.call(build_produce(topic, read_batch(pair), -1))
        assert fetched(other.call(build_fetch(topic, 0, 1000))).end > 0
        before = count_proofs(pair)
        reader.call(build_metadata())  # it has its link to the broker
        pair.broker.stall()
        try:
            reader.send(build_fetch(topic, 0, round(10 * PATIENCE_S * 1000), least_bytes=1 << 19))
            deadline = time.monotonic() + PATIENCE_S
            while count_proofs(pair) == before and time.monotonic() < deadline:
                time.sleep(0.005)
            if finishes:
                reader.socket.shutdown(socket.SHUT_WR)
            else:
                reader.send(build_metadata())
            time.sleep(SETTLE_S)
        finally:
            pair.broker.wake()
        assert count_proofs(pair) == before + 1
        reader.socket.settimeout(PATIENCE_S)
        found = fetched(reader.take())
        assert found.end > found.start
        assert reader.ends() if finishes else reader.take()


def count_proofs(pair: SlowPair) -> float:
    return pair.sidecar.metrics()["forebay_authorization_proofs_total",]
