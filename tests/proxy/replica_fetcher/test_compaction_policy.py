"""Topics that may be compacted: the broker is asked, and its "no" alone counts."""

from types import SimpleNamespace

import pytest

from protocol import control
from protocol.errors import ErrorCode
from proxy.partitions.table import Partitions
from proxy.replica_fetcher.compaction_policy import (
    EVERY_S,
    MOST_TOPICS,
    POLICY,
    RETENTION_MS,
    STORING,
    TOMBSTONES_STAY_MS,
    VERSION,
    CompactionPolicies,
)
from tests.proxy.followed_partition import LEADERS, QuietBroker

SETTINGS = (POLICY, TOMBSTONES_STAY_MS, RETENTION_MS, *STORING)
DAY_MS = "86400000"


class Link:
    """Keeps what is sent, and who wants the answer."""

    def __init__(self):
        self.sent = []

    def send(self, frame, _size_bytes, then):
        self.sent.append((frame, then))


class AskingBroker(QuietBroker):
    def __init__(self):
        super().__init__(16 << 20)
        self.link = Link()
        self.own_connections = SimpleNamespace(usable=True, link=lambda _name: self.link)


@pytest.fixture
def broker():
    return AskingBroker()


def say(monkeypatch, *said):
    """What DescribeConfigs is answered with: (topic, error code, policy)."""
    rows = [
        control.DescribedConfig(code, topic, {POLICY: policy, TOMBSTONES_STAY_MS: DAY_MS})
        for topic, code, policy in said
    ]
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
    topic.learn_policy(not may_be)
    CompactionPolicies(broker).tick(0.0)
    say(monkeypatch, ("orders", code, policy), ("another", ErrorCode.NONE, "delete"))
    ((_, then),) = broker.link.sent
    then(b"answer")
    assert topic.may_be_compacted is may_be


@pytest.mark.parametrize(
    ("stay_ms", "may_be"), [(DAY_MS, False), ("120000", False), ("119999", True), (None, True)]
)
def test_a_topic_whose_tombstones_go_soon_may_be_compacted_before_that_is_known(
    broker, monkeypatch, stay_ms, may_be
):
    topic = broker.follow().topic
    cleanup = CompactionPolicies(broker)
    cleanup.tick(0.0)
    rows = [
        control.DescribedConfig(
            ErrorCode.NONE, "orders", {POLICY: "delete", TOMBSTONES_STAY_MS: stay_ms}
        )
    ]
    monkeypatch.setattr(control, "scan_describe_configs_response", lambda _frame, _version: rows)
    broker.link.sent[0][1](b"answer")
    assert topic.may_be_compacted is may_be


@pytest.mark.parametrize(
    ("policy", "kept_ms", "expected"),
    [
        ("delete", "604800000", 604_800_000),
        ("delete", "-1", -1),
        ("compact,delete", "5", 5),
        ("compact", "5", -1),
        ("delete", None, None),
        (None, "5", None),
    ],
)
def test_how_long_the_broker_keeps_records(broker, monkeypatch, policy, kept_ms, expected):
    topic = broker.follow().topic
    assert topic.retention_ms is None
    CompactionPolicies(broker).tick(0.0)
    rows = [
        control.DescribedConfig(ErrorCode.NONE, "orders", {POLICY: policy, RETENTION_MS: kept_ms})
    ]
    monkeypatch.setattr(control, "scan_describe_configs_response", lambda _frame, _version: rows)
    broker.link.sent[0][1](b"answer")
    assert topic.retention_ms == expected


def test_one_question_is_in_flight_and_repeated(broker, monkeypatch):
    broker.follow()
    cleanup = CompactionPolicies(broker)
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
    cleanup = CompactionPolicies(broker)
    cleanup.tick(0.0)
    broker.link.sent[0][1](b"\0\0\0\1\0")
    assert topic.may_be_compacted
    cleanup.tick(EVERY_S)
    assert len(broker.link.sent) == 2


def test_nothing_is_asked_without_connection_or_topic(broker):
    cleanup = CompactionPolicies(broker)
    cleanup.tick(0.0)
    broker.follow()
    broker.own_connections.usable = False
    cleanup.tick(0.0)
    assert not broker.link.sent


@pytest.fixture
def asked(monkeypatch):
    """(version, topics, settings) of each question."""
    questions = []
    monkeypatch.setattr(
        control,
        "build_describe_configs_request",
        lambda version, *_ids, topics, settings: questions.append((version, topics, settings)),
    )
    return questions


def follow(broker, number):
    """A partition of one more topic."""
    topic_id = number.to_bytes(16, "big")
    broker.topics.learn(f"topic-{number}", topic_id, LEADERS)
    return broker.partitions.follow(broker.topics.find(topic_id), 0)


def test_question_is_limited_and_the_rest_follows(broker, asked):
    broker.partitions.limit = MOST_TOPICS + 1
    assert all(follow(broker, number) for number in range(MOST_TOPICS + 1))
    cleanup = CompactionPolicies(broker)
    cleanup.tick(0.0)
    broker.link.sent[0][1](None)
    cleanup.tick(0.0)
    assert [len(topics) for _, topics, _ in asked] == [MOST_TOPICS, 1]
    assert {(version, *settings) for version, _, settings in asked} == {(VERSION, *SETTINGS)}


def test_only_new_or_due_topics_are_evaluated(broker, asked, monkeypatch):
    first, second = follow(broker, 1), follow(broker, 2)
    cleanup = CompactionPolicies(broker)

    def tick(now):
        asked.clear()
        cleanup.tick(now)
        for _, then in broker.link.sent:
            then(None)
        broker.link.sent.clear()
        return [topics for _, topics, _ in asked]

    def walk(_partitions):
        raise AssertionError("all are looked at")

    monkeypatch.setattr(Partitions, "__iter__", walk)
    assert tick(0.0) == [["topic-1", "topic-2"]]
    follow(broker, 3)
    broker.partitions.follow(first.topic, 1)
    assert tick(10.0) == [["topic-3"]]
    broker.partitions.forget(second)
    assert tick(EVERY_S - 1) == []
    assert tick(EVERY_S) == [["topic-1"]], "who follows topic-2 no longer does not ask"
    follow(broker, 2)
    broker.partitions.forget(first)
    assert tick(EVERY_S + 1) == [["topic-2"]]
    assert tick(EVERY_S + 10) == [["topic-3"]]
    assert tick(2 * EVERY_S) == [["topic-1"]], "its second partition is still followed"


def test_returning_topic_is_not_asked_twice(broker, asked):
    partition, cleanup = follow(broker, 1), CompactionPolicies(broker)
    cleanup.tick(0.0)
    broker.link.sent[0][1](None)
    broker.partitions.forget(partition)
    follow(broker, 1)
    cleanup.tick(1.0)
    assert len(asked) == 1
    cleanup.tick(EVERY_S)
    assert len(asked) == 2


def test_changed_storage_settings_begin_a_generation(broker, monkeypatch):
    topic, cleanup = broker.follow().topic, CompactionPolicies(broker)
    distrusted = []
    broker.distrust = lambda *said: distrusted.append(said)

    def describe(now, code, *values):
        cleanup.tick(now)
        rows = [control.DescribedConfig(code, "orders", dict(zip(SETTINGS, values, strict=False)))]
        monkeypatch.setattr(
            control, "scan_describe_configs_response", lambda _frame, _version: rows
        )
        broker.link.sent.pop()[1](b"answer")

    describe(0.0, ErrorCode.NONE, "delete", DAY_MS, DAY_MS, "producer", "CreateTime")
    describe(EVERY_S, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    describe(2 * EVERY_S, ErrorCode.NONE, "compact", DAY_MS, DAY_MS, "producer", "CreateTime")
    assert distrusted == []
    describe(3 * EVERY_S, ErrorCode.NONE, "compact", DAY_MS, DAY_MS, "gzip", "CreateTime")
    assert distrusted == [(topic, "settings")]
    describe(4 * EVERY_S, ErrorCode.NONE, "compact", DAY_MS, DAY_MS, "gzip", "LogAppendTime")
    assert distrusted == [(topic, "settings")] * 2
