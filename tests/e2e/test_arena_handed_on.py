"""A worker is killed under load, and the next one serves what it held: the arena is the supervisor's.

Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1). The broker is shared.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_invalidation import hit_bytes
from tests.e2e.test_supervisor import LASTING, at_work, restarts
from tests.e2e.test_throttle import produce
from tests.e2e.test_warm_restart import check_verified, count, tail, wait_until
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, PATIENT_SUPERVISOR, Pair, ProxiedBroker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

KILLS = 3
HELD_RECORDS = 3000
"""Of 1 KB each."""
OUTCOMES = ("taken-over", "unfinished", "damaged")


def fill(pair: Pair) -> tuple[str, int]:
    """A topic of which memory holds the records from some offset on; that offset."""
    topic = create_topic(pair.direct)
    start = tail(pair, topic)
    produce(pair.through, topic, 0, HELD_RECORDS)
    return topic, start


def kill_worker(pair: Pair, reason_count: int) -> str:
    """What the next worker has decided about the memory of the killed one."""
    os.kill(pair.sidecar.worker_pid, signal.SIGKILL)
    wait_until("it is replaced", lambda: restarts(pair.sidecar, "signal") == reason_count)
    wait_until("the next worker", pair.sidecar.is_ready)
    decided: list[str] = []

    def has_decided() -> bool:
        decided[:] = [
            one for one in OUTCOMES if count(pair, "forebay_cache_takeovers_total", one) == 1
        ]
        return bool(decided)

    wait_until("it has decided", has_decided)
    return decided[0]


def read_hits(pair: Pair, topic: str, start: int, direct: bytes) -> float:
    """Read the records once more, which are `direct`; the share of them that memory has served."""
    before = hit_bytes(pair)
    with RawClient(pair.through) as client:
        through = RawReader(client, topic, offset=start).read_to(start + HELD_RECORDS)
    assert through == direct, explain(through, direct)
    return (hit_bytes(pair) - before) / len(direct)


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "anonymous memory"])
def test_a_killed_worker_s_memory_is_served_by_the_next(
    proxied: ProxiedBroker, tmp_path: Path, is_file: bool
) -> None:
    """Whatever the moment of the kill, what is read afterwards is the broker's. `cache.keepArena` is unset."""
    directory = str(tmp_path) if is_file else ""
    cache = {**PATIENT_CACHE, "verifyRatio": 1.0, "directory": directory}
    at_once = {"crashWindow": "1s"}
    settings = {"cache": cache, "supervisor": PATIENT_SUPERVISOR | LASTING | at_once}
    outcomes = []
    with Pair(shared=proxied, settings=settings) as pair:
        with at_work(pair) as (writer, reader):
            for kill in range(1, KILLS + 1):
                topic, start = fill(pair)
                outcomes.append(kill_worker(pair, kill))
                direct = bytes(read_all(pair.direct, topic, start=start))
                read_hits(pair, topic, start, direct)
                if outcomes[-1] == "taken-over":  # the first answer may show the connection's right
                    wait_until(
                        "memory serves what the killed worker held",
                        lambda: read_hits(pair, topic, start, direct) > 0.5,  # noqa: B023
                    )
                check_verified(pair)
                writer.wait_for_more()
                reader.wait_for_more()
        assert "taken-over" in outcomes, outcomes
        assert bool(list(tmp_path.iterdir())) == is_file
        assert pair.sidecar.stop() == 0
    assert not list(tmp_path.iterdir()), "the supervisor removes its file"
