"""A hundred and fifty partitions that a consumer tails, of which one is written: Forebay's own poll asks about little.

Requests and responses of Forebay's poll name few partitions, whatever is served is what the broker has, and the poll's
fetch session is made anew when the broker evicts it, grants none, restarts, or has another topic of that name.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Producer

from protocol import batch, fetch
from protocol.fetch_build import build_request
from protocol.header import peek_request
from tests.kit.broker.topics import create_topic, delete_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

pytestmark = pytest.mark.e2e

PARTITIONS = 150
WRITTEN = 7
RECORDS = 200
LEASE_S = 1
FEW = 40
"""Records where nothing is counted but full polls."""
PATIENCE_S = 60.0
POLL_S = 0.05
SHARDS = 8
"""FetchSessionCache.NumFetchSessionCacheShards: with one slot each, eight sessions fill the broker's cache."""
FOLLOWER = 4711
PARTITION_BYTES = 1 << 20


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    settings = {"cache": PATIENT_CACHE | {"confirmEvery": f"{LEASE_S}s"}}
    cluster = {"overrides": {"max.incremental.fetch.session.cache.slots": SHARDS}}
    with Pair(cluster, settings) as running:
        yield running


class Tailing:
    """A consumer without fetch sessions, as librdkafka: each Fetch names all partitions. `raw`: what was
    read of each.
    """

    def __init__(self, pair: Pair, topic: str) -> None:
        self._client = RawClient(pair.through, "tailing")
        self._topic = self._client.topic(topic, PARTITIONS)
        self._offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.raw = {index: bytearray() for index in range(PARTITIONS)}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.error: Exception | None = None

    def _read(self) -> None:
        try:
            while not self._ended.is_set():
                self._poll()
        except (OSError, FetchFailed) as error:
            self.error = error

    def _poll(self) -> None:
        asked = [
            fetch.FetchPartition(self._topic.id, index, -1, offset, -1, -1, PARTITION_BYTES)
            for index, offset in self._offsets.items()
        ]
        for said, records in self._client.fetch(13, asked, max_wait_ms=200):
            if said.error_code:
                raise FetchFailed(said.error_code)
            batches = batch.scan_batches(records, 0, len(records))
            if batches:
                self.raw[said.partition] += records[: batches[-1].end]
                self._offsets[said.partition] = batches[-1].last_offset + 1

    def offset(self, index: int) -> int:
        """Up to where it has read."""
        return self._offsets[index]

    def start(self) -> None:
        """Read in a thread of its own, until the end or an error."""
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


def wait_until(pair: Pair, holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}:\n{pair.sidecar.log_tail()}"
        time.sleep(POLL_S)


def write(pair: Pair, topic: str, word: str, records: int, address: str = "") -> None:
    """One record after the other to the one partition, each acknowledged before the next."""
    producer = Producer({"bootstrap.servers": address or pair.through, "linger.ms": 0})
    for number in range(records):
        producer.produce(topic, f"{word}-{number}-".encode() + b"v" * 100, partition=WRITTEN)
        assert producer.flush(30) == 0


def count(pair: Pair) -> dict[str, float]:
    """The time, polls, and the partitions that they and their responses have named."""
    metrics = pair.sidecar.metrics()
    return {
        "seconds": time.monotonic(),
        "polls": metrics["forebay_watch_polls_total", "watch"],
        "asked": metrics["forebay_watch_asked_partitions_total",],
        "answered": metrics["forebay_watch_answered_partitions_total",],
        "hit": pair.sidecar.fetch_counts().get(("hit", ""), 0),
        "miss": sum(v for (result, _), v in pair.sidecar.fetch_counts().items() if result != "hit"),
    }


def change(pair: Pair, before: dict[str, float]) -> dict[str, float]:
    after = count(pair)
    return {name: after[name] - before[name] for name in before}


def most_named(changed: dict[str, float]) -> float:
    """The most partitions that polls may name: the one with news in each, all of them a few times a lease."""
    return 2 * changed["polls"] + 2 * PARTITIONS * (1 + changed["seconds"] / LEASE_S)


def watch_a_second(pair: Pair) -> dict[str, float]:
    before = count(pair)
    time.sleep(1)
    return change(pair, before)


def is_calm(pair: Pair) -> bool:
    """All partitions have a lease, and a second of polls names few of them."""
    if pair.sidecar.metrics()["forebay_watch_leases",] < PARTITIONS:
        return False
    changed = watch_a_second(pair)
    return changed["polls"] > 0 and changed["asked"] + changed["answered"] < PARTITIONS / 2


def names_all(pair: Pair) -> bool:
    """A second of polls asks for as many partitions as there are: polls within a session name few of them."""
    return watch_a_second(pair)["asked"] >= PARTITIONS


def start_tailing(pair: Pair, topic: str) -> Tailing:
    tailing = Tailing(pair, topic)
    tailing.start()
    wait_until(
        pair, lambda: pair.sidecar.metrics()["forebay_watch_leases",] >= PARTITIONS, "no leases"
    )
    wait_until(pair, lambda: is_calm(pair), "the polls name many partitions")
    return tailing


def write_and_compare(
    pair: Pair, topic: str, tailing: Tailing, word: str, records: int = RECORDS
) -> dict[str, float]:
    """Write, read to the end, and compare with a direct reader; what was counted meanwhile."""
    before = count(pair)
    end = tailing.offset(WRITTEN) + records
    write(pair, topic, word, records)
    wait_until(
        pair,
        lambda: tailing.offset(WRITTEN) >= end or tailing.error is not None,
        "not all has been read",
    )
    assert tailing.error is None, tailing.error
    changed = change(pair, before)
    direct = read_all(pair.direct, topic, partition=WRITTEN)
    through = bytes(tailing.raw[WRITTEN])
    assert through == direct, explain(through, direct)
    return changed


def test_a_turn_names_the_partition_with_news(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with start_tailing(pair, topic) as tailing:
        write_and_compare(pair, topic, tailing, "warm", FEW)
        changed = write_and_compare(pair, topic, tailing, "counted")
        assert changed["polls"] > 0
        assert changed["asked"] < most_named(changed), changed
        assert changed["answered"] < most_named(changed), changed
        assert changed["miss"] <= 0.1 * changed["hit"], pair.sidecar.fetch_counts()
        untouched = (index for index in range(PARTITIONS) if index != WRITTEN)
        assert not any(tailing.raw[index] for index in untouched)


def test_what_comes_past_forebay_is_read_too(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with start_tailing(pair, topic) as tailing:
        write(pair, topic, "past", FEW, address=pair.direct)
        wait_until(pair, lambda: tailing.offset(WRITTEN) >= FEW, "not all has been read")
        direct = read_all(pair.direct, topic, partition=WRITTEN)
        assert bytes(tailing.raw[WRITTEN]) == direct


class Followers:
    """Fetch sessions of a follower's, which evict those of consumers (FetchSessionCacheShard.tryEvict), until
    the end.
    """

    def __init__(self, pair: Pair, topic: str) -> None:
        self._client = RawClient(pair.direct, "follower")
        self._topic = self._client.topic(topic, PARTITIONS)
        self._ids: list[int] = []

    def _fetch(self, session: tuple[int, int]) -> fetch.FetchResponse:
        asked = [fetch.FetchPartition(self._topic.id, 0, -1, 0, -1, -1, 1)]
        frame = bytearray(
            build_request(
                13,
                1,
                "follower",
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                isolation_level=0,
                session_id=session[0],
                session_epoch=session[1],
                partitions=asked,
            )
        )
        struct.pack_into(">i", frame, peek_request(frame).body_start, FOLLOWER)
        return fetch.scan_response(self._client.call(bytes(frame)), 13)

    def __enter__(self) -> Self:
        for _ in range(2 * SHARDS):
            said = self._fetch((0, 0))
            if said.session_id:
                self._ids.append(said.session_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in self._ids:
            self._fetch((number, -1))
        self._client.close()

    def __len__(self) -> int:
        return len(self._ids)


def test_an_evicted_session_is_followed_by_full_polls_and_by_another_session(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with start_tailing(pair, topic) as tailing:
        write_and_compare(pair, topic, tailing, "before", FEW)
        with Followers(pair, topic) as followers:
            assert len(followers) >= SHARDS
            wait_until(pair, lambda: names_all(pair), "no poll is full: the cache has no room")
            write_and_compare(pair, topic, tailing, "evicted", FEW)
        wait_until(pair, lambda: is_calm(pair), "there is no session again")
        changed = write_and_compare(pair, topic, tailing, "granted")
        assert changed["asked"] < most_named(changed), changed


def test_a_topic_that_is_made_again_is_another_one(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with start_tailing(pair, topic) as tailing:
        write_and_compare(pair, topic, tailing, "former", FEW)
        delete_topic(pair.direct, topic)
        create_topic(pair.direct, topic, partitions=PARTITIONS)
        wait_until(pair, lambda: tailing.error is not None, "the topic's id is still answered")
    with start_tailing(pair, topic) as tailing:
        changed = write_and_compare(pair, topic, tailing, "present")
        assert changed["miss"] <= 0.1 * changed["hit"]
        assert b"former-" not in bytes(tailing.raw[WRITTEN])


def test_a_broker_that_restarts_is_asked_in_a_new_session(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with start_tailing(pair, topic) as tailing:
        write_and_compare(pair, topic, tailing, "before", FEW)
        before = bytes(tailing.raw[WRITTEN])
    pair.broker.stop(gracefully=True)
    pair.broker.start()
    wait_until(pair, pair.sidecar.is_ready, "Forebay is not ready again")
    with start_tailing(pair, topic) as tailing:
        wait_until(pair, lambda: tailing.offset(WRITTEN) >= FEW, "not all has been read")
        assert bytes(tailing.raw[WRITTEN]) == before
        changed = write_and_compare(pair, topic, tailing, "after")
        assert changed["asked"] < most_named(changed), changed
        assert changed["miss"] <= 0.1 * changed["hit"]
