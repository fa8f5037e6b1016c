"""Rights of one connection: learned from its own Fetch responses, renewed at the tail."""

from types import SimpleNamespace

import pytest

from protocol import header
from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer, build_response
from proxy.fetch.authorization import Authorization
from tests.kit import fetch_messages
from tests.proxy.followed_partition import TOPIC_ID, QuietBroker

VERSION = 13
PERIOD_S = 60.0


class Upstream:
    """Keeps what is sent, for the test to answer."""

    unanswered = 0

    def __init__(self):
        self.sent = []

    def send(self, frame, _correlation_id, on_answer):
        self.sent.append((frame, on_answer))


def connect(broker, stores=True, listener="default"):
    """A client's connection as its rights see it."""
    return SimpleNamespace(
        broker=broker,
        client_id="reader",
        upstream=Upstream(),
        stores=stores,
        listener=SimpleNamespace(name=listener),
        principal=None,
    )


@pytest.fixture
def link():
    broker = QuietBroker()
    broker.config.cache.authorize_every_s = PERIOD_S
    return connect(broker)


@pytest.fixture
def rights(link):
    rights = Authorization(link)
    rights.version = VERSION
    rights.learn(TOPIC_ID, ErrorCode.NONE, 0.0)
    return rights


def build_answer(error_code=ErrorCode.NONE, records=b""):
    said = FetchAnswer(
        TOPIC_ID, 0, error_code, 5, 5, 0, None, (records,) if records else (), len(records)
    )
    frames = build_response(
        VERSION, 0, throttle_time_ms=0, error_code=0, session_id=0, partitions=[said]
    )
    return b"".join(bytes(frame) for frame in frames)


def test_right_lasts_its_period_from_the_request(rights):
    assert rights.allows(TOPIC_ID, PERIOD_S - 0.001)
    assert not rights.allows(TOPIC_ID, PERIOD_S)
    rights.learn(TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID, 10.0)
    assert not rights.allows(TOPIC_ID, PERIOD_S), "it proves nothing"
    rights.learn(TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1.0)
    assert not rights.allows(TOPIC_ID, 2.0)


def test_late_use_renews_once_at_the_tail(link, rights):
    partition = link.broker.follow()
    partition.leader_state.high_watermark = 5
    rights.used(TOPIC_ID, partition, 0.74 * PERIOD_S)
    assert not link.upstream.sent
    for _ in range(2):
        rights.used(TOPIC_ID, partition, 0.76 * PERIOD_S)
    ((frame, on_answer),) = link.upstream.sent
    asked = fetch_messages.scan_request(frame, VERSION, header.peek_request(frame).body_start)
    assert [(a.topic, a.fetch_offset, a.max_bytes) for a in asked.partitions] == [(TOPIC_ID, 5, 1)]
    on_answer(build_answer())
    assert rights.allows(TOPIC_ID, 1.7 * PERIOD_S)
    assert link.broker.counters.clients.authorization_renewals == 1


def test_renewal_names_topics_as_the_client_does(link, rights):
    rights.learn("orders", ErrorCode.NONE, 0.0)
    rights.used("orders", link.broker.follow(), 0.1)
    rights.used(TOPIC_ID, link.broker.follow(), 0.9 * PERIOD_S)
    ((frame, _),) = link.upstream.sent
    asked = fetch_messages.scan_request(frame, VERSION, header.peek_request(frame).body_start)
    assert [one.topic for one in asked.partitions] == [TOPIC_ID]


def test_records_that_a_renewal_brings_are_counted(link, rights):
    rights.used(TOPIC_ID, link.broker.follow(), 0.9 * PERIOD_S)
    link.upstream.sent[0][1](build_answer(records=b"r" * 77))
    assert link.broker.counters.upstream.fetch_bytes == {"authorization": 77}


@pytest.mark.parametrize("answer", [None, b"\0\0\0\4\0\0\0\0", b""], ids=["lost", "cut", "empty"])
def test_unreadable_renewal_lets_the_right_lapse(link, rights, answer):
    rights.used(TOPIC_ID, link.broker.follow(), 0.9 * PERIOD_S)
    link.upstream.sent[0][1](answer)
    assert rights.allows(TOPIC_ID, 0.95 * PERIOD_S)
    assert not rights.allows(TOPIC_ID, PERIOD_S)
    assert link.broker.counters.faults.bad_frames == (answer is not None)
    rights.used(TOPIC_ID, link.broker.follow(), 0.95 * PERIOD_S)
    assert len(link.upstream.sent) == 2, "the next use asks again"


def test_a_client_with_a_rack_asks_itself(link, rights):
    rights.has_rack = True
    rights.used(TOPIC_ID, link.broker.follow(), 0.9 * PERIOD_S)
    assert not link.upstream.sent


@pytest.mark.parametrize(
    ("error_code", "allowed"),
    [
        (ErrorCode.NONE, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, False),
    ],
)
def test_new_connections_right_is_proven_at_the_tail(link, error_code, allowed):
    rights, partition = Authorization(link), link.broker.follow()
    heard: list[bool] = []
    partition.leader_state.high_watermark = 5
    rights.prove({TOPIC_ID: partition}, VERSION, heard.append)
    ((frame, on_answer),) = link.upstream.sent
    asked = fetch_messages.scan_request(
        frame, VERSION, header.peek_request(frame).body_start
    ).partitions[0]
    assert (asked.topic, asked.fetch_offset, asked.max_bytes) == (TOPIC_ID, 5, 1)
    assert heard == []
    on_answer(build_answer(error_code))
    assert heard == [True]
    assert rights.allows(TOPIC_ID, link.broker.now()) is allowed
    assert link.broker.counters.clients.authorization_proofs == 1


def test_lost_connection_is_told_to_the_waiter(link):
    rights = Authorization(link)
    heard: list[bool] = []
    rights.prove({TOPIC_ID: link.broker.follow()}, VERSION, heard.append)
    ((_, on_answer),) = link.upstream.sent
    on_answer(None)
    assert heard == [False]
    assert not rights.allows(TOPIC_ID, 0.0)


def test_rights_end_with_the_sasl_session(rights):
    """The broker counts from some time between the sending and the answer: no right lasts longer than it may."""
    rights.begin_session(10.0, 11.0, 20.0)
    assert rights.allows(TOPIC_ID, 29.9)
    assert not rights.allows(TOPIC_ID, 30.0)
    for asked_at in (25.0, 30.5, 31.9):
        rights.learn(TOPIC_ID, ErrorCode.NONE, asked_at)
        assert not rights.allows(TOPIC_ID, max(asked_at, 30.0)), (
            "asked when the session may not have ended"
        )


def test_a_session_begun_anew_goes_on(rights):
    rights.begin_session(0.0, 0.0, 20.0)
    rights.begin_session(18.0, 18.1, 0.0)  # the first of two rounds
    rights.learn(TOPIC_ID, ErrorCode.NONE, 18.1)
    assert not rights.allows(TOPIC_ID, 20.0)
    rights.begin_session(18.2, 18.3, 20.0)
    rights.learn(TOPIC_ID, ErrorCode.NONE, 18.4)
    assert rights.allows(TOPIC_ID, 38.1)
    assert not rights.allows(TOPIC_ID, 38.2)


def test_unlimited_sasl_session_keeps_its_rights(rights):
    """Without connections.max.reauth.ms a lifetime is only a hint, and Fetches are answered beyond it."""
    rights.begin_session(0.0, 0.5, 20.0)
    rights.learn(TOPIC_ID, ErrorCode.NONE, 21.5)
    assert rights.allows(TOPIC_ID, 21.5 + PERIOD_S - 0.1)


def test_right_that_ends_with_sasl_is_not_renewed(link, rights):
    rights.begin_session(0.0, 0.0, 20.0)
    rights.used(TOPIC_ID, link.broker.follow(), 19.0)
    assert link.upstream.sent == []
