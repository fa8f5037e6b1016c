"""A partition that was forgotten is followed no more, whoever still holds it, and cannot take its successor along."""

from tests.proxy.followed import TOPIC_ID, QuietBroker


def test_what_is_forgotten_is_followed_no_more_and_comes_back_as_another():
    broker = QuietBroker()
    topic, partitions = broker.topics.find(TOPIC_ID), broker.partitions
    first = partitions.follow(topic, 0)
    assert first.is_followed
    assert partitions.find(topic, 0) is first

    partitions.forget(first)
    assert not first.is_followed
    assert partitions.find(topic, 0) is None
    assert not partitions.follows(topic)

    second = partitions.follow(topic, 0)
    partitions.forget(first)
    assert second is not first
    assert second.is_followed
    assert partitions.find(topic, 0) is second
