"""A Produce there and back: state, response and storing."""

import struct

import pytest

from protocol.primitives import build_uvarint
from protocol.produce_rows import scan_request
from proxy.partitions.leader_state import REFRESH_EPOCH_S
from proxy.produce import targets
from tests.kit.cache_batches import read
from tests.protocol.batches import batch_v2
from tests.protocol.test_produce_rows import build
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker, known, learn
from tests.proxy.produce_link import Link, build_answer, build_many, build_many_answer

ERRORS_NAMED = b"\2\0\0\0\0\0\0" + b"\2x" + b"\0"
"""One record error without a message, the message "x", no tags."""


@pytest.fixture
def link():
    """Of a client whose partition is followed, at HW and tail 100."""
    broker = QuietBroker()
    partition = broker.follow()
    learn(partition, 100)
    partition.tail = 100
    partition.topic.fidelity.learn(False)
    partition.topic.fidelity.trust(0)
    return Link(broker)


def partition_of(link):
    return link.broker.follow()


class Waiter:
    def __init__(self):
        self.acknowledged = []

    def wake(self, partition):
        """Nothing to look at."""

    def note_acknowledged(self, partition):
        self.acknowledged.append(partition)


def test_produce_passes_unchanged_and_is_stored(link):
    assert link.produce(batch_v2(3))
    assert (link.client_id, link.last_ordinal, link.answered_ordinal) == ("c", 1, 0)
    link.reply(100)
    assert link.got == [build_answer(100)]
    assert link.answered_ordinal == 1
    partition = partition_of(link)
    assert (partition.tail, partition.probe_offset, partition.acknowledged_end) == (103, 100, 103)
    assert link.broker.replica_fetcher.asked == [], (
        "nobody waits, and the broker was asked not long ago"
    )
    assert link.broker.counters.produce.took_s.count == 1


def test_replica_fetcher_is_told_of_the_produce(link):
    partition = partition_of(link)
    link.produce(batch_v2(1))
    waiter = Waiter()
    partition.parked[waiter] = None
    link.reply(100)
    assert link.broker.replica_fetcher.asked == [partition]
    assert waiter.acknowledged == [partition]
    partition.parked.clear()
    link.produce(batch_v2(1))
    link.broker.clock_s = partition.leader_state.proven_at + REFRESH_EPOCH_S
    link.reply(101)
    assert link.broker.replica_fetcher.asked == [partition]
    link.produce(batch_v2(1))
    link.broker.clock_s += 0.1
    link.reply(102)
    assert link.broker.replica_fetcher.asked == [partition, partition]


def test_target_is_found_by_version_topic_and_index(link):
    assert link.produce(batch_v2(1)) and link.produce(batch_v2(9))
    assert link.broker.routes.count == 1
    assert link.produce(batch_v2(1), acks=1), "the same partition"
    assert link.broker.routes.count == 1
    assert link.produce(batch_v2(1), index=1)
    assert link.produce(batch_v2(1), version=10), "the same bytes, another version"
    assert link.broker.routes.count == 3


def test_targets_are_limited_and_forgotten(link, monkeypatch):
    monkeypatch.setattr(targets, "TARGETS_LIMIT", 2)
    for index in range(3):
        assert link.produce(batch_v2(1), index=index)
    assert link.broker.routes.count == 1
    link.broker.routes.clear()
    link.broker.partitions.limit = 0
    assert link.produce(batch_v2(1), index=9), "a partition that is not followed"
    assert link.broker.routes.count == 0
    assert link.produce(batch_v2(1), index=2)
    assert link.broker.routes.count == 1


def test_topic_name_suffices_without_a_cache(link):
    silent = Link(link.broker, stores=False)
    assert silent.produce(batch_v2(1), topic="other")
    assert link.broker.routes.count == 1
    assert silent.produce(batch_v2(1), version=13, topic="other")
    assert link.broker.routes.count == 2, "the id is known"
    link.broker.topics.forget(link.broker.topics.find(TOPIC_ID))
    link.broker.routes.clear()
    assert silent.produce(batch_v2(1), version=13)
    assert link.broker.routes.count == 0, "its name will stand for another queue"


def test_client_ids_are_remembered_up_to_a_bound(link, monkeypatch):
    monkeypatch.setattr(targets, "CLIENTS_LIMIT", 2)
    for number in range(5):
        frame = build(9, index=0).replace(b"\0\1c", b"\0\1" + str(number).encode())
        link.receive(frame)
        assert link.client_id == str(number)
        assert len(link.broker.routes.clients) <= 2
    name = b"n" * 2000
    long = build(9, index=0).replace(b"\0\1c", b"\x07\xd0" + name)
    link.receive((len(long) - 4).to_bytes(4, "big") + long[4:])
    assert link.client_id == name.decode()
    assert len(link.broker.routes.clients) <= 2


@pytest.mark.parametrize("unknown", ["topic", "index"])
def test_unknown_topic_is_forwarded_and_not_stored(link, unknown):
    asked = []
    link.broker.topic_lookup.want = lambda topic, _link: asked.append(topic)
    topic = "other" if unknown == "topic" else "orders"
    if unknown == "index":
        known = link.broker.topics.find(TOPIC_ID)
        link.broker.partitions.forget(link.broker.partitions.find(known, 0))
        known.leaders.clear()
    assert link.produce(batch_v2(1), topic=topic)
    assert link.broker.routes.count == 0
    link.sent.pop()[1](build_answer(100, topic=topic.encode(), index=0))
    assert asked == (["other"] if unknown == "topic" else [])
    assert link.broker.asked_topics == ([] if unknown == "topic" else [TOPIC_ID])
    assert (link.failures, dict(link.broker.counters.produce.batches)) == ([], {})


def test_name_outside_utf_8_is_forwarded(link):
    frame = build(9, topic="x").replace(b"\2x", b"\2\xff")
    relayed = []
    link.refused.entries["some"] = None
    link.close = lambda cause, _blame: relayed.append(cause)
    link.receive(frame)
    assert (link.sent, relayed) == ([], ["refusals_full"])


def test_one_response_stores_several_partitions(link):
    frame, answer = build_many((0, 1, 2)), build_many_answer((2, 0, 1), (300, 100, 200))
    for index, offset in ((0, 100), (1, 200), (2, 300)):
        partition = link.broker.follow(index)
        learn(partition, offset)
        partition.tail = offset
    link.receive(frame)
    assert [sent for sent, _ in link.sent] == [frame]
    link.sent.pop()[1](answer)
    assert link.got == [answer]
    assert [link.broker.follow(index).tail for index in range(3)] == [103, 203, 303]
    assert dict(link.broker.counters.produce.batches) == {"store": 3}


def test_partition_that_is_answered_twice_is_stored_once(link):
    """A broker answers each once (KafkaApis.handleProduceRequest): the second mention is ignored."""
    for index in range(2):
        partition = link.broker.follow(index)
        learn(partition, 100)
        partition.tail = 100
    link.receive(build_many((0, 1)))
    link.sent.pop()[1](build_many_answer((0, 0, 1), (100, 200, 100)))
    assert dict(link.broker.counters.produce.batches) == {"store": 2}
    assert [link.broker.follow(index).tail for index in range(2)] == [103, 103]
    assert partition_of(link).acknowledged_end == 103


@pytest.mark.parametrize("offset", [-2, -(1 << 63), (1 << 63) - 1, (1 << 63) - (1 << 31)])
def test_offset_that_no_log_reaches_is_ignored(link, offset):
    learn(link.broker.follow(1), 100)
    link.receive(build_many((0, 1)))
    link.sent.pop()[1](build_many_answer((0, 1), (offset, 100)))
    assert [link.broker.follow(index).acknowledged_end for index in range(2)] == [-1, 103]
    assert link.failures == []


def test_null_records_are_relayed(link):
    """A broker never answers them (4.3.1)."""
    frame = build_many((0, 1))
    first = next(iter(known(scan_request(frame, len(frame), 100))[1]))
    length = build_uvarint(first.end - first.start + 1)
    null = frame[4 : first.start - len(length)] + b"\0" + frame[first.end :]
    null = struct.pack(">i", len(null)) + null
    link.receive(null)
    assert [sent for sent, _ in link.sent] == [null]
    link.sent.pop()[1](build_many_answer((0, 1), (100, 100)))
    assert partition_of(link).acknowledged_end == -1
    assert dict(link.broker.counters.produce.batches) == {}


def test_partitions_with_an_error_are_not_stored(link):
    for index in range(2):
        learn(link.broker.follow(index), 100)
    link.receive(build_many((0, 1)))
    link.sent.pop()[1](build_many_answer((0, 1), (100, 100), error_codes=(0, 19)))
    assert [link.broker.follow(index).acknowledged_end for index in range(2)] == [103, -1]


def test_log_append_time_of_one_partition_voids_others(link):
    """The second was given a time by the broker, which the topic was believed not to have."""
    for index in range(2):
        partition = link.broker.follow(index)
        learn(partition, 100)
        partition.tail = 100
    link.receive(build_many((0, 1)))
    link.sent.pop()[1](build_many_answer((0, 1), (100, 100), times=(-1, 1_800_000_000_000)))
    assert dict(link.broker.counters.produce.batches) == {"unlike": 2}
    assert [link.broker.follow(index).tail for index in range(2)] == [100, 100]
    assert partition_of(link).topic.fidelity.generation == 1


def test_partition_is_not_followed_without_a_cache(link):
    silent = Link(link.broker, stores=False)
    assert silent.produce(batch_v2(1), index=5)
    silent.reply(0, index=5)
    assert len(link.broker.partitions) == 1
    assert dict(link.broker.counters.produce.batches) == {}
    storing = Link(link.broker)
    storing.broker.routes = silent.broker.routes
    assert storing.produce(batch_v2(1), index=5)
    assert len(link.broker.partitions) == 2


def test_error_response_is_passed_on(link):
    assert link.produce(batch_v2(3))
    link.reply(100, error_code=19)
    assert link.got == [build_answer(100, error_code=19)]
    assert partition_of(link).acknowledged_end == -1
    assert link.failures == []


def test_response_of_another_form_is_read(link):
    assert link.produce(batch_v2(3))
    link.reply(100, more=ERRORS_NAMED)
    assert partition_of(link).tail == 103
    assert read(link.broker.cache, partition_of(link).slot, 100) is not None


@pytest.mark.parametrize(
    "answer",
    [b"", build_answer(100)[:-9], build_answer(100, index=1), build_answer(100, topic=b"others")],
)
def test_unreadable_response_is_passed_on(link, answer):
    assert link.produce(batch_v2(3))
    link.sent.pop()[1](answer)
    assert link.got == [answer]
    assert (link.failures, partition_of(link).tail) == ([], 100)


def test_a_lost_link_answers_nothing(link):
    assert link.produce(batch_v2(3))
    link.sent.pop()[1](None)
    assert (link.got, len(link.replies)) == ([], 1)


def test_failed_store_does_not_reach_the_client(link, monkeypatch):
    monkeypatch.setattr(link.broker.cache, "appender", None)
    assert link.produce(batch_v2(3))
    link.reply(100)
    assert link.got == [build_answer(100)]
    assert link.failures == ["storing from Produce"]
    assert link.answered_ordinal == 1


def test_first_five_batches_are_not_stored(
    link,
):
    for number in range(6):
        assert link.produce(batch_v2(1, producer=(7, 0, number)))
        link.reply(100 + number)
    assert dict(link.broker.counters.produce.batches) == {"warm-up": 5, "store": 1}
    assert link.produce(batch_v2(1))
    learn(partition_of(link), 106, epoch=EPOCH + 1)
    link.reply(106)
    assert link.broker.counters.produce.batches["no-epoch"] == 1


def test_waiter_for_shown_records_is_woken(link):
    partition, wakeups = partition_of(link), []

    class Waiter:
        def wake(self, changed):
            wakeups.append(changed)

    partition.parked[Waiter()] = None
    assert link.produce(batch_v2(3))
    learn(partition, 103)
    link.reply(100)
    assert wakeups == [partition]
