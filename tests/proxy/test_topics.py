"""Topic names and ids, and the list of what is not known yet."""

from proxy.topics import NAMES_WANTED_LIMIT, Topics

OLD, NEW = bytes(15) + b"\1", bytes(15) + b"\2"


def test_what_is_not_known_is_put_on_the_list_to_ask():
    topics = Topics()
    assert topics.find("orders") is None
    assert topics.find(OLD) is None
    assert topics.find("orders") is None
    assert list(topics.wanted) == ["orders", OLD]


def test_metadata_joins_name_and_id_and_clears_the_list():
    topics = Topics()
    topics.find("orders")
    topics.find(OLD)
    assert topics.learn("orders", OLD) is None
    topic = topics.find("orders")
    assert topic is topics.find(OLD)
    assert (topic.id, topic.name) == (OLD, "orders")
    assert topics.wanted == {}


def test_learning_the_same_again_replaces_nothing():
    topics = Topics()
    topics.learn("orders", OLD)
    topic = topics.find("orders")
    topic.fidelity.log_append_time = True
    assert topics.learn("orders", OLD) is None
    assert topics.find("orders") is topic
    assert topic.fidelity.log_append_time is True


def test_a_name_that_comes_to_stand_for_another_id_hands_the_old_topic_back():
    topics = Topics()
    topics.learn("orders", OLD)
    old = topics.find(OLD)
    old.fidelity.log_append_time = True
    assert topics.learn("orders", NEW) is old
    assert topics.find("orders").id == NEW
    assert topics.find("orders").fidelity.log_append_time is None
    assert topics.find(OLD) is None
    assert list(topics.wanted) == [OLD]


def test_an_id_confirmed_before_it_has_a_name_is_known_and_still_asked_about():
    topics = Topics()
    topic = topics.confirm(OLD)
    assert topics.confirm(OLD) is topic
    assert topic.name == ""
    assert topics.find(OLD) is topic
    assert list(topics.wanted) == [OLD]
    assert topics.learn("orders", OLD) is None
    assert topics.find("orders") is topic
    assert topics.wanted == {}


def test_a_confirmed_new_incarnation_still_replaces_the_old():
    topics = Topics()
    topics.learn("orders", OLD)
    new = topics.confirm(NEW)
    assert topics.learn("orders", NEW).id == OLD
    assert topics.find("orders") is new


def test_a_forgotten_topic_is_asked_about_again():
    topics = Topics()
    topics.learn("orders", OLD)
    topics.forget(topics.find(OLD))
    assert topics.find("orders") is None
    assert topics.find(OLD) is None
    assert list(topics.wanted) == ["orders", OLD]


def test_forgetting_the_old_incarnation_leaves_the_new_ones_name():
    topics = Topics()
    topics.learn("orders", OLD)
    old = topics.learn("orders", NEW)
    topics.forget(old)
    assert topics.find("orders").id == NEW


def test_the_list_is_bounded_and_goes_on_when_there_is_room():
    topics = Topics()
    for i in range(NAMES_WANTED_LIMIT):
        topics.find(f"topic-{i}")
    assert len(topics.wanted) == NAMES_WANTED_LIMIT
    assert topics.find("one-more") is None
    assert "one-more" not in topics.wanted
    topics.learn("topic-0", OLD)
    topics.find("one-more")
    assert "one-more" in topics.wanted
    assert len(topics.wanted) == NAMES_WANTED_LIMIT
