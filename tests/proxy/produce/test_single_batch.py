"""The short way of a Produce: who goes it, and that what the broker says is heard as on the other."""

import pytest

from protocol.ordinary import scan_request
from proxy.produce import single_batch
from proxy.produce.single_batch import forward_single_batch
from proxy.replica_fetcher.fetcher import REFRESH_EPOCH_S
from tests.kit.cache_batches import read
from tests.protocol.batches import batch_v2
from tests.protocol.test_ordinary import build
from tests.proxy.followed import EPOCH, TOPIC_ID, QuietBroker, learn
from tests.proxy.short_way import Link, build_answer

ERRORS_NAMED = b"\2\0\0\0\0\0\0" + b"\2x" + b"\0"
"""One record error without a message, the message "x", no tags."""


@pytest.fixture
def link():
    """Of a client whose partition is followed, at HW and tail 100."""
    broker = QuietBroker()
    partition = broker.follow()
    learn(partition, 100)
    partition.tail = 100
    partition.topic.fidelity.log_append_time = False
    partition.topic.fidelity.equal_codecs.add(0)
    return Link(broker)


def partition_of(link):
    return link.broker.follow()


class Waiter:
    def wake(self, partition):
        """Nothing to look at."""


def test_it_goes_as_it_came_is_answered_as_it_came_and_then_stored(link):
    assert link.produce(batch_v2(3))
    assert (link.client_id, link.last_ordinal, link.answered_ordinal) == ("c", 1, 0)
    link.reply(100)
    assert link.got == [build_answer(100)]
    assert link.answered_ordinal == 1
    partition = partition_of(link)
    assert (partition.tail, partition.probe_offset, partition.acknowledged_end) == (103, 100, 103)
    assert link.broker.watch.asked == [], "nobody waits, and the broker was asked not long ago"
    assert link.broker.counters.produce_s.count == 1


def test_the_watch_hears_of_it_where_somebody_waits_or_nobody_has_asked_for_long(link):
    partition = partition_of(link)
    link.produce(batch_v2(1))
    partition.parked[Waiter()] = None
    link.reply(100)
    assert link.broker.watch.asked == [partition]
    partition.parked.clear()
    link.produce(batch_v2(1))
    link.broker.clock_s = partition.leader_state.proven_at + REFRESH_EPOCH_S
    link.reply(101)
    assert link.broker.watch.asked == [partition]
    link.produce(batch_v2(1))
    link.broker.clock_s += 0.1
    link.reply(102)
    assert link.broker.watch.asked == [partition, partition]


def test_who_is_known_is_known_by_all_that_stands_before_the_records(link):
    assert link.produce(batch_v2(1)) and link.produce(batch_v2(9))
    assert len(link.broker.routes) == 1
    assert link.produce(batch_v2(1), index=1) and link.produce(batch_v2(1), acks=1)
    assert link.produce(batch_v2(1), version=10), "the same bytes, another version"
    assert len(link.broker.routes) == 4


def test_routes_are_bounded_and_forgotten_with_what_they_stand_for(link, monkeypatch):
    monkeypatch.setattr(single_batch, "ROUTES_LIMIT", 2)
    for index in range(3):
        assert link.produce(batch_v2(1), index=index)
    assert len(link.broker.routes) == 1
    link.broker.routes.clear()
    link.broker.partitions.limit = 0
    assert not link.produce(batch_v2(1), index=9), "a partition that is not followed"
    assert link.produce(batch_v2(1), index=2)
    assert len(link.broker.routes) == 1


@pytest.mark.parametrize("against", ["topic", "index", "refusal", "quota", "upstream"])
def test_where_anything_stands_against_it_nothing_has_happened(link, against):
    topic = "other" if against == "topic" else "orders"
    if against == "index":
        topic = link.broker.topics.find(TOPIC_ID)
        link.broker.partitions.forget(link.broker.partitions.find(topic, 0))
        topic.leaders.clear()
        topic = "orders"
    elif against == "refusal":
        link.refused.entries["some"] = None
    elif against == "quota":
        link.broker.scheduler.quotas.active = True
    elif against == "upstream":
        link.upstream.closed = True
    assert not link.produce(batch_v2(1), topic=topic)
    assert (link.sent, len(link.replies), link.last_ordinal) == ([], 0, 0)
    assert len(link.broker.routes) == 0


def test_a_name_that_is_not_utf_8_is_for_the_other_way_to_judge(link):
    frame = build(9, topic="x").replace(b"\2x", b"\2\xff")
    scanned = scan_request(frame, len(frame))
    assert scanned is not None and not forward_single_batch(link, frame, len(frame), scanned)


def test_where_nothing_is_stored_the_partition_is_not_followed(link):
    silent = Link(link.broker, stores=False)
    assert silent.produce(batch_v2(1), index=5)
    silent.reply(0, index=5)
    assert len(link.broker.partitions) == 1
    assert dict(link.broker.counters.produce_batches) == {}
    storing = Link(link.broker)
    storing.broker.routes = silent.broker.routes
    assert storing.produce(batch_v2(1), index=5)
    assert len(link.broker.partitions) == 2


def test_an_error_is_passed_on_and_nothing_is_noted(link):
    assert link.produce(batch_v2(3))
    link.reply(100, error_code=19)
    assert link.got == [build_answer(100, error_code=19)]
    assert partition_of(link).acknowledged_end == -1
    assert link.failures == []


def test_an_answer_of_another_form_is_heard_all_the_same(link):
    assert link.produce(batch_v2(3))
    link.reply(100, more=ERRORS_NAMED)
    assert partition_of(link).tail == 103
    assert read(link.broker.cache, partition_of(link).slot, 100) is not None


@pytest.mark.parametrize(
    "answer",
    [b"", build_answer(100)[:-9], build_answer(100, index=1), build_answer(100, topic=b"others")],
)
def test_an_answer_that_is_garbage_or_about_something_else_is_passed_on(link, answer):
    assert link.produce(batch_v2(3))
    link.sent.pop()[1](answer)
    assert link.got == [answer]
    assert (link.failures, partition_of(link).tail) == ([], 100)


def test_a_lost_link_answers_nothing(link):
    assert link.produce(batch_v2(3))
    link.sent.pop()[1](None)
    assert (link.got, len(link.replies)) == ([], 1)


def test_what_fails_while_storing_is_ours_and_the_client_is_answered(link):
    link.broker.cache.append = None
    assert link.produce(batch_v2(3))
    link.reply(100)
    assert link.got == [build_answer(100)]
    assert link.failures == ["storing from Produce"]
    assert link.answered_ordinal == 1


def test_the_first_five_of_a_producer_are_left_to_the_watch_and_an_epoch_that_changes_on_the_way_voids(
    link,
):
    for number in range(6):
        assert link.produce(batch_v2(1, producer=(7, 0, number)))
        link.reply(100 + number)
    assert dict(link.broker.counters.produce_batches) == {"warm-up": 5, "store": 1}
    assert link.produce(batch_v2(1))
    learn(partition_of(link), 106, epoch=EPOCH + 1)
    link.reply(106)
    assert link.broker.counters.produce_batches["no-epoch"] == 1


def test_who_waits_for_what_the_watch_has_shown_already_is_woken(link):
    partition, wakeups = partition_of(link), []

    class Waiter:
        def wake(self, changed):
            wakeups.append(changed)

    partition.parked[Waiter()] = None
    assert link.produce(batch_v2(3))
    learn(partition, 103)
    link.reply(100)
    assert wakeups == [partition]
