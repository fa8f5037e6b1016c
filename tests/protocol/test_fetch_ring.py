"""A ring of a client's partitions against a plain comparison of lists, and its responses against those of lists."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from protocol.fetch_build import (
    FetchAnswer,
    add_records,
    build_request,
    build_response,
    build_ring_heads,
)
from protocol.fetch_ring import FetchRing
from protocol.fetch_rows import scan_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchRequest
    from protocol.primitives import TopicNameOrId

VERSIONS = range(4, 19)
MOST = 1 << 16
REQUESTS = 60


def list_partitions(version: int, topics: int, each: int) -> list[FetchPartition]:
    """The partitions of so many topics, as a client of this version names them."""
    named: list[TopicNameOrId] = [number.to_bytes(16) for number in range(topics)]
    if version < TOPIC_IDS_FROM:
        named = ["t" * number + "ü" for number in range(topics)]
    absent = FetchPartition("", 0, -1, 7, -1, -1, 1000)
    return [absent._replace(topic=t, partition=index) for t in named for index in range(each)]


def scan(
    version: int, partitions: Sequence[FetchPartition], ring: FetchRing | None, **fields: int
) -> FetchRequest:
    """The request of these partitions as the scan gives it."""
    values = {
        "max_wait_ms": 1,
        "min_bytes": 1,
        "max_bytes": 1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        **fields,
    }
    frame = build_request(
        version, 1, "client", partitions=partitions, forgotten=(), rack_id="", **values
    )
    scanned = scan_request(frame, MOST, ring)
    assert scanned is not None
    return scanned[1]


def key(one: FetchPartition) -> tuple[TopicNameOrId, int]:
    return one[:2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("topics", "each"), [(1, 40), (40, 1), (5, 8)])
def test_a_request_is_matched_as_lists_are(version: int, topics: int, each: int) -> None:
    draw = Random(version)
    partitions = list_partitions(version, topics, each)
    ring = FetchRing(version, 0, partitions)
    before: dict[tuple[TopicNameOrId, int], FetchPartition] = {}
    for number in range(REQUESTS):
        first = number % len(partitions)
        asked = partitions[first:] + partitions[:first]
        left_out = set(draw.sample(range(len(asked)), draw.choice([0, 0, 3])))
        asked = [one for at, one in enumerate(asked) if at not in left_out]
        for at in draw.sample(range(len(asked)), draw.randrange(4)):
            asked[at] = asked[at]._replace(fetch_offset=draw.randrange(1 << 40))
            partitions[partitions.index(one_of(partitions, asked[at]))] = asked[at]
        request = scan(version, asked, ring)
        assert request.is_repeated
        assert request.partitions == asked
        changed = {key(ring.asked[slot]) for slot in ring.changed}
        assert changed == {key(one) for one in asked if before.get(key(one)) != one}
        dropped = {key(ring.asked[slot]) for slot in ring.dropped}
        assert dropped == before.keys() - {key(one) for one in asked}
        places = {key(one): ring.place[slot] for slot, one in enumerate(ring.asked)}
        assert [places[key(one)] for one in asked] == list(range(len(asked)))
        before = {key(one): one for one in asked}


def one_of(partitions: Sequence[FetchPartition], asked: FetchPartition) -> FetchPartition:
    """That of the same key."""
    return next(one for one in partitions if key(one) == key(asked))


@pytest.mark.parametrize("version", [4, 12, 13])
def test_what_the_ring_does_not_have_is_not_matched(version: int) -> None:
    partitions = list_partitions(version, 3, 4)
    more = list_partitions(version, 4, 5)
    for asked in (
        [*partitions, more[-1]],
        [*partitions[:-1], more[4]],
        [*partitions, partitions[0]],
        [partitions[0], *partitions[:-1]],
        [],
    ):
        request = scan(version, asked, FetchRing(version, 0, partitions))
        assert not request.is_repeated
        assert request.partitions == asked


def test_another_version_and_forgotten_partitions_are_not_matched() -> None:
    partitions = list_partitions(13, 1, 4)
    assert not scan(14, partitions, FetchRing(13, 0, partitions)).is_repeated
    forgotten = [(partitions[0].topic, 9)]
    frame = build_request(
        13,
        1,
        None,
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=partitions,
        forgotten=forgotten,
    )
    scanned = scan_request(frame, MOST, FetchRing(13, 0, partitions))
    assert scanned is not None
    assert not scanned[1].is_repeated
    assert scanned[1].forgotten == forgotten


def test_an_order_that_takes_many_rounds_is_not_matched() -> None:
    partitions = list_partitions(13, 1, 64)
    assert not scan(13, partitions[::-1], FetchRing(13, 0, partitions)).is_repeated
    moved = [*partitions[2:], partitions[1], partitions[0]]
    assert scan(13, moved, FetchRing(13, 0, partitions)).is_repeated


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("topics", "each"), [(1, 12), (12, 1), (3, 4)])
def test_the_response_is_that_of_lists(version: int, topics: int, each: int) -> None:
    draw = Random(version)
    partitions = list_partitions(version, topics, each)
    ring = FetchRing(version, 0, partitions)
    shown: dict[tuple[TopicNameOrId, int], FetchAnswer] = {}
    for number in range(REQUESTS):
        first = number % len(partitions)
        asked = partitions[first:] + partitions[:first]
        if number % 3 == 2:
            asked = asked[draw.randrange(1, len(asked)) :]
        assert scan(version, asked, ring).is_repeated
        news = [one for one in asked if key(one) not in shown or draw.random() < 0.3]
        answers = [build_answer(one, draw) for one in news]
        slots = [next(s for s, o in enumerate(ring.asked) if key(o) == key(one)) for one in news]
        heads = build_ring_heads(ring, slots, number, 3, answers)
        given = dict(zip(map(key, news), answers, strict=True))
        whole = [given.get(key(one)) or shown[key(one)] for one in asked]
        expected = build_response(
            version, number, throttle_time_ms=3, error_code=0, session_id=0, partitions=whole
        )
        records = [one.records for one in answers if one.records_bytes]
        assert b"".join(add_records(heads, records)) == b"".join(expected)
        shown |= {
            name: one._replace(
                records=(), records_bytes=0, aborted=None if one.aborted is None else ()
            )
            for name, one in given.items()
        }


def build_answer(asked: FetchPartition, draw: Random) -> FetchAnswer:
    """Any answer: with records and aborted transactions, or without."""
    aborted = draw.choice([None, (), ((1, 2), (3, 4))])
    records = bytes(draw.choice([0, 0, 70]))
    return FetchAnswer(
        asked.topic,
        asked.partition,
        draw.choice([0, 0, 6]),
        draw.randrange(-1, 1 << 62),
        draw.randrange(-1, 1 << 62),
        draw.randrange(-1, 1 << 62),
        aborted,
        (records,) if records else (),
        len(records),
    )


def test_the_memory_for_heads_grows() -> None:
    partitions = list_partitions(13, 3000, 1)
    ring = FetchRing(13, 0, partitions)
    assert scan(13, partitions, ring).is_repeated
    answers = [FetchAnswer(*key(one), 0, 5, 5, 0, None, (b"r",), 1) for one in partitions]
    heads, cuts = build_ring_heads(ring, range(len(partitions)), 1, 0, answers)
    assert len(cuts) == len(partitions)
    expected = build_response(
        13, 1, throttle_time_ms=0, error_code=0, session_id=0, partitions=answers
    )
    whole = b"".join(add_records((heads, cuts), [(b"r",)] * len(cuts)))
    assert whole == b"".join(expected)
