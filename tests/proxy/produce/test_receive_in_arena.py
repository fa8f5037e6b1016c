"""A large Produce received in the arena: its conditions, storing without a copy, and the return of memory."""

import pytest

from protocol.framing import Framer
from proxy.produce.receive_in_arena import find_lender, lend_to_produce
from tests.kit.cache_batches import read
from tests.protocol.batches import batch_v2
from tests.protocol.test_produce_rows import build
from tests.proxy.followed_partition import EPOCH, QuietBroker, learn, stand_in
from tests.proxy.net.test_framed_transport import Listening
from tests.proxy.partitions.test_store_bytes import APPENDED_MS, GZIP, ZSTD, as_stored, said_to_be
from tests.proxy.produce_link import Link

BEGUN = 400
TRANSACTION = {"transactional": True, "producer": (7, 0, 40)}


def large_batch(**values):
    return batch_v2(3, value=b"large" * 10_000, **values)


@pytest.fixture
def link():
    """Of a client whose partition is followed, at HW and tail 100, and that has produced there before."""
    broker = QuietBroker(16 << 20)
    partition = broker.follow()
    learn(partition, 100)
    partition.tail = 100
    partition.topic.fidelity.learn(False)
    partition.topic.fidelity.trust(0)
    made = Link(broker)
    assert made.produce(batch_v2(1))
    made.sent.clear()
    made.replies.places.clear()
    return made


def partition_of(link):
    return link.broker.follow()


def lend(link, frame, begun=BEGUN):
    """The frame in the arena's memory, or None where it is not lent."""
    memory = lend_to_produce(link.broker, frame[:begun], len(frame))
    if memory is not None:
        memory[:] = frame
    return memory


def go(link, frame):
    """The frame, received into lent memory, goes to the broker; nobody else has it."""
    memory = lend(link, frame)
    assert memory is not None
    link.receive(memory)


def stored(link, offset):
    return read(link.broker.cache, partition_of(link).slot, offset)


def counts(link):
    """Batches stored in place, bytes lent, pins."""
    statistics = link.broker.cache.statistics()
    return statistics.adopted_batches, statistics.lent_bytes, statistics.pins


@pytest.mark.parametrize("version", [3, 9, 12])
def test_every_version_is_received_in_the_arena(link, version):
    assert link.produce(batch_v2(1), version=version)
    assert lend(link, build(version, records=large_batch(), index=0)) is not None


def test_acknowledged_batch_is_stored_without_a_copy(link):
    sent = large_batch()
    frame = build(9, records=sent, index=0)
    go(link, frame)
    assert link.sent[0][0] == frame
    link.reply(100)
    assert stored(link, 100) == as_stored(sent, 100)
    assert partition_of(link).tail == 103
    assert counts(link) == (1, 0, 0)
    link.broker.cache.check()


def test_unknown_partition_gets_no_memory(link):
    frame = build(9, records=large_batch(), index=0)
    link.broker.routes.clear()
    assert lend(link, frame) is None
    assert link.produce(batch_v2(1), index=0)
    assert lend(link, frame) is not None


@pytest.mark.parametrize("begun", [0, 3, 20, 60, 95])
def test_too_little_of_it_says_nothing(link, begun):
    assert lend(link, build(9, records=large_batch(), index=0), begun) is None


@pytest.mark.parametrize(
    ("records", "values"),
    [
        (large_batch(), {"partitions": 2}),
        (large_batch(), {"topics": 2}),
        (large_batch(), {"acks": 0}),
        (large_batch() + b"\0", {}),
        (large_batch() * 2, {}),
        (large_batch(**TRANSACTION), {}),
        (said_to_be(GZIP, large_batch()), {}),
    ],
    ids=["partitions", "topics", "acks", "more", "batches", "transaction", "codec"],
)
def test_other_produce_is_received_on_the_heap(link, records, values):
    assert lend(link, build(9, records=records, index=0, **values)) is None


@pytest.mark.parametrize("why", ["epoch", "timestamps", "log append time", "zstd", "not stored"])
def test_unstorable_produce_is_received_on_the_heap(link, why):
    partition, records = partition_of(link), large_batch()
    if why == "epoch":
        partition.leader_state.epoch = -1
    elif why == "timestamps":
        partition.topic.fidelity.native.log_append_time = -1
    elif why == "log append time":
        partition.topic.fidelity.learn(True)
    elif why == "zstd":
        records = said_to_be(ZSTD, records)
        partition.topic.fidelity.trust(ZSTD)
    else:
        silent = Link(link.broker, stores=False)
        assert silent.produce(batch_v2(1), index=0)
    assert lend(link, build(9, records=records, index=0)) is None


def test_error_or_lost_connection_returns_the_memory(link):
    frame = build(9, records=large_batch(), index=0)
    go(link, frame)
    assert counts(link)[1] > 0
    link.reply(-1, error_code=19)
    assert counts(link) == (0, 0, 0)
    go(link, frame)
    link.sent.pop()[1](None)
    link.replies.abandon()
    assert counts(link) == (0, 0, 0)
    link.broker.cache.check()


def test_unsent_request_keeps_the_memory(link):
    """The broker may answer before it has read all: an error, or even a success."""
    sent = large_batch()
    frame = build(9, records=sent, index=0)
    for base_offset, error_code in ((-1, 19), (100, 0)):
        memory = lend(link, frame)
        unsent = memory[70_000:]
        link.receive(memory)
        del memory
        link.reply(base_offset, error_code=error_code)
        assert counts(link)[2] == 1 and counts(link)[1] > len(frame)
        link.broker.cache.evict_to(0)
        assert link.broker.cache.reserve(200_000) is not None
        assert unsent == frame[70_000:]
        del unsent
        assert counts(link)[1:] == (0, 0)
    assert counts(link)[0] == 1
    link.broker.cache.check()


def test_early_acknowledgement_adopts_the_batch(link):
    sent, partition = large_batch(), partition_of(link)
    frame = build(9, records=sent, index=0)
    go(link, frame)
    go(link, frame)
    link.reply(103)
    assert counts(link)[0] == 1
    assert partition.tail == 100
    link.reply(100)
    assert partition.tail == 106
    assert link.failures == []
    assert stored(link, 100) == as_stored(sent, 100) + as_stored(sent, 103)
    assert counts(link) == (2, 0, 0)
    link.broker.cache.check()


def test_stamped_batch_is_copied(link):
    sent, partition = large_batch(), partition_of(link)
    go(link, build(9, records=sent, index=0))
    partition.topic.fidelity.learn(True)
    link.reply(100, append_time_ms=APPENDED_MS)
    assert stored(link, 100) == as_stored(sent, 100, EPOCH, APPENDED_MS)
    assert counts(link) == (0, 0, 0)
    link.broker.cache.check()


def test_produce_beyond_the_limit_uses_the_heap(link):
    frame, held = build(9, records=large_batch(), index=0), []
    while (memory := lend(link, frame)) is not None:
        held.append(memory)
    statistics = link.broker.cache.statistics()
    block_bytes = statistics.lent_bytes // len(held)
    assert 0 <= statistics.lent_limit_bytes - statistics.lent_bytes < block_bytes
    memory = None
    held.pop()
    assert lend(link, frame) is not None


class Receiving(Listening):
    """A wire whose large frames may be lent memory."""

    def __init__(self, link, eager_bytes=1 << 20):
        super().__init__()
        self.framed.framer = Framer(1 << 24, eager_bytes=eager_bytes)
        self.framed.framer.lend = find_lender(link.broker, stores=True)


def test_transport_receives_into_the_arena(link):
    frame = build(9, records=large_batch(), index=0)
    played = Receiving(link)
    played.receive(frame[:BEGUN])
    assert counts(link)[1] == 0, "what has come may be all that comes"
    played.receive(frame[BEGUN:][:BEGUN])
    assert counts(link)[1] > 0
    played.receive(frame[2 * BEGUN :] + frame[:BEGUN])
    played.receive(frame[BEGUN:-1])
    assert played.frames == [frame]
    played.frames.clear()
    assert counts(link)[2] == 1, "the second, which has begun"
    played.transport.protocol.connection_lost(None)
    assert counts(link) == (0, 0, 0)


@pytest.mark.parametrize("more", [0, 1])
def test_lent_memory_per_connection_is_limited(link, more):
    frame = build(9, records=large_batch(), index=0)
    played = Receiving(link, eager_bytes=len(frame) - more)
    played.receive(frame[:BEGUN])
    played.receive(frame[BEGUN:][:BEGUN])
    assert (counts(link)[1] > 0) is not bool(more)
    played.receive(frame[2 * BEGUN :])
    assert played.frames == [frame]


def test_an_error_of_ours_costs_the_client_nothing(link):
    link.broker.cache.reserve = None
    frame = build(9, records=large_batch(), index=0)
    played = Receiving(link)
    played.receive(frame[:BEGUN])
    played.receive(frame[BEGUN:])
    assert played.frames == [frame]
    assert link.failures == ["lending memory to a Produce"]


def test_listener_without_cache_has_no_lender(link):
    assert find_lender(link.broker, stores=False) is None
    assert find_lender(stand_in(QuietBroker(observe=True)), stores=True) is None
