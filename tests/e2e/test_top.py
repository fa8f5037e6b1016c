"""The live view beside a real broker: what it shows is what Kafka itself says, and who may see it.

Owns a group that lags, a reader in memory, and the page in a browser. Must not know how the view is built.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.browser import MISSING, find_chromium, open_address, screenshot_address
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
RECORDS = 6000
RECORD_BYTES = 1000
STEP_MS = 500
"""Between the timestamps of two records: a reader of more than two a second catches up in time."""
RETENTION_MS = 6 * 3600 * 1000
BITE_BYTES = 20_000
SMALL_BYTES = 4000
"""So that a slow reader asks more often than `cache.authorizeEvery`."""
GROUP, CLIENT = "nightly", "batch-1"


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


def view(pair: Pair) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(pair.sidecar.admin("/top"))
    return said


def wait_for(find: Callable[[], Any]) -> Any:
    """The first true value of `find`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.2)
    return found


def write_old_records(pair: Pair, topic: str) -> int:
    """RECORDS records past Forebay, with timestamps STEP_MS apart, the newest now. The first one's, in milliseconds."""
    producer = Producer({"bootstrap.servers": pair.direct, "batch.size": 1500})
    begun_ms = int(time.time() * 1000) - RECORDS * STEP_MS
    for number in range(RECORDS):
        producer.produce(
            topic, b"v" * RECORD_BYTES, partition=0, timestamp=begun_ms + number * STEP_MS
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return begun_ms


def build_consumer(
    bootstrap: str, client_id: str, group: str, bite_bytes: int = BITE_BYTES
) -> Consumer:
    """It asks for a bite when its last one is used up."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.min.messages": 1,
            "fetch.message.max.bytes": bite_bytes,
            "fetch.wait.max.ms": 100,
        }
    )


def ask_broker(pair: Pair, topic: str) -> tuple[int, int]:
    """What the broker itself says: the group's offset, and the end of the log."""
    place = TopicPartition(topic, 0)
    asking = Consumer({"bootstrap.servers": pair.direct, "group.id": GROUP})
    (committed,) = asking.committed([place], timeout=PATIENCE_S)
    _, end = asking.get_watermark_offsets(place, timeout=PATIENCE_S)
    asking.close()
    return committed.offset, end


def find_reader(said: dict[str, Any], topic: str) -> dict[str, Any] | None:
    return next((one for one in said["readersBehind"]["rows"] if one["topic"] == topic), None)


def test_a_lagging_group_is_shown_where_kafka_says_that_it_is(pair: Pair) -> None:
    """The offset is the one that it asked for last: at most two bites before what it has committed, and one ahead."""
    topic = create_topic(pair.direct, config={"retention.ms": str(RETENTION_MS)})
    begun_ms = write_old_records(pair, topic)
    consumer = build_consumer(pair.through, CLIENT, GROUP)
    consumer.subscribe([topic])
    read = 0

    def read_on() -> dict[str, Any] | None:
        nonlocal read
        for message in consumer.consume(50, timeout=1.0):
            assert message.error() is None
            read += 1
        if read:
            consumer.commit(asynchronous=False)
        row = find_reader(view(pair), topic)
        is_placed = row is not None and row["group"] == GROUP and row["behind"] is not None
        return row if is_placed and row and row["retention"]["state"] == "never" else None

    row = wait_for(read_on)
    said = view(pair)
    committed, end = ask_broker(pair, topic)
    assert 0 < committed == read < end == RECORDS, "it is still reading"
    row = find_reader(said, topic)
    assert row is not None
    assert (row["client"], row["group"], row["partition"], row["partitions"]) == (
        CLIENT,
        GROUP,
        0,
        1,
    )
    bite = 2 * BITE_BYTES // RECORD_BYTES + 1
    assert committed - 2 * bite <= row["offset"] <= committed + bite
    assert row["highWatermark"] == end and row["logStart"] == 0
    assert row["behind"] == end - row["offset"]
    true_s = said["at"] - (begun_ms + row["offset"] * STEP_MS) / 1000
    assert abs(row["behindS"] - true_s) <= bite * STEP_MS / 1000, "the first batch's newest record"
    assert row["memory"] == {"state": "left", "inS": None}, "it was written past Forebay"
    assert row["retention"]["state"] == "never", "in a second it reads more than a second's records"
    consumer.close()


def test_a_reader_that_is_slower_than_time_is_told_when_retention_takes_its_records(
    pair: Pair,
) -> None:
    """From the offsets that it reads the same can be reckoned."""
    topic = create_topic(pair.direct, config={"retention.ms": str(RETENTION_MS)})
    begun_ms = write_old_records(pair, topic)
    consumer = build_consumer(pair.through, "slow", "slow-group", SMALL_BYTES)
    consumer.assign([TopicPartition(topic, 0, 0)])
    places: list[tuple[float, int]] = []

    def crawl() -> dict[str, Any] | None:
        consumer.consume(1, timeout=1.0)
        time.sleep(0.9)  # slower than the two records of a second; how much is measured below
        row = find_reader(view(pair), topic)
        if row is None:
            return None
        places.append((time.time(), row["offset"]))
        return row if row["retention"]["state"] == "leaves" else None

    row = wait_for(crawl)
    kept_s = RETENTION_MS / 1000 - row["behindS"]
    pace = 1 - kept_s / row["retention"]["inS"]
    assert 0 <= pace < 1
    (first_at, first), (last_at, last) = places[0], places[-1]
    measured = (last - first) * STEP_MS / 1000 / (last_at - first_at)
    bite_s = 2 * SMALL_BYTES / RECORD_BYTES * STEP_MS / 1000
    assert abs(pace - measured) <= bite_s / min(last_at - first_at, 15), "a bite more or less"
    assert (
        abs(row["behindS"] - (time.time() - (begun_ms + row["offset"] * STEP_MS) / 1000))
        < bite_s + 5
    )
    consumer.close()


def test_sums_are_those_of_the_metrics_and_of_the_clients(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    before = sum(pair.sidecar.fetch_counts().values())
    consumer = build_consumer(pair.through, "tail-1", "live")
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.consume(1, timeout=1.0)
    producer = Producer({"bootstrap.servers": pair.through})
    got = 0
    for _ in range(300):
        producer.produce(topic, b"v" * RECORD_BYTES, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    while got < 300:
        got += len(consumer.consume(300, timeout=1.0))
    said = wait_for(
        lambda: next(
            (
                s
                for s in [view(pair)]
                if any(o["name"] == topic and o["answers"] for o in s["topics"])
            ),
            None,
        )
    )
    total = sum(pair.sidecar.fetch_counts().values())
    said = wait_for(
        lambda: next((s for s in [view(pair)] if s["fetch"]["bytesSinceStart"] == total), None)
    )
    (row,) = [one for one in said["topics"] if one["name"] == topic]
    assert 300 * RECORD_BYTES < row["bytes"] <= total - before
    assert row["bytes"] == row["hitBytes"] + row["missBytes"] + row["passBytes"]
    assert row["hitBytes"] > 0
    assert [one["name"] for one in said["clients"] if one["name"] == "tail-1"] == ["tail-1"]
    assert said["leases"]["held"] <= said["leases"]["watched"] and said["leases"]["watched"] > 0
    statistics = json.loads(pair.sidecar.admin("/cache"))
    assert said["memory"]["capacityBytes"] == statistics["arena_bytes"]
    assert said["forebay"]["ready"] and said["forebay"]["node"] == 1
    consumer.close()


@pytest.mark.skipif(find_chromium() is None, reason=MISSING)
def test_the_page_in_a_browser_shows_who_is_behind(pair: Pair, tmp_path: Path) -> None:
    """Two clients behind, and one that tails. LIVE_VIEW_PICTURE=FILE keeps the picture, for the documents."""
    topic = create_topic(pair.direct, "orders.v1", config={"retention.ms": str(RETENTION_MS)})
    write_old_records(pair, topic)
    names = {"billing-1": "billing", "export-7": "nightly-export"}
    consumers = [build_consumer(pair.through, *one, SMALL_BYTES) for one in names.items()]
    for one in consumers:
        one.subscribe([topic])
    live = create_topic(pair.direct, "payments.v2")
    tail = build_consumer(pair.through, "web-1", "dashboard")
    tail.subscribe([live])
    producer = Producer({"bootstrap.servers": pair.through})

    def are_shown() -> bool:
        for one in consumers:
            one.consume(5, timeout=0.5)
        for _ in range(500):
            producer.produce(live, b"v" * RECORD_BYTES)
        assert producer.flush(PATIENCE_S) == 0
        tail.consume(500, timeout=1.0)
        said = view(pair)
        rows = [row for row in said["readersBehind"]["rows"] if row["topic"] == topic]
        if not said["fetch"]["hitRatio"] or said["fetch"]["hitRatio"] < 0.5:
            return False
        return {row["group"] for row in rows} == set(names.values()) and all(
            row["retention"]["state"] != "unknown" for row in rows
        )

    wait_for(are_shown)
    drawn = threading.Event()

    def read_on() -> None:
        while not drawn.is_set():
            are_shown()

    with ThreadPoolExecutor(1) as clients:
        reading = clients.submit(read_on)
        try:
            address = f"http://{HOST}:{pair.sidecar.admin_port}/"
            document = re.sub("<script>.*?</script>", "", open_address(address), flags=re.DOTALL)
            picture = Path(os.environ.get("LIVE_VIEW_PICTURE") or tmp_path / "page.png")
            screenshot_address(address, picture, 1200, 1150)
        finally:
            drawn.set()
        reading.result(PATIENCE_S)
    assert '<b class="good">ready</b>' in document and topic in document
    assert all(one in document for one in (*names, *names.values(), "web-1", "dashboard"))
    assert picture.stat().st_size > 10_000
    for one in (*consumers, tail):
        one.close()


def test_forebay_top_shows_it(pair: Pair) -> None:
    config = pair.sidecar.directory / "forebay.yaml"
    command = [sys.executable, "-m", "proxy", "top", str(config), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.startswith("Forebay ready") and "Readers behind" in done.stdout
