"""read_committed through Forebay: the broker's bytes, aborted lists and last stable offsets, from memory.

The raw consumer tails while transactions are committed, aborted, interleaved, left open, fenced and timed out; each of
its answers is then held against the broker's own answer to the same Fetch.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.batch import is_control, scan_batches
from tests.e2e.transactional import (
    MOST,
    TIMEOUT_S,
    CommittedReader,
    Writer,
    check_answers,
    count_batches,
    read_offsets,
    tailing,
)
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

QUICK_COORDINATOR = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
ROUNDS = 20
SILENT_S = 9.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(
        cluster={"overrides": QUICK_COORDINATOR}, settings={"cache": PATIENT_CACHE}
    ) as running:
        yield running


def produce_plain(bootstrap: str, topic: str, count: int = 1) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for _ in range(count):
        producer.produce(topic, b"plain" * 40, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
def test_commits_and_aborts(pair: Pair, version: int) -> None:
    with tailing(pair, version) as tail:
        writer = Writer(pair.through, tail.topic, "one")
        for turn in range(ROUNDS):
            writer.write(3)
            writer.end(commits=turn % 3 != 1)
            if turn % 5 == 0:
                tail.wait_stable()
        tail.check(listed=ROUNDS // 3)


@pytest.mark.parametrize("through", [True, False], ids=["through", "past"])
def test_interleaved_producers(pair: Pair, through: bool) -> None:
    """Transactions overlap, with plain records between; written through Forebay and past it."""
    address = pair.through if through else pair.direct
    with tailing(pair) as tail:
        writers = [Writer(address, tail.topic, name) for name in ("a", "b", "c")]
        for turn in range(ROUNDS):
            for number, writer in enumerate(writers):
                writer.write(1 + (turn + number) % 3)
                if (turn + number) % 3 == 0:
                    writer.end(commits=(turn + number) % 2 == 0)
            produce_plain(address, tail.topic)
            if turn % 4 == 0:
                tail.wait_stable()
        for writer in writers:
            writer.end(commits=True)
        tail.check(listed=5)


def test_an_open_transaction_holds_the_last_stable_offset(pair: Pair) -> None:
    with tailing(pair) as tail:
        first, other = (Writer(pair.through, tail.topic, name) for name in ("hanging", "other"))
        first.write(2)
        tail.wait_stable()
        held_at = tail.reader.last_stable_offset
        for _ in range(5):
            other.write(2)
            other.end(commits=True)
            produce_plain(pair.through, tail.topic)
            tail.wait_stable()
        assert tail.reader.last_stable_offset == tail.reader.offset == held_at
        time.sleep(1.5)  # longer than a hole's patience and an idle poll's way into its session
        assert tail.reader.last_stable_offset == held_at
        first.end(commits=False)
        tail.wait_stable()
        assert tail.reader.offset == read_offsets(pair.direct, tail.topic)[0]
        tail.check(listed=1)


def test_a_fenced_producer(pair: Pair) -> None:
    with tailing(pair) as tail:
        writer = Writer(pair.through, tail.topic, "fenced")
        for turn in range(8):
            writer.write(2)
            if turn % 2:
                writer.end(commits=True)
            else:
                writer.renew()
            tail.wait_stable()
        tail.check(listed=4)


def test_a_transaction_that_times_out(pair: Pair) -> None:
    """Its producer never was a client here, and is silent: the coordinator aborts it."""
    with tailing(pair) as tail:
        writer = Writer(pair.through, tail.topic, "warm")
        for _ in range(6):
            writer.write(1)
            writer.end(commits=True)
        silent = Writer(pair.direct, tail.topic, "silent", transaction_timeout_ms=1500)
        silent.write(3)
        writer.write(2)
        writer.end(commits=True)
        tail.wait_stable()
        high_watermark = read_offsets(pair.direct, tail.topic)[0]
        assert tail.reader.offset < high_watermark
        deadline = time.monotonic() + TIMEOUT_S
        while tail.reader.offset <= high_watermark:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        tail.check(listed=1, most=0.5)


def test_a_consumer_that_comes_in_the_middle_of_a_transaction(pair: Pair) -> None:
    """Forebay has seen nothing of it: the consumer waits at the LSO, gets it from the broker, and then tails."""
    topic = create_topic(pair.direct)
    writer = Writer(pair.direct, topic, "early")
    writer.write(3)
    writer.end(commits=False)
    writer.write(3)
    with RawClient(pair.through, "late") as client:
        reader = CommittedReader(client, topic)
        reader.settle()
        assert reader.offset == reader.last_stable_offset == 4
        writer.end(commits=True)
        reader.wait_stable(8)
        for turn in range(10):
            writer.write(2)
            writer.end(commits=turn % 2 == 0)
            reader.wait_stable(read_offsets(pair.direct, topic)[1])
        assert check_answers(pair.direct, topic, reader.answers) >= 5
    assert count_batches(reader.answers) > 20


def test_a_reader_behind_the_tail_is_told_what_was_aborted(pair: Pair) -> None:
    """Steps back at random into what memory holds, with small fetches."""
    with tailing(pair) as tail:
        writers = [Writer(pair.through, tail.topic, name) for name in ("a", "b")]
        for turn in range(ROUNDS):
            for number, writer in enumerate(writers):
                writer.write(2)
                if (turn + number) % 2:
                    writer.end(commits=(turn % 4) < 2)
        for writer in writers:
            writer.end(commits=False)
        tail.wait_stable()
        end = tail.reader.offset
        with RawClient(pair.through, "behind") as client:
            behind = CommittedReader(client, tail.topic)
            behind.settle(polls=1)
            behind.answers.clear()
            hits = tail.hits()
            for start in range(end // 2, end, 3):
                for max_bytes in (1, 700, 1 << 20):
                    behind.offset, behind.max_bytes = start, max_bytes
                    behind.poll()
            assert check_answers(pair.direct, tail.topic, behind.answers) > 20
            assert tail.hits() - hits >= MOST * sum(len(one.records) for one in behind.answers)
        tail.check(listed=10)


def test_a_transaction_without_records(pair: Pair) -> None:
    """Its partition was added before the abort dropped what had not been sent: a marker that ends nothing here."""
    with tailing(pair) as tail:
        writer = Writer(pair.through, tail.topic, "full")
        empty = Writer(pair.through, tail.topic, "empty", linger_ms=5000)
        for _ in range(8):
            writer.write(2)
            before = read_offsets(pair.direct, tail.topic)[0]
            empty.begin()
            empty.producer.produce(tail.topic, b"never sent", partition=0)
            empty.producer.poll(0.2)
            empty.end(commits=False)
            assert read_offsets(pair.direct, tail.topic)[0] <= before + 1
            writer.end(commits=True)
            tail.wait_stable()
        raw = read_all(pair.direct, tail.topic)
        markers = [one for one in scan_batches(raw, 0, len(raw)) if is_control(one.attributes)]
        assert len(markers) > 8
        tail.check()


def test_who_waits_at_the_lso_stays_while_the_broker_is_silent(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    writer = Writer(pair.direct, topic, "open")
    writer.write(1)
    writer.end(commits=True)
    writer.write(2)
    with RawClient(pair.through, "patient") as client:
        reader = CommittedReader(client, topic)
        reader.settle()
        assert reader.offset == reader.last_stable_offset == reader.high_watermark - 2
        waker = threading.Timer(SILENT_S, pair.broker.wake)
        pair.broker.stall()
        waker.start()
        try:
            started = time.monotonic()
            assert reader.poll(5000) == 0  # longer than the lease
            assert 4.5 < time.monotonic() - started < SILENT_S
        finally:
            waker.cancel()
            pair.broker.wake()
        writer.end(commits=True)
        reader.wait_stable(5)


def test_records_deleted_in_the_middle_of_an_aborted_transaction(pair: Pair) -> None:
    """It is listed still, with the offset of its first record, which is no more."""
    with tailing(pair) as tail:
        writers = [Writer(pair.through, tail.topic, name) for name in ("a", "b")]
        for turn in range(8):
            for writer in writers:
                writer.write(3)
                writer.write(3)
            writers[turn % 2].end(commits=False)
        for writer in writers:
            writer.end(commits=False)
        tail.wait_stable()
        log_start = tail.reader.offset // 2
        admin = AdminClient({"bootstrap.servers": pair.direct})
        (deleted,) = admin.delete_records([TopicPartition(tail.topic, 0, log_start)]).values()
        assert deleted.result(TIMEOUT_S).low_watermark == log_start
        writers[0].write(1)
        writers[0].end(commits=True)
        tail.wait_stable()
        with RawClient(pair.through, "behind") as client:
            behind = CommittedReader(client, tail.topic, offset=log_start)
            for offset in (log_start, log_start, log_start + 1, log_start + 7):
                behind.offset = offset
                behind.poll(200)
            assert behind.log_start_offset == log_start
            assert check_answers(pair.direct, tail.topic, behind.answers) >= 4
        tail.reader.answers = [one for one in tail.reader.answers if one.fetch_offset >= log_start]
        tail.check(most=0)


def test_a_restarted_broker_and_a_transaction_that_outlives_it(pair: Pair) -> None:
    """A new leader epoch: what was known of transactions is known no more, until the broker shows its LSO."""
    topic = create_topic(pair.direct)
    writer, hanging = (Writer(pair.through, topic, name) for name in ("writer", "hanging"))
    answers = []
    with RawClient(pair.through, "before") as client:
        reader = CommittedReader(client, topic)
        reader.settle()
        for turn in range(8):
            writer.write(2)
            writer.end(commits=turn % 2 == 0)
        hanging.write(2)
        writer.write(1)
        writer.end(commits=True)
        reader.wait_stable(read_offsets(pair.direct, topic)[1])
        answers += reader.answers
    pair.broker.stop(gracefully=True)
    pair.broker.start()
    with RawClient(pair.through, "after") as client:
        after = CommittedReader(client, topic, offset=reader.offset)
        after.settle()
        assert after.offset == reader.offset
        for turn in range(12):
            writer.write(2)
            writer.end(commits=turn % 2 == 0)
        after.poll(100)
        assert after.offset == after.last_stable_offset == reader.offset
        hanging.end(commits=True)
        after.wait_stable(read_offsets(pair.direct, topic)[1])
        hits = pair.sidecar.fetch_counts()["hit", ""]
        for turn in range(10):
            writer.write(2)
            writer.end(commits=turn % 2 == 0)
            after.wait_stable(read_offsets(pair.direct, topic)[1])
        assert pair.sidecar.fetch_counts()["hit", ""] > hits
        answers += after.answers
    assert check_answers(pair.direct, topic, answers) >= 12
