"""A topic is deleted while nobody reads it, and made again under its name: another topic, with another id.

What memory holds of the deleted one is never told to readers of the new one, by whatever version and client they
ask, and nothing that is written to the new one is taken for the deleted one's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from protocol.errors import ErrorCode
from tests.e2e.test_invalidation import (
    CACHE,
    RECORDS,
    UNTAILED,
    check_hits,
    check_same,
    tail_while,
    write,
)
from tests.kit.broker.topics import create_topic, delete_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader, explain, read_all
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

FORMER, PRESENT = 60, 80
"""Records of the deleted topic and of the one made again: the new log passes the end of the old one."""
STEP_BYTES = 4000
"""Of a Fetch: some batches, not the whole log."""
BY_NAME = (9, 11, 12)
"""Versions that name a topic by its name and carry a leader epoch (FetchRequest.json: from 9 on, to 12)."""
BY_NAME_AND_ID = (12, 13)
KAFKA_PYTHON = "kafka-python"
PATIENCE_S = 60.0
POLL_S = 0.1


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}, shared=proxied) as running:
        yield running


def wait_unwatched(pair: Pair) -> None:
    """Until Forebay's watch follows nothing any more, which is some time after the last reader has gone."""
    deadline = time.monotonic() + PATIENCE_S
    while pair.sidecar.metrics()["forebay_watch_partitions",]:
        assert time.monotonic() < deadline, "partitions that nobody reads are still watched"
        time.sleep(POLL_S)


def make_former(pair: Pair) -> str:
    """A topic whose records memory holds."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "former", FORMER), FORMER)
    check_same(pair, topic)
    return topic


def make_again(pair: Pair, topic: str) -> None:
    """Another topic of that name, with other records, which come through Forebay."""
    delete_topic(pair.direct, topic)
    create_topic(pair.direct, topic)
    write(pair, topic, "present", PRESENT)


def read_raw(pair: Pair, topic: str, version: int) -> bytes:
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, version=version, max_bytes=STEP_BYTES)
        return reader.read_to(PRESENT)


def read_python(pair: Pair, topic: str) -> list[bytes]:
    """Values, as kafka-python is given them."""
    consumer = KafkaConsumer(
        bootstrap_servers=pair.through,
        enable_auto_commit=False,
        max_partition_fetch_bytes=STEP_BYTES,
    )
    consumer.assign([PythonPartition(topic, 0)])
    consumer.seek(PythonPartition(topic, 0), 0)
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < PRESENT and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            values += [record.value for record in records]
    consumer.close()
    return values


def test_the_deleted_topics_records_do_not_reach_readers_by_name(pair: Pair) -> None:
    """Nobody reads the old topic when it goes, so Forebay is not told. A consumer that asks by name, and carries a
    leader epoch, reads the new topic from its beginning in small steps: it is given the new topic's records alone.
    """
    readers: list[int | str] = [*BY_NAME, KAFKA_PYTHON]
    topics = {reader: make_former(pair) for reader in readers}
    wait_unwatched(pair)
    wrong: dict[int | str, str] = {}
    for reader, topic in topics.items():
        make_again(pair, topic)
        if isinstance(reader, str):
            values = read_python(pair, topic)
            assert len(values) >= PRESENT
            former = sum(value.startswith(b"former-") for value in values)
        else:
            through, direct = read_raw(pair, topic, reader), read_all(pair.direct, topic)
            former = through.count(b"former-")
            if through != direct and not former:
                wrong[reader] = explain(through, direct)
        if former:
            wrong[reader] = f"{former} records of the deleted topic"
    assert not wrong
    for topic in topics.values():
        assert b"former-" not in check_same(pair, topic, least=UNTAILED)


def test_an_answer_by_name_does_not_keep_the_deleted_topic_alive(pair: Pair) -> None:
    """One consumer asks by the old id, as it did before, and must be told that there is no such topic; another's
    Fetches by name are answered by the new topic, and say nothing about the old.
    """
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as stale, RawClient(pair.through) as other:
        old = RawReader(stale, topic).settle()
        tail_while(old, lambda: write(pair, topic, "former", FORMER), FORMER)
        wait_unwatched(pair)
        make_again(pair, topic)
        RawReader(other, topic, version=BY_NAME[-1], offset=FORMER, max_bytes=STEP_BYTES).read_to(
            PRESENT
        )
        for offset in (0, FORMER - 1, FORMER, PRESENT):
            old.offset = offset
            old.raw.clear()
            with pytest.raises(FetchFailed) as refused:
                old.poll()
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID


def test_what_is_produced_by_name_belongs_to_the_new_topic(pair: Pair) -> None:
    """A producer writes by name to the topic made again before anybody reads it. Forebay may take it for the old one's
    until Metadata says otherwise: that alone shows nothing to anybody, since no answer by id confirms the old topic.
    Readers are given what the broker has, from there on from memory.
    """
    topics = {version: make_former(pair) for version in BY_NAME_AND_ID}
    wait_unwatched(pair)
    for version, topic in topics.items():
        make_again(pair, topic)
        with RawClient(pair.through) as client:
            reader = RawReader(client, topic, version=version, offset=FORMER, max_bytes=STEP_BYTES)
            through = reader.read_to(PRESENT)
            direct = read_all(pair.direct, topic, start=FORMER)
            assert through == direct, explain(through, direct)
            check_hits(pair, reader, topic, "tailed", PRESENT + RECORDS)
        assert b"former-" not in check_same(pair, topic, least=UNTAILED)
        check_same(pair, topic, start=PRESENT)
