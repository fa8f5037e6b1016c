"""What leaves from memory: small answers in one piece without pins, others as views, pinned until they have left."""

from types import SimpleNamespace

import pytest

from protocol import fetch
from proxy.fetch.response import COPIED_BYTES, build_answer
from proxy.fetch.sessions.context import open_fetch
from proxy.partitions.readable import PartitionStatus, ReadState
from tests.kit.cache_batches import build_batch
from tests.proxy.asked import IDS, asked
from tests.proxy.asked import fetch as build_fetch
from tests.proxy.followed import TOPIC_ID, QuietBroker, learn


class Record:
    """A session-less Fetch of one partition at offset 0; `buffers` and `hits` are what it was answered with."""

    def __init__(self, broker, *, is_first=True, unsent_bytes=0):
        self.request = build_fetch((0, -1), asked(TOPIC_ID, 0, max_bytes=1 << 20))
        self.head = SimpleNamespace(api_version=IDS, correlation_id=7)
        self.context = open_fetch(no_sessions(), self.request, IDS, "owner", 0.0)
        self.reply = object()
        self.received_at = 0.0
        self.used = []
        self.link = SimpleNamespace(
            broker=broker,
            authorization=SimpleNamespace(used=lambda *args: self.used.append(args)),
            replies=SimpleNamespace(oldest=self.reply if is_first else object()),
            wire=SimpleNamespace(unsent_bytes=unsent_bytes),
        )

    def served(self, told, buffers, hits, held_bytes):
        assert not self.used, "its right is looked after once it has left"
        self.told, self.buffers, self.hits, self.held_bytes = told, buffers, list(hits), held_bytes


def no_sessions():
    """A session table that knows none."""
    return SimpleNamespace(find=lambda _id, _owner: None)


def answer(size_bytes, **how):
    """A record of a broker that has one batch of that size stored."""
    broker = QuietBroker(4 << 20)
    broker.verifier = SimpleNamespace(offer=lambda *_args: None)
    partition = broker.follow()
    learn(partition, 1)
    stored = build_batch(0, size=size_bytes)
    broker.cache.insert(partition.slot, stored, 0, len(stored), 0)
    record = Record(broker, **how)
    status = PartitionStatus(record.request.partitions[0], partition, ReadState.READABLE, "", 1)
    build_answer(record, [status], [None])
    return record, stored, broker


@pytest.mark.parametrize(
    ("size_bytes", "how", "is_copied"),
    [
        (COPIED_BYTES, {}, True),
        (COPIED_BYTES + 1, {}, False),
        (COPIED_BYTES, {"is_first": False}, False),
        (COPIED_BYTES, {"unsent_bytes": 1}, False),
    ],
)
def test_a_small_answer_that_nothing_is_before_leaves_in_one_piece_without_pins(
    size_bytes, how, is_copied
):
    record, stored, broker = answer(size_bytes, **how)
    frame = b"".join(record.buffers)
    said = fetch.scan_response(frame, IDS).partitions[0]
    assert frame[said.start : said.end] == stored
    assert (len(record.buffers) == 1, record.hits == []) == (is_copied, is_copied)
    assert broker.cache.statistics().pinned_bytes == 0 or not is_copied
    assert [one.size_bytes for one in record.told] == [size_bytes]
    assert record.held_bytes == (size_bytes if is_copied else 0), "a copy is charged"
    assert len(record.used) == 1


def leave(broker, partition, *, limit_offset=1, isolation_level=0, max_bytes=1 << 20, **how):
    record = Record(broker, **how)
    record.request = record.request._replace(isolation_level=isolation_level)
    asking = record.request.partitions[0]._replace(max_bytes=max_bytes)
    build_answer(
        record, [PartitionStatus(asking, partition, ReadState.READABLE, "", limit_offset)], [None]
    )
    return b"".join(record.buffers)


def test_those_who_ask_alike_while_many_leave_are_told_alike_with_one_look_at_memory(monkeypatch):
    _, _, broker = answer(1000)
    partition = broker.follow()
    lookups = []
    lookup = broker.cache.lookup
    monkeypatch.setattr(broker.cache, "lookup", lambda *args: lookups.append(args) or lookup(*args))
    alone = [leave(broker, partition) for _ in range(2)]
    assert len(lookups) == 2
    broker.accounts.hold()
    assert [leave(broker, partition) for _ in range(3)] == [alone[0]] * 3
    assert len(lookups) == 3
    leave(broker, partition, limit_offset=2)
    leave(broker, partition, max_bytes=1001)
    assert len(lookups) == 5, "another question"
    leave(broker, partition, unsent_bytes=1)
    assert len(lookups) == 6, "what waits is a view of its own"
    broker.accounts.settle()
    leave(broker, partition)
    assert len(lookups) == 7, "and not beyond that moment"
