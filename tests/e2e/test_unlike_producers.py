"""Producers that are not alike: one sends what the broker stores as it is, another what the broker corrects.

What memory learns of a topic it learns from some producer's batch. Another's may carry a greatest timestamp that its
records do not have, which the broker puts right (LogValidator): nobody is served such a batch as it was sent.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

import crc32c
import pytest

from tests.e2e.many_partitions import Partitions
from tests.e2e.test_invalidation import CACHE
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol.batches import TIMESTAMP_MS, batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

COUNT = 8
CRC_AT, CRC_START, MAX_TIMESTAMP_AT = 17, 21, 35
"""Places in a record batch v2 (DefaultRecordBatch)."""
WRONG_MS = TIMESTAMP_MS + 7
CODECS = {"none": 0, "gzip": 1}


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}, shared=proxied) as running:
        yield running


def stamp_wrong(records: bytes) -> bytes:
    """The batch with a greatest timestamp that none of its records has, and a right checksum."""
    wrong = bytearray(records)
    struct.pack_into(">q", wrong, MAX_TIMESTAMP_AT, WRONG_MS)
    struct.pack_into(">I", wrong, CRC_AT, crc32c.crc32c(bytes(wrong[CRC_START:])))
    return bytes(wrong)


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_greatest_timestamp(pair: Pair, codec: str) -> None:
    """A right producer has taught memory the topic; another's one request writes wrong batches to all of its
    partitions. A tailing consumer is given what the broker made of them, and so is who reads them again.
    """
    topic = create_topic(pair.direct, partitions=COUNT)

    def batches(word: str) -> dict[int, bytes]:
        return {
            i: batch_v2(codec=CODECS[codec], value=f"{word}-{i}".encode() * 20)
            for i in range(COUNT)
        }

    with (
        RawClient(pair.through) as client,
        RawClient(pair.through, "right") as right,
        RawClient(pair.through, "wrong") as wrong,
        RawClient(pair.direct) as direct,
    ):
        tail = Partitions(client, topic, range(COUNT))
        for turn in range(3):  # how many batches the broker shows at once is chance
            tail.follow_until_hits(
                pair,
                right,
                partial(lambda turn, number: batches(f"right-{turn}-{number}"), turn),
                from_produce=True,
            )
            starts = dict(tail.offsets)
            tail.read_again(starts)
            tail.follow(
                wrong, {i: stamp_wrong(sent) for i, sent in batches(f"wrong-{turn}").items()}
            )
            unequal = tail.find_unequal(direct, starts)
            assert not unequal, f"{len(unequal)} of {COUNT} partitions at the tail: {unequal}"
            tail.read_again(dict.fromkeys(range(COUNT), 0))
            unequal = tail.find_unequal(direct, dict.fromkeys(range(COUNT), 0))
            assert not unequal, f"{len(unequal)} of {COUNT} partitions, read again: {unequal}"
