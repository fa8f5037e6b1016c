"""The verifier before a real broker: what memory holds wrongly is found, dropped, and read rightly afterwards.

The arena's file is spoiled on purpose, and a broker is told to store something else than what producers send.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from protocol import batch
from tests.e2e.transactional import Writer, tailing
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
BATCHES = 12


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arena")


@pytest.fixture(scope="module")
def pair(directory: Path, proxied: ProxiedBroker) -> Iterator[Pair]:
    cache = PATIENT_CACHE | {"size": "16MiB", "verifyRatio": 1, "directory": str(directory)}
    with Pair(settings={"cache": cache}, shared=proxied) as running:
        yield running


def verified(pair: Pair, verdict: str) -> float:
    return pair.sidecar.metrics()["forebay_verify_samples_total", verdict]


def wait_for(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def follow(reader: RawReader, writer: RawClient, topic: str, batches: int, mark: bytes) -> None:
    """Write one batch after the other, and read each when it is there."""
    for number in range(batches):
        reader.read_to(writer.produce(topic, batch_v2(3, value=mark + b"-%d" % number)) + 3)


def test_a_spoiled_arena_is_found_dropped_and_read_rightly_again(
    pair: Pair, directory: Path
) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client, RawClient(pair.through) as writer:
        reader = RawReader(client, topic).settle()
        follow(reader, writer, topic, BATCHES, b"right")
        assert wait_for(lambda: verified(pair, "equal") > 0) and verified(pair, "mismatch") == 0
        before = pair.sidecar.fetch_counts()["hit", ""]
        (arena,) = directory.glob("*.arena")
        last = b"right-%d" % (BATCHES - 1)
        with arena.open("r+b") as file:
            at = file.read().index(last)
            file.seek(at)
            file.write(b"wrong")
        spoiled = RawReader(client, topic, offset=reader.offset - 3)
        assert spoiled.poll(500)
        assert pair.sidecar.fetch_counts()["hit", ""] > before, "else it was the broker's answer"
        (one,) = batch.scan_batches(spoiled.raw, 0, len(spoiled.raw))
        assert not batch.is_crc_right(spoiled.raw, one)
        assert wait_for(lambda: verified(pair, "mismatch") == 1)
        again = RawReader(client, topic)
        again.read_to(reader.offset)
    direct = read_all(pair.direct, topic)
    assert bytes(again.raw) == direct, explain(bytes(again.raw), direct)
    pair.sidecar.wait_for_log(f"offsets {one.base_offset} to {one.last_offset}")
    said = pair.sidecar.log_tail(100_000)
    assert "contradicts its own CRC" in said
    assert f"topic={topic} partition=0" in said
    assert pair.sidecar.metrics()["forebay_cache_invalidations_total", "verify"] >= 1


def list_codecs(pair: Pair, topic: str) -> set[int]:
    """Codecs of the broker's own batches."""
    direct = read_all(pair.direct, topic)
    return {batch.codec(one.attributes) for one in batch.scan_batches(direct, 0, len(direct))}


def test_a_broker_that_begins_to_recompress_ends_in_its_own_bytes(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    admin = AdminClient({"bootstrap.servers": pair.direct})
    with RawClient(pair.through) as client, RawClient(pair.through) as writer:
        reader = RawReader(client, topic).settle()
        follow(reader, writer, topic, BATCHES, b"plain")
        entry = ConfigEntry("compression.type", "gzip", incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for done in admin.incremental_alter_configs([change]).values():
            done.result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while list_codecs(pair, topic) != {0, 1}:  # a busy broker takes the setting later
            assert time.monotonic() < deadline, "the broker does not recompress"
            follow(reader, writer, topic, BATCHES, b"pressed" * 20)
        depth = "forebay_queue_depth"
        assert wait_for(lambda: pair.sidecar.metrics()[depth, "verify_samples"] == 0)
        again = RawReader(client, topic)
        again.read_to(reader.offset)
    direct = read_all(pair.direct, topic)
    assert bytes(again.raw) == direct, explain(bytes(again.raw), direct)


def test_what_read_committed_is_told_is_the_brokers_own(pair: Pair) -> None:
    """Aborted and committed transactions beside each other, read from memory: every sample is equal."""
    before = {verdict: verified(pair, verdict) for verdict in ("equal", "mismatch")}
    with tailing(pair) as tail:
        one, other = (Writer(pair.through, tail.topic, name) for name in ("one", "other"))
        for number in range(8):
            for writer in (one, other, one):
                writer.write(2)
            one.end(commits=number % 2 == 0)
            other.end(commits=number % 3 == 0)
        tail.check(listed=4)
        assert tail.hits() > 0
    assert wait_for(lambda: pair.sidecar.metrics()["forebay_queue_depth", "verify_samples"] == 0)
    assert verified(pair, "equal") > before["equal"]
    assert verified(pair, "mismatch") == before["mismatch"], pair.sidecar.log_tail()
