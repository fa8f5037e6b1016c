"""A log that lost records while Forebay was down: what the arena has of them is never served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_invalidation import check_same, write
from tests.e2e.test_unclean_election import tail_from_memory
from tests.e2e.test_warm_restart import build_settings, count, wait_decided
from tests.e2e.unclean import BEHIND, CLUSTER, FIRST, Lossy
from tests.kit.raw_fetch import read_all
from tests.kit.sidecar import Pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RECORDS = 40


def test_what_was_lost_while_forebay_was_down_is_not_served(tmp_path: Path) -> None:
    with Pair(cluster=CLUSTER, settings=build_settings(tmp_path)) as pair:
        lossy = Lossy(pair)
        (topic,) = lossy.topics
        tail_from_memory(pair, topic, 0, "kept", RECORDS)
        lossy.leave_behind()
        tail_from_memory(pair, topic, RECORDS, "lost", RECORDS)
        pair.sidecar.stop()
        lossy.swap(FIRST, BEHIND)
        lossy.write_past(topic, "instead", RECORDS)
        # a Forebay ends with the thread that has started it
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(pair.sidecar.start)
            lossy.bring_first_back()
            starting.result(60)
            wait_decided(pair, "taken-over")
            check_loss(pair, topic)


def check_loss(pair: Pair, topic: str) -> None:
    write(pair, topic, "above")
    direct = check_same(pair, topic, least=0.0)
    assert direct == read_all(pair.direct, topic)
    assert b"lost-" not in direct and b"instead-" in direct and b"kept-" in direct
    check_same(pair, topic, least=0.0)
    assert count(pair, "forebay_verify_samples_total", "mismatch") == 0
