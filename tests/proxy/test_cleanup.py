"""Which topics may be compacted: asked of the broker, believed only where it says no; and what the cleaner leaves."""

from types import SimpleNamespace

import pytest

from protocol import control
from protocol.errors import ErrorCode
from proxy.cleanup import EVERY_S, MOST_TOPICS, SETTING, VERSION, Cleanup, find_cleaned_end
from tests.proxy.followed import QuietBroker


class Link:
    """Keeps what is sent, and who wants the answer."""

    def __init__(self):
        self.sent = []

    def send(self, frame, _size_bytes, then):
        self.sent.append((frame, then))


class AskingBroker(QuietBroker):
    def __init__(self):
        super().__init__()
        self.link = Link()
        self.own_links = SimpleNamespace(usable=True, link=lambda _name: self.link)


@pytest.fixture
def broker():
    return AskingBroker()


def say(monkeypatch, *said):
    """What DescribeConfigs is answered with: (topic, error code, policy)."""
    rows = [control.TopicConfig(code, topic, {SETTING: policy}) for topic, code, policy in said]
    monkeypatch.setattr(control, "scan_describe_configs_response", lambda _frame, _version: rows)


@pytest.mark.parametrize(
    ("code", "policy", "may_be"),
    [
        (ErrorCode.NONE, "delete", False),
        (ErrorCode.NONE, "compact", True),
        (ErrorCode.NONE, "compact,delete", True),
        (ErrorCode.NONE, None, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "delete", True),
    ],
)
def test_only_a_broker_that_says_no_is_believed(broker, monkeypatch, code, policy, may_be):
    topic = broker.follow().topic
    assert topic.may_be_compacted
    topic.may_be_compacted = not may_be
    Cleanup(broker).tick(0.0)
    say(monkeypatch, ("orders", code, policy), ("another", ErrorCode.NONE, "delete"))
    ((_, then),) = broker.link.sent
    then(b"answer")
    assert topic.may_be_compacted is may_be


def test_it_is_asked_again_after_a_while_and_one_question_is_out(broker, monkeypatch):
    broker.follow()
    cleanup = Cleanup(broker)
    cleanup.tick(0.0)
    cleanup.tick(EVERY_S)
    assert len(broker.link.sent) == 1
    broker.link.sent[0][1](None)  # the link was lost: it goes on
    cleanup.tick(EVERY_S - 0.1)
    assert len(broker.link.sent) == 1
    cleanup.tick(EVERY_S)
    assert len(broker.link.sent) == 2


def test_garbage_changes_nothing_and_the_next_is_asked(broker):
    topic = broker.follow().topic
    cleanup = Cleanup(broker)
    cleanup.tick(0.0)
    broker.link.sent[0][1](b"\0\0\0\1\0")
    assert topic.may_be_compacted
    cleanup.tick(EVERY_S)
    assert len(broker.link.sent) == 2


def test_without_a_link_or_a_topic_nothing_is_asked(broker):
    cleanup = Cleanup(broker)
    cleanup.tick(0.0)
    broker.follow()
    broker.own_links.usable = False
    cleanup.tick(0.0)
    assert not broker.link.sent


def test_a_question_is_bounded_and_the_rest_comes_next(broker, monkeypatch):
    for number in range(MOST_TOPICS + 1):
        broker.topics.learn(f"topic-{number}", number.to_bytes(16, "big"))
        broker.partitions.limit = 10_000
    topics = [broker.topics.find(f"topic-{number}") for number in range(MOST_TOPICS + 1)]
    rows = [SimpleNamespace(topic=topic) for topic in topics]
    broker.partitions = rows
    asked = []
    monkeypatch.setattr(
        control,
        "build_describe_configs_request",
        lambda version, *_ids, topics, settings: asked.append((version, topics, settings)),
    )
    cleanup = Cleanup(broker)
    cleanup.tick(0.0)
    broker.link.sent[0][1](None)
    cleanup.tick(0.0)
    assert [len(topics) for _, topics, _ in asked] == [MOST_TOPICS, 1]
    assert {(version, *settings) for version, _, settings in asked} == {(VERSION, SETTING)}


def build_batch(base, last, count=None):
    return SimpleNamespace(
        base_offset=base, last_offset=last, record_count=last - base + 1 if count is None else count
    )


@pytest.mark.parametrize(
    ("fetch_offset", "batches", "expected"),
    [
        (10, [], -1),
        (10, [(10, 12), (13, 13)], -1),
        (11, [(10, 12), (13, 13)], -1),
        (9, [(10, 12), (13, 13)], 10),
        (10, [(10, 12), (14, 14)], 14),
        (10, [(10, 12, 2), (13, 13)], 13),
        (10, [(10, 12), (13, 13, 0)], 14),
        (10, [(11, 12), (15, 19, 4), (20, 20)], 20),
    ],
)
def test_what_shows_that_the_cleaner_has_been_there(fetch_offset, batches, expected):
    assert find_cleaned_end(fetch_offset, [build_batch(*one) for one in batches]) == expected
