"""A forgotten partition is not followed, whoever refers to it, and does not affect its successor."""

from tests.proxy.followed_partition import TOPIC_ID, QuietBroker, known


def test_forgotten_partition_returns_as_another():
    broker = QuietBroker()
    topic, partitions = known(broker.topics.find(TOPIC_ID)), broker.partitions
    first = known(partitions.follow(topic, 0))
    assert first.is_followed
    assert partitions.find(topic, 0) is first

    partitions.forget(first)
    assert not first.is_followed
    assert partitions.find(topic, 0) is None
    assert not partitions.follows(topic)

    second = known(partitions.follow(topic, 0))
    partitions.forget(first)
    assert second is not first
    assert second.is_followed
    assert partitions.find(topic, 0) is second


def test_limit_is_the_room_of_the_arena():
    broker = QuietBroker(max_partitions=3)
    topic, partitions = known(broker.topics.find(TOPIC_ID)), broker.partitions
    assert partitions.limit == 3
    assert [partitions.follow(topic, index) is not None for index in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert (len(partitions), partitions.refused) == (3, 1)


def test_index_unknown_to_metadata_takes_no_place():
    broker = QuietBroker(max_partitions=3)
    topic, partitions = known(broker.topics.find(TOPIC_ID)), broker.partitions
    assert [partitions.follow(topic, index) for index in range(1000, 4000)] == [None] * 3000
    assert (len(partitions), broker.cache.statistics().partitions) == (0, 0)


def test_a_smaller_limit_forgets_nobody():
    broker = QuietBroker(max_partitions=3)
    topic, partitions = known(broker.topics.find(TOPIC_ID)), broker.partitions
    held = [partitions.follow(topic, index) for index in range(2)]
    partitions.set_limit(1)
    assert [partitions.follow(topic, index) for index in range(2)] == held
    assert partitions.follow(topic, 2) is None
    partitions.set_limit(100)
    assert partitions.limit == 3, "the room of the arena"
    assert partitions.follow(topic, 2) is not None
