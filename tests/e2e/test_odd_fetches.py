"""Fetches that no client library sends: each is answered as the broker answers it, field by field, also where memory
holds the partition and could have spoken for it.

The broker is real. Each question goes to it directly and through Forebay, on connections of their own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer

from protocol import batch, fetch
from protocol.fetch_build import build_request
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

VERSIONS = (4, 12, 17)
RECORDS = 20
MIB = 1 << 20
COMMITTED = 1


class Limits(NamedTuple):
    """What a request says beside its partitions."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = MIB
    isolation_level: int = 0


class Scene(NamedTuple):
    """A topic of two partitions whose records memory holds, and a connection each way."""

    pair: Pair
    topic: str
    through: RawClient
    direct: RawClient

    def asked(self, version: int, partition: int = 0, **changed: Any) -> fetch.FetchPartition:
        """The partition from its start."""
        reader = RawReader(self.direct, self.topic, partition=partition, version=version)
        return reader.asked()._replace(max_bytes=MIB, **changed)

    def ask(
        self, version: int, asked: list[fetch.FetchPartition], limits: Limits
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[tuple[str, str], float]]:
        """What Forebay and the broker say, and what Forebay counted."""
        before = self.pair.sidecar.fetch_counts("partitions")
        through = tell(self.through, version, asked, limits)
        deadline = time.monotonic() + 60
        while True:  # the answer is counted a moment after it has left
            after = self.pair.sidecar.fetch_counts("partitions")
            grown = {key: count - before.get(key, 0) for key, count in after.items()}
            if sum(grown.values()) >= len(asked) or not through[1] or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        told = {key: count for key, count in grown.items() if count}
        return through, tell(self.direct, version, asked, limits), told


def tell(
    client: RawClient, version: int, asked: list[fetch.FetchPartition], limits: Limits
) -> tuple[Any, ...]:
    """All that an answer to a session-less Fetch says, records as they are."""
    request = build_request(
        version, 1, "odd", **limits._asdict(), session_id=0, session_epoch=-1, partitions=asked
    )
    frame = client.call(request)
    answer = fetch.scan_response(frame, version)
    said = [(*one[:-2], frame[max(one.start, 0) : max(one.end, 0)]) for one in answer.partitions]
    return answer.error_code, sorted(said, key=lambda one: (str(one[0]), one[1]))


@pytest.fixture(scope="module")
def stored(proxied: ProxiedBroker) -> Iterator[tuple[Pair, str]]:
    with Pair(settings={"cache": {**PATIENT_CACHE, "confirmEvery": "30s"}}, shared=proxied) as pair:
        topic = create_topic(pair.direct, partitions=2)
        with RawClient(pair.through, "odd") as client:
            readers = [RawReader(client, topic, partition=p).settle() for p in range(2)]
            producer = Producer(
                {"bootstrap.servers": pair.through, "batch.size": 1, "linger.ms": 0}
            )
            for number in range(RECORDS):
                for partition in range(2):
                    producer.produce(topic, b"%d" % number + b"v" * 500, partition=partition)
                    assert producer.flush(30) == 0
            for reader in readers:
                reader.read_to(RECORDS)
            yield pair, topic


@pytest.fixture
def scene(stored: tuple[Pair, str]) -> Iterator[Scene]:
    pair, topic = stored
    with RawClient(pair.through, "odd") as through, RawClient(pair.direct, "odd") as direct:
        for version in (12, 13):  # what is asked by name is this client's, too
            for partition in range(2):
                RawReader(through, topic, partition=partition, version=version).settle(2, 5)
        yield Scene(pair, topic, through, direct)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [-1, -7, -(1 << 63), RECORDS + 1, (1 << 63) - 1])
def test_an_offset_that_is_not_there(scene: Scene, version: int, offset: int) -> None:
    """OFFSET_OUT_OF_RANGE (LocalLog.read), and the connection goes on; beside a hit, too."""
    for asked in (
        [scene.asked(version, fetch_offset=offset)],
        [scene.asked(version, fetch_offset=offset), scene.asked(version, 1)],
    ):
        through, direct, _ = scene.ask(version, asked, Limits())
        assert through == direct
        assert through[1][0][2] == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("partition", [-1, 2, (1 << 31) - 1])
def test_a_partition_that_is_not_there(scene: Scene, version: int, partition: int) -> None:
    asked = [scene.asked(version)._replace(partition=partition), scene.asked(version, 1)]
    through, direct, _ = scene.ask(version, asked, Limits())
    assert through == direct


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [2, -1])
def test_an_isolation_level_that_is_not_there(
    scene: Scene, version: int, isolation_level: int
) -> None:
    """IsolationLevel.forId refuses it, and so does the broker the whole request."""
    through, direct, _ = scene.ask(
        version,
        [scene.asked(version), scene.asked(version, 1)],
        Limits(isolation_level=isolation_level),
    )
    assert through == direct


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("max_bytes", [-1, -(1 << 31)])
@pytest.mark.parametrize("of", ["request", "partition"])
def test_less_than_no_bytes(
    scene: Scene, version: int, isolation_level: int, max_bytes: int, of: str
) -> None:
    """LogSegment.read refuses a negative size: UNKNOWN_SERVER_ERROR (-1) for what it would have read."""
    asked = [scene.asked(version), scene.asked(version, 1)]
    limits = Limits(isolation_level=isolation_level)
    if of == "request":
        limits = limits._replace(max_bytes=max_bytes)
    else:
        asked[0] = asked[0]._replace(max_bytes=max_bytes)
    for offset in (0, RECORDS):
        asked[0] = asked[0]._replace(fetch_offset=offset)
        through, direct, _ = scene.ask(version, asked, limits)
        assert through == direct


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("max_bytes", [0, 1, 600, 1400])
@pytest.mark.parametrize("of", ["request", "partition"])
def test_few_bytes(
    scene: Scene, version: int, isolation_level: int, max_bytes: int, of: str
) -> None:
    """The first batch whatever its size, once a request (ReplicaManager.readFromLog). Of a partition whose first batch
    does not fit the broker says null for the aborted transactions, and [] of one for which nothing is left. Memory
    gives whole batches, where a broker's last may be cut.
    """
    asked = [scene.asked(version), scene.asked(version, 1)]
    limits = Limits(isolation_level=isolation_level)
    if of == "request":
        limits = limits._replace(max_bytes=max_bytes)
    else:
        asked = [one._replace(max_bytes=max_bytes) for one in asked]
    through, direct, told = scene.ask(version, asked, limits)
    whole = [(*one[:-1], cut(one[-1])) for one in direct[1]]
    assert through == (direct[0], whole)
    assert told == {("hit", ""): 2}


def cut(records: bytes) -> bytes:
    """Whole batches alone."""
    batches = batch.scan_batches(records, 0, len(records))
    return records[: batches[-1].end] if batches else b""


@pytest.mark.parametrize("version", VERSIONS)
def test_no_more_is_waited_for_than_may_be_told(scene: Scene, version: int) -> None:
    """min_bytes is at most max_bytes (KafkaApis.handleFetchRequest)."""
    limits = Limits(max_wait_ms=50_000, min_bytes=5000, max_bytes=3000)
    started = time.monotonic()
    through, direct, told = scene.ask(version, [scene.asked(version)], limits)
    assert time.monotonic() - started < 25
    assert through == (direct[0], [(*one[:-1], cut(one[-1])) for one in direct[1]])
    assert told == {("hit", ""): 1}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("min_bytes", "max_bytes", "partition_max_bytes"),
    [(500, MIB, 1), (500, MIB, 0), (2900, 2900, MIB), (2900, MIB, 2900)],
)
def test_what_is_readable_is_counted_as_a_broker_counts_it(
    scene: Scene, version: int, min_bytes: int, max_bytes: int, partition_max_bytes: int
) -> None:
    """The first batch whole whatever its size, the part of the last that fits (ReplicaManager.fetchMessages)."""
    limits = Limits(max_wait_ms=50_000, min_bytes=min_bytes, max_bytes=max_bytes)
    started = time.monotonic()
    asked = [scene.asked(version)._replace(max_bytes=partition_max_bytes)]
    through, direct, told = scene.ask(version, asked, limits)
    assert time.monotonic() - started < 25
    assert through == (direct[0], [(*one[:-1], cut(one[-1])) for one in direct[1]])
    assert told == {("hit", ""): 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_is_not_there_ends_nobodys_wait(scene: Scene, version: int) -> None:
    """KafkaApis.handleFetchRequest answers for it without a read; alone it is answered at once."""
    absent = scene.asked(version)._replace(partition=9)
    at_the_tail = scene.asked(version, 1, fetch_offset=RECORDS)
    for client in (scene.through, scene.direct):
        for asked, max_wait_ms in (([absent], 50_000), ([at_the_tail, absent], 1000)):
            started = time.monotonic()
            answer = tell(client, version, asked, Limits(max_wait_ms=max_wait_ms))
            waited_s = time.monotonic() - started
            assert waited_s >= 0.9 if at_the_tail in asked else waited_s < 25
            errors = {one[1]: one[2] for one in answer[1]}
            assert errors == {one.partition: 3 * (one is absent) for one in asked}


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize("session_id", [0, 7])
def test_a_session_of_nothing(scene: Scene, version: int, session_id: int) -> None:
    """FullFetchContext.updateAndGenerateResponseData makes one whatever its size."""
    for client in (scene.through, scene.direct):
        limits = Limits(max_wait_ms=20)._asdict()
        request = build_request(
            version, 1, "odd", **limits, session_id=session_id, session_epoch=0, partitions=[]
        )
        said = fetch.scan_response(client.call(request), version)
        assert (said.error_code, said.partitions, said.session_id > 0) == (0, [], True)
