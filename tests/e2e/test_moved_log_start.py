"""The log start passes the high watermark that Forebay knew: everything that it knew of is deleted.

Writers that bypass Forebay append while nobody reads through it, then DeleteRecords moves the log start beyond what
was the end. Forebay's own next question is about an offset that is not there any more; memory must find back.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from protocol.errors import ErrorCode
from tests.e2e.test_invalidation import (
    CACHE,
    RECORDS,
    check_hits,
    check_same,
    delete_records,
    poll_until_error,
    tail_while,
    write,
)
from tests.e2e.test_recreated_topic import wait_unwatched
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

NEW_START = RECORDS + RECORDS // 2


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}, shared=proxied) as running:
        yield running


@pytest.fixture(scope="module")
def topics(pair: Pair) -> list[str]:
    """Three, of which Forebay knew all of the first RECORDS records, which are gone; NEW_START is the log start."""
    found = [create_topic(pair.direct) for _ in range(3)]
    for topic in found:
        with RawClient(pair.through) as client:
            reader = RawReader(client, topic).settle()
            tail_while(reader, partial(write, pair, topic, "known"), RECORDS)
        check_same(pair, topic)
    wait_unwatched(pair)
    for topic in found:
        write(cast("Pair", SimpleNamespace(through=pair.direct)), topic, "unseen")
        delete_records(pair, topic, NEW_START)
    return found


@pytest.mark.parametrize(
    ("version", "with_epoch", "number"),
    [(13, False, 0), (13, True, 1), (12, False, 2)],
    ids=["by-id", "by-id-with-epoch", "by-name"],
)
def test_the_tail_is_served_from_memory_again(
    pair: Pair, topics: list[str], version: int, number: int, *, with_epoch: bool
) -> None:
    """A consumer reads on from the new log start, and tails: what it reads comes from memory."""
    topic = topics[number]
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, version=version, offset=NEW_START, with_epoch=with_epoch)
        reader.read_to(2 * RECORDS)
        assert b"known-" not in reader.raw
        check_hits(pair, reader, topic, "after", 3 * RECORDS)
        assert reader.log_start_offset == NEW_START
        late = RawReader(client, topic, version=version, with_epoch=with_epoch)
        for offset in (0, RECORDS, NEW_START - 1):
            assert poll_until_error(late, 0, offset) == ErrorCode.OFFSET_OUT_OF_RANGE
    check_same(pair, topic, start=2 * RECORDS)
