"""Forebay ends and starts again on the same arena: what it held is served where the broker still has it.

Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1). The broker is shared.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_invalidation import check_same, hit_bytes, tail_while, wait_for_hits, write
from tests.e2e.test_throttle import produce
from tests.kit.broker.topics import create_topic, delete_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
POLL_S = 0.05
BEHIND_RECORDS, FAR_BEHIND_RECORDS = 4000, 200_000
"""Of 1 KB each: 4 MB, in some two hundred and fifty batches; 200 MB."""
KILLS = 2
DROPPED = b"dropped what an earlier process left"


def build_settings(directory: Path, size: str = "64MiB") -> dict[str, object]:
    kept = {"keepArena": True, "directory": str(directory), "verifyRatio": 1.0, "size": size}
    return {"cache": PATIENT_CACHE | kept}


@pytest.fixture
def pair(tmp_path: Path, proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings=build_settings(tmp_path), shared=proxied) as running:
        yield running


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


def count(pair: Pair, name: str, *labels: str) -> float:
    return pair.sidecar.metrics().get((name, *labels), 0)


def wait_decided(pair: Pair, outcome: str) -> None:
    """Until the arena that was left is taken over or dropped; and every partition of it is proven or gone."""
    wait_until(
        f"{outcome}:\n{pair.sidecar.log_tail()}",
        lambda: count(pair, "forebay_cache_takeovers_total", outcome) == 1,
    )
    wait_until(
        "all are proven or gone", lambda: count(pair, "forebay_cache_unclaimed_partitions") == 0
    )


def wait_proven(pair: Pair, partitions: int = 1) -> None:
    wait_until(
        "the partition is proven",
        lambda: count(pair, "forebay_cache_taken_over_partitions_total") >= partitions,
    )


def tail(pair: Pair, topic: str, word: str = "first") -> int:
    """Have memory hold the topic's records from some offset on; the end."""
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        wait_for_hits(pair, reader)
        end = reader.offset + 40
        tail_while(reader, lambda: write(pair, topic, word), end)
        return reader.offset


def restart(pair: Pair, number: int = signal.SIGTERM, outcome: str = "taken-over") -> None:
    pair.sidecar.stop(number)
    pair.sidecar.start()
    wait_decided(pair, outcome)


def check_verified(pair: Pair) -> None:
    """Memory has answered, and never with other bytes than the broker."""
    wait_until(
        "something is verified",
        lambda: count(pair, "forebay_verify_samples_total", "equal") > 0,
    )
    assert count(pair, "forebay_verify_samples_total", "mismatch") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_group_that_was_behind_reads_from_memory(pair: Pair, number: int) -> None:
    read_behind(pair, number, BEHIND_RECORDS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_group_that_was_200_mb_behind_reads_from_memory(
    tmp_path: Path, proxied: ProxiedBroker
) -> None:
    settings = build_settings(tmp_path, size="512MiB")
    with Pair(settings=settings, shared=proxied) as pair:
        read_behind(pair, signal.SIGTERM, FAR_BEHIND_RECORDS)


def read_behind(pair: Pair, number: int, records: int) -> None:
    """A group at the tail falls behind by so many records, and reads them after a restart."""
    topic = create_topic(pair.direct)
    start = tail(pair, topic)
    for _ in range(records // BEHIND_RECORDS):
        produce(pair.through, topic, 0, BEHIND_RECORDS)
    direct = read_all(pair.direct, topic, start=start)
    assert len(direct) > 900 * records
    restart(pair, number)
    wait_proven(pair)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=start)
        before = hit_bytes(pair)
        through = reader.read_to(start + records)
        assert through == direct, explain(through, direct)
    hits, counts = hit_bytes(pair) - before, pair.sidecar.fetch_counts()
    # the connection's first Fetches show its right; the first batches of a producer are not stored from Produce
    shown = counts.get(("miss", "unauthorized-yet"), 0.0)
    assert hits > 0.9 * (len(direct) - shown) > 0.4 * len(direct), counts
    tail(pair, topic, "later")
    check_same(pair, topic, start=start)
    check_verified(pair)


def test_records_written_while_forebay_was_down_are_the_broker_s(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    start = tail(pair, topic)
    end = tail(pair, topic, "held")
    pair.sidecar.stop(signal.SIGKILL)
    produce(pair.direct, topic, 0, 500)
    pair.sidecar.start()
    wait_decided(pair, "taken-over")
    wait_proven(pair)
    direct = read_all(pair.direct, topic, start=start)
    with RawClient(pair.through) as client:
        through = RawReader(client, topic, offset=start).read_to(end + 500)
        assert through == direct, explain(through, direct)
    tail(pair, topic, "after")
    check_same(pair, topic, start=end + 500)
    check_verified(pair)


def test_a_topic_that_was_re_created_meanwhile_is_another(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    tail(pair, topic, "former")
    pair.sidecar.stop()
    delete_topic(pair.direct, topic)
    create_topic(pair.direct, topic)
    produce(pair.direct, topic, 0, 60)
    pair.sidecar.start()
    wait_decided(pair, "taken-over")
    assert b"former" not in check_same(pair, topic, least=0.0)
    assert count(pair, "forebay_cache_taken_over_partitions_total") == 0
    tail(pair, topic, "present")
    check_same(pair, topic, least=0.0)


def find_arena(directory: Path) -> Path:
    (path,) = directory.glob("forebay-*.arena")
    return path


DAMAGED = ((8, "layout"), (216, "damaged"), (472, "unfinished"), (540, "unidentified"))
"""Layout, the oldest block's place, the count of changes, and the name of the broker."""


def test_a_damaged_file_is_dropped(pair: Pair, tmp_path: Path) -> None:
    """One damage after the other: each Forebay finds what the former has left, damaged in another place."""
    for place, outcome in DAMAGED:
        topic = create_topic(pair.direct)
        tail(pair, topic)
        pair.sidecar.stop()
        with find_arena(tmp_path).open("r+b") as file:
            file.seek(place)
            value = file.read(1)[0]
            file.seek(place)
            file.write(bytes([value ^ 0x01]))
        said = pair.sidecar.log_path.stat().st_size
        pair.sidecar.start()
        wait_decided(pair, outcome)
        wait_until(
            "the loss is logged",
            lambda: DROPPED in pair.sidecar.log_path.read_bytes()[said:],  # noqa: B023
        )
        check_same(pair, topic, least=0.0)
        tail(pair, topic, "anew")
        check_verified(pair)


def test_another_size_is_dropped(pair: Pair, tmp_path: Path, proxied: ProxiedBroker) -> None:
    tail(pair, create_topic(pair.direct))
    pair.sidecar.stop()
    settings = build_settings(tmp_path)
    settings["cache"] = {
        **PATIENT_CACHE,
        "keepArena": True,
        "directory": str(tmp_path),
        "size": "32MiB",
    }
    with Pair(settings=settings, shared=proxied) as other:
        wait_decided(other, "size")
    settings["cache"] = {**PATIENT_CACHE, "mode": "off", "directory": str(tmp_path)}
    with Pair(settings=settings, shared=proxied):
        assert not list(tmp_path.glob("forebay-*.arena")), "nobody would use it"


def test_another_broker_s_arena_is_dropped(pair: Pair, tmp_path: Path) -> None:
    tail(pair, create_topic(pair.direct))
    pair.sidecar.stop()
    left = find_arena(tmp_path)
    with Pair(settings=build_settings(tmp_path)) as other:
        other.sidecar.stop()
        port = other.through.rpartition(":")[2]
        find_other = tmp_path / f"forebay-{port}.arena"
        left.rename(find_other)
        other.sidecar.start()
        wait_decided(other, "broker")
        tail(other, create_topic(other.direct))
        check_verified(other)


def test_kills_in_the_middle_of_load(pair: Pair) -> None:
    """Whatever the moment, what is read afterwards is the broker's."""
    topic = create_topic(pair.direct, partitions=2)
    end = tail(pair, topic)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(KILLS):
            before = count(pair, "forebay_cache_admitted_bytes_total")
            writing = pool.submit(produce, pair.through, topic, 0, 6000)
            wait_until(
                "load is stored",
                lambda: count(pair, "forebay_cache_admitted_bytes_total") > before + 500_000,  # noqa: B023
            )
            pair.sidecar.stop(signal.SIGKILL)
            pair.sidecar.start()
            writing.result(PATIENCE_S)
            wait_until(
                "decided",
                lambda: any(
                    count(pair, "forebay_cache_takeovers_total", outcome) == 1
                    for outcome in ("taken-over", "unfinished", "damaged")
                ),
            )
            check_same(pair, topic, start=end - 20, least=0.0)
            tail(pair, topic, "between")
            assert count(pair, "forebay_verify_samples_total", "mismatch") == 0
