"""Queues of requests: stable hashes, and the slowest queue of several topics."""

import pytest

from isolation.classify import CONTROL, classify, queue_of_topic


def test_topic_keeps_its_queue_across_starts():
    assert (queue_of_topic("orders", 16), queue_of_topic("payments", 16)) == (14, 2)
    assert queue_of_topic(bytes(range(16)), 16) == 8


def test_topics_spread_over_all_queues():
    counts = [0] * 8
    for number in range(800):
        counts[queue_of_topic(f"topic-{number}", 8)] += 1
    assert min(counts) > 60


@pytest.mark.parametrize(("is_control", "topics"), [(True, ["t"]), (True, []), (False, [])])
def test_requests_without_topic_use_the_control_queue(is_control, topics):
    assert classify(is_control, topics, 4) == CONTROL


def test_several_topics_use_the_most_loaded_queue():
    queues = {topic: queue_of_topic(topic, 16) for topic in ("orders", "payments", "clicks")}
    assert len(set(queues.values())) == 3
    for slow in queues:
        load = {queue: float(queue == queues[slow]) for queue in queues.values()}
        assert classify(False, queues, 16, load.__getitem__) == queues[slow]


def test_among_equally_loaded_queues_the_lowest():
    lowest = min(queue_of_topic(topic, 16) for topic in ("orders", "payments"))
    assert classify(False, ["orders", "payments"], 16, lambda _queue: 3.0) == lowest
    assert classify(False, ["payments", "orders"], 16) == lowest
