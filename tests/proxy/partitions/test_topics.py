"""Topic names and ids, and their relation."""

from proxy.partitions.topics import Leader, Topics
from tests.proxy.followed_partition import LEADERS, known

OLD, NEW = bytes(15) + b"\1", bytes(15) + b"\2"


def test_metadata_joins_name_and_id():
    topics = Topics()
    assert topics.learn("orders", OLD, LEADERS) is None
    topic = known(topics.find("orders"))
    assert topic is topics.find(OLD)
    assert (topic.id, topic.name) == (OLD, "orders")


def test_learning_the_same_again_replaces_nothing():
    topics = Topics()
    topics.learn("orders", OLD, LEADERS)
    topic = known(topics.find("orders"))
    topic.fidelity.learn(True)
    assert topics.learn("orders", OLD, LEADERS) is None
    assert topics.find("orders") is topic
    assert topic.fidelity.log_append_time is True


def test_new_id_of_name_returns_the_old_topic():
    topics = Topics()
    topics.learn("orders", OLD, LEADERS)
    old = known(topics.find(OLD))
    old.fidelity.learn(True)
    assert topics.learn("orders", NEW, LEADERS) is old
    assert known(topics.find("orders")).id == NEW
    assert known(topics.find("orders")).fidelity.log_append_time is None
    assert topics.find(OLD) is None


def test_topic_has_the_partitions_of_metadata():
    topics = Topics()
    topics.learn("orders", OLD, {0: Leader(1, 5), 1: Leader(2, 6)})
    topic = known(topics.find("orders"))
    topics.learn("orders", OLD, {1: Leader(1, 7), 2: Leader(1, 0)})
    assert topic.leaders == {0: Leader(1, 5), 1: Leader(1, 7), 2: Leader(1, 0)}
    assert topics.find("other") is None


def test_a_forgotten_topic_is_not_found():
    topics = Topics()
    topics.learn("orders", OLD, LEADERS)
    topics.forget(known(topics.find(OLD)))
    assert topics.find("orders") is None
    assert topics.find(OLD) is None


def test_forgetting_an_old_id_keeps_the_name():
    topics = Topics()
    topics.learn("orders", OLD, LEADERS)
    old = known(topics.learn("orders", NEW, LEADERS))
    topics.forget(old)
    assert known(topics.find("orders")).id == NEW
