"""A leader that lost records leads again: what memory has of them is never served.

Three brokers, a Forebay before the first; the topic may elect a replica that is behind. Records that only the first
broker has are tailed from memory; then the second one leads without them and appends others at their offsets, and the
first comes back, is cut to that log, and leads again. Kafka loses acknowledged records here, as it was told to; a
reader through Forebay must see the same loss as a direct one, also where Forebay was down and keeps its arena.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_invalidation import (
    CACHE,
    RECORDS,
    UNTAILED,
    check_hits,
    check_same,
    hit_bytes,
    tail_while,
    wait_for_hits,
    write,
)
from tests.e2e.test_warm_restart import build_settings, count, wait_decided
from tests.e2e.unclean import BEHIND, CLUSTER, FIRST, Lossy
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]  # up to five starts of a broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedBroker]:
    """Three brokers, all of which run after each test."""
    with ProxiedBroker(CLUSTER) as running:
        yield running


@pytest.fixture
def pair(cluster: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}, shared=cluster) as running:
        yield running


def tail_from_memory(pair: Pair, topic: str, start: int, word: str, records: int) -> None:
    """A consumer tails what is written; memory has it then."""
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=start)
        reader.read_past_errors()
        wait_for_hits(pair, reader)
        before = hit_bytes(pair)
        tail_while(reader, lambda: write(pair, topic, word, records), start + records)
        assert hit_bytes(pair) > before
        assert f"{word}-".encode() in reader.raw


def check_loss(pair: Pair, topic: str, lost: bytes) -> int:
    """Nobody is given what was lost, neither from the broker nor from memory, and memory serves the tail again; the
    log's end.
    """
    whole = check_same(pair, topic, least=UNTAILED)
    assert lost not in whole
    with RawClient(pair.direct) as client:
        reader = RawReader(client, topic)
        reader.poll()
        end = reader.high_watermark
    with RawClient(pair.through) as client:
        check_hits(pair, RawReader(client, topic, offset=end), topic, "tailed", end + RECORDS)
    check_same(pair, topic, least=UNTAILED)
    check_same(pair, topic, start=end)
    return end


def test_what_an_unclean_election_lost_is_not_served(pair: Pair) -> None:
    """Of the first topic readers are the first to see the new leader epoch. To the others records were written in it
    before: by then memory may have batches of the new epoch above those that were lost. A consumer of the second
    begins at the lost offsets, in one large Fetch; of the third somebody reads the end first, by name.
    """
    lossy = Lossy(pair, 3)
    for topic in lossy.topics:
        tail_from_memory(pair, topic, 0, "kept", RECORDS)
    lossy.leave_behind()
    for topic in lossy.topics:
        tail_from_memory(pair, topic, RECORDS, "lost", RECORDS)
    lossy.swap(FIRST, BEHIND)
    for topic in lossy.topics:
        lossy.write_past(topic, "instead", RECORDS)
    lossy.bring_first_back()
    plain, large, ended = lossy.topics
    write(pair, large, "above")
    write(pair, ended, "above")
    with RawClient(pair.through) as client:
        reader = RawReader(client, large, offset=RECORDS)
        through = reader.read_to(3 * RECORDS)
        direct = read_all(pair.direct, large, start=RECORDS)
        assert through == direct, explain(through, direct)
    with RawClient(pair.through) as client:
        RawReader(client, ended, version=12, offset=3 * RECORDS - 1).read_to(3 * RECORDS)
    for topic in (plain, large, ended):
        end = check_loss(pair, topic, b"lost-")
        assert end == (2 if topic == plain else 3) * RECORDS


def test_records_of_two_lost_epochs_are_not_served(pair: Pair) -> None:
    """The second broker wrote more in an epoch of its own, while the first was away, than the first did in two later
    ones, while the second was away; then the second's log wins. Kafka names the second's epoch and its end, which is
    above all that memory has: what memory has of later epochs lies below that end, and is not in the log.
    """
    lossy = Lossy(pair)
    (topic,) = lossy.topics
    half = RECORDS // 2
    tail_from_memory(pair, topic, 0, "kept", RECORDS)
    pair.broker.stop(FIRST)
    lossy.wait_led_by(BEHIND)
    lossy.write_past(topic, "ahead", 2 * RECORDS)
    lossy.swap(BEHIND, FIRST)
    tail_from_memory(pair, topic, RECORDS, "lost", half)
    lossy.restart_alone()
    tail_from_memory(pair, topic, RECORDS + half, "lost", half)
    lossy.swap(FIRST, BEHIND)
    lossy.write_past(topic, "instead", half)
    lossy.bring_first_back()
    end = check_loss(pair, topic, b"lost-")
    assert end == 3 * RECORDS + half


def test_what_was_lost_while_forebay_was_down_is_not_served(
    cluster: ProxiedBroker, tmp_path: Path
) -> None:
    with Pair(settings=build_settings(tmp_path), shared=cluster) as pair:
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
            check_loss_alone(pair, topic)


def check_loss_alone(pair: Pair, topic: str) -> None:
    """Both readers see the same loss, and the verifier finds no other bytes in memory."""
    write(pair, topic, "above")
    direct = check_same(pair, topic, least=UNTAILED)
    assert direct == read_all(pair.direct, topic)
    assert b"lost-" not in direct and b"instead-" in direct and b"kept-" in direct
    check_same(pair, topic, least=UNTAILED)
    assert count(pair, "forebay_verify_samples_total", "mismatch") == 0
