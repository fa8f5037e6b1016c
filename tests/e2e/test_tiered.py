"""A tiered topic (KIP-405): what the broker has in remote storage alone is read through Forebay as from the broker.

The storage is Kafka's own for tests, a local folder. A consumer that lags reads remote segments, the local log and
memory in one go; the log's start stays where the remote one is, while the local one moves on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tests.kit.broker
from protocol import batch
from tests.e2e.families import confluent_consume
from tests.e2e.test_invalidation import (
    RECORDS,
    UNTAILED,
    check_hits,
    check_same,
    hit_bytes,
    tail_while,
    wait_for_hits,
    write,
)
from tests.kit.broker.jars import KAFKA_4, locked_jars
from tests.kit.broker.settings import DIRECT
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, end_of, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
POLL_S = 0.2
LOCK = f"tiered-{KAFKA_4}"
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "4096",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
CACHE = PATIENT_CACHE | {"confirmEvery": "1s", "verifyRatio": 1}


def overrides(folder: Path) -> dict[str, object]:
    """A broker's settings; what goes to remote storage lies in `folder`."""
    jars = locked_jars(LOCK, (Path(tests.kit.broker.__path__[0]) / f"{LOCK}.lock").read_text())
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": f"{jars}/*",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": folder,
        "remote.log.metadata.manager.listener.name": DIRECT,
        "remote.log.manager.task.interval.ms": 500,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": 300,
        "log.initial.task.delay.ms": 200,
        "log.retention.check.interval.ms": 300,
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("remote")
    with Pair({"overrides": overrides(folder), "heap_mb": 384}, {"cache": CACHE}) as running:
        yield running


def local_start(pair: Pair, topic: str) -> int:
    """The first offset that the broker has on its own disk: its oldest segment's name."""
    names = [path.stem for path in (pair.broker.log_dir() / f"{topic}-0").glob("*.log")]
    return min(map(int, names))


def wait_tiered(pair: Pair, topic: str) -> int:
    """Until the beginning of the log is in remote storage alone, and no more goes; where the local log starts."""
    deadline, seen = time.monotonic() + PATIENCE_S, [0, 0, 0, 0, 0]
    while not (seen[0] > 0 and len(set(seen)) == 1):
        assert time.monotonic() < deadline, pair.broker.log_tail()
        time.sleep(2 * POLL_S)
        seen = [*seen[1:], local_start(pair, topic)]
    return seen[0]


def test_a_lagging_consumer_of_a_tiered_topic(pair: Pair) -> None:
    topic = create_topic(pair.direct, config=TIERED)
    write(pair, topic, "unseen", RECORDS)  # nobody tails: memory has it not
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=RECORDS).settle()
        wait_for_hits(pair, reader)
        tail_while(reader, lambda: write(pair, topic, "tailed"), 2 * RECORDS)
        start = wait_tiered(pair, topic)
        assert start > RECORDS, "some of what memory has is remote, too"
        before = hit_bytes(pair)
        whole = check_same(pair, topic, least=UNTAILED)
        check_same(pair, topic, start=RECORDS)
        assert batch.scan_batches(whole, 0, len(whole))[0].base_offset == 0
        lagging = RawReader(client, topic)
        assert lagging.read_to(2 * RECORDS) == whole, explain(bytes(lagging.raw), whole)
        assert hit_bytes(pair) > before
        assert lagging.log_start_offset == 0
        for offset in (0, 1, RECORDS, start - 1, start, start + 1):
            direct = read_all(pair.direct, topic, start=offset)
            through = read_all(pair.through, topic, start=offset, end=end_of(direct))
            assert through == direct, f"from {offset}: {explain(through, direct)}"
        check_hits(pair, reader, topic, "after", 3 * RECORDS)
    assert confluent_consume(pair.through, topic, 3 * RECORDS) == confluent_consume(
        pair.direct, topic, 3 * RECORDS
    )
    assert pair.sidecar.metrics()["forebay_verify_samples_total", "mismatch"] == 0, (
        pair.sidecar.log_tail()
    )
