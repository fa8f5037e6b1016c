"""Metadata questions about topics: their number, their pace and their connection."""

from types import SimpleNamespace

import pytest

from protocol.errors import ErrorCode
from proxy.partitions.topics import NO_TOPIC_ID
from proxy.replica_fetcher.topic_metadata import (
    ASK_EVERY_S,
    FIRST_REFUSED_S,
    MOST_REFUSED_S,
    NAMES_A_QUESTION,
    RETRY_EVERY_S,
    TOPICS_LIMIT,
    TopicLookup,
)
from tests.proxy.followed_partition import QuietBroker, known, stand_in
from tests.proxy.metadata_answers import build_answer, read_topics

ID = bytes(15) + b"\x09"
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class PlayedLink:
    """Keeps what is asked, and gives the test's answers."""

    def __init__(self):
        self.upstream = self
        self.asked = []
        self._pending = []

    def send(self, frame, correlation_id, on_answer):
        assert correlation_id == 0
        self.asked.append(read_topics(frame))
        self._pending.append(on_answer)

    def answer(self, *topics):
        """The oldest question's."""
        self._pending.pop(0)(build_answer(*topics))

    def refuse(self, error_code=UNKNOWN):
        """The oldest question's topics are all unknown."""
        self.answer(*((topic, error_code) for topic in self.asked[-len(self._pending)]))

    def lose(self):
        self._pending.pop(0)(None)


class Played:
    def __init__(self, usable=True):
        self.broker = QuietBroker()
        self.own, self.client = PlayedLink(), PlayedLink()
        self.suggested = self.broker.replica_fetcher.suggested
        self.broker.own_connections = SimpleNamespace(usable=usable, link=lambda _name: self.own)
        self.questions = TopicLookup(stand_in(self.broker))

    def want(self, topic: str | bytes, link: PlayedLink | None = None) -> None:
        """A request on `link`, by default the one client's, has named a topic."""
        self.questions.want(topic, stand_in(link or self.client))

    def pass_time(self, seconds):
        """In steps of the janitor's."""
        until = self.broker.clock_s + seconds
        while self.broker.clock_s < until:
            self.broker.clock_s = min(self.broker.clock_s + 0.1, until)
            self.questions.tick(self.broker.clock_s)


def test_wanted_name_is_asked_and_learned():
    played = Played()
    played.want("new")
    assert played.own.asked == [["new"]]
    played.own.answer(("new", ID, 2))
    assert sorted(known(played.broker.topics.find("new")).leaders) == [0, 1]
    played.want("new")
    played.pass_time(5)
    assert played.own.asked == [["new"]]
    assert played.client.asked == []
    assert len(played.questions) == 0


def test_leader_of_followed_partition_is_suggested():
    played = Played()
    partition = played.broker.follow()
    topic = partition.topic
    played.questions.ask(topic.id)
    played.own.answer((topic.name, topic.id, 2))
    assert played.suggested == [partition]


def test_zero_topic_id_is_not_asked():
    played = Played()
    played.want(NO_TOPIC_ID)
    assert played.own.asked == []


def test_names_and_ids_have_one_question_each():
    played = Played()
    for number in range(5):
        played.want(f"t-{number}")
        played.want(bytes(15) + bytes([number + 50]))
    assert [len(asked) for asked in played.own.asked] == [1, 1]
    assert len(played.questions) == 8
    played.own.refuse()
    assert played.own.asked[2] == ["t-1", "t-2", "t-3", "t-4"]


def test_no_question_has_more_than_its_most_names():
    played = Played()
    for number in range(2 * NAMES_A_QUESTION + 5):
        played.want(f"t-{number}")
    for _ in range(4):
        played.own.refuse()
    assert [len(asked) for asked in played.own.asked] == [1, NAMES_A_QUESTION, NAMES_A_QUESTION, 4]


def test_each_topic_is_asked_every_quarter_second():
    played = Played()
    topic = played.broker.follow().topic
    for _ in range(10):
        played.questions.ask(topic.id)
        played.questions.tick(played.broker.clock_s)
    assert len(played.own.asked) == 1
    played.own.answer((topic.name, topic.id, 1))
    played.questions.ask(topic.id)
    played.pass_time(ASK_EVERY_S + 0.1)
    assert played.own.asked == [[topic.id], [topic.id]]


def test_unexplained_topic_is_retried_after_doubling_pauses():
    played = Played()
    played.want("gone")
    pauses, asked_at = [], 0.0
    for count in range(1, 10):
        assert len(played.own.asked) == count
        played.own.refuse()
        assert len(played.questions) == 0
        while len(played.own.asked) == count:
            played.want("gone")
            played.pass_time(0.1)
        pauses.append(round(played.broker.clock_s - asked_at))
        asked_at = played.broker.clock_s
    assert pauses == [FIRST_REFUSED_S * 2**n for n in range(6)] + [MOST_REFUSED_S] * 3


def test_unwanted_topic_is_not_asked_again():
    played = Played()
    played.want("gone")
    played.own.refuse()
    played.pass_time(200)
    assert len(played.own.asked) == 1


def test_refused_names_share_one_question_a_second():
    played = Played()
    names = [f"t-{number}" for number in range(1001)]
    for name in names:
        played.want(name)
    while len(played.questions):
        played.own.refuse()
    played.own.refuse()
    first = len(played.own.asked)
    for _ in range(20):
        for name in names:
            played.questions.ask(name)
        played.pass_time(0.5)
        while played.own._pending:
            played.own.refuse()
    assert first == 1 + 1000 / NAMES_A_QUESTION
    assert len(played.own.asked) - first <= 10 / RETRY_EVERY_S + 1


def test_topic_queue_is_limited_and_drops_counted():
    played = Played()
    for number in range(TOPICS_LIMIT + 11):
        played.want(f"t-{number}")
    assert len(played.questions) == TOPICS_LIMIT
    assert played.questions.dropped == 10
    assert len(played.questions._own_paces) <= TOPICS_LIMIT


@pytest.mark.parametrize(
    "error", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_undescribable_topic_is_asked_on_the_clients_connection(error):
    played = Played()
    key = ID if error == ErrorCode.UNKNOWN_TOPIC_ID else "secret"
    played.want(key)
    played.own.refuse(error)
    played.want(key)
    played.want(key)
    assert played.client.asked == [[key]]
    played.client.answer(("secret", ID, 1))
    assert known(played.broker.topics.find("secret")).id == ID
    assert len(played.own.asked) == 1


def test_clients_connections_carry_questions_without_own_ones():
    played = Played(usable=False)
    for _ in range(5):
        played.want("new")
    assert played.client.asked == [["new"]]
    played.client.refuse()
    played.broker.clock_s += FIRST_REFUSED_S / 2
    played.want("new")
    assert played.client.asked == [["new"]]
    played.broker.clock_s += FIRST_REFUSED_S
    played.want("new")
    assert played.client.asked == [["new"], ["new"]]
    assert played.questions.questions == {"own": 0, "client": 2}


def test_lost_question_is_asked_again():
    played = Played()
    played.want("new")
    played.own.lose()
    played.pass_time(1)
    assert played.own.asked == [["new"], ["new"]]


def test_unreadable_response_counts_as_refusal():
    played = Played()
    played.want("new")
    played.own._pending.pop(0)(b"\0\0\0\4abcd")
    played.want("new")
    played.pass_time(FIRST_REFUSED_S / 2)
    assert len(played.own.asked) == 1


def test_a_name_that_is_gone_stands_for_nothing():
    played = Played()
    topic = played.broker.follow().topic
    played.questions.ask(topic.name)
    played.own.refuse()
    assert played.broker.forgotten == [topic.id]
