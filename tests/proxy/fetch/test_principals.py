"""Rights that connections of one principal share: asked for once, never another's, and gone for all at once.

A played broker answers each question as the test says. The clock stands still but where a test moves it.
"""

from __future__ import annotations

from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from protocol import header
from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer, build_response
from protocol.sasl import SaslExchange, SaslIdentity
from proxy.fetch import principals
from proxy.fetch.authorization import Authorization
from proxy.fetch.principals import WAIT_S, PrincipalKey, Principals
from tests.kit import fetch_messages
from tests.proxy.followed_partition import PRINCIPALS, TOPIC_ID, QuietBroker, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 13
PERIOD_S = 60.0
ALICE, BOB = SaslIdentity("PLAIN", b"alice"), SaslIdentity("PLAIN", b"bob")
OTHER_ID = bytes(reversed(TOPIC_ID))


class Question(NamedTuple):
    """A Fetch of Forebay's own that waits for the test's answer."""

    topics: list[str | bytes]
    answer: Callable[[bytes | None], None]


class Scene:
    """A broker, its clients and the questions that were sent to it, oldest first."""

    def __init__(self):
        self.broker = QuietBroker()
        self.broker.config.cache.authorize_every_s = PERIOD_S
        self.broker.clock_s = 100.0
        self.partition = self.broker.follow()
        self.questions: list[Question] = []

    def connect(
        self,
        identity=None,
        listener="default",
        stores=True,
        send: Any = None,
        unanswered=0,
        principal=None,
    ):
        link = stand_in(
            SimpleNamespace(
                broker=self.broker,
                principal=principal,
                client_id="reader",
                upstream=SimpleNamespace(send=send or self.send, unanswered=unanswered),
                stores=stores,
                listener=SimpleNamespace(name=listener),
            )
        )
        rights = Authorization(link)
        rights.note_version(VERSION)
        if identity is not None:
            self.sign_in(rights, identity)
        return rights

    def sign_in(self, rights, identity):
        rights.begin_exchange(SaslExchange("PLAIN"))
        rights.sign_in(identity)
        self.broker.clock_s += 0.001

    def send(self, frame, _correlation_id, on_answer):
        asked = fetch_messages.scan_request(frame, VERSION, header.peek_request(frame).body_start)
        self.questions.append(Question([one.topic for one in asked.partitions], on_answer))

    def answer(self, number=0, error_code=ErrorCode.NONE):
        """Answer an open question; None: its connection is lost."""
        question = self.questions.pop(number)
        if error_code is None:
            question.answer(None)
            return
        said = [
            FetchAnswer(topic, 0, error_code, 5, 5, 0, None, (), 0) for topic in question.topics
        ]
        frames = build_response(
            VERSION, 0, throttle_time_ms=0, error_code=0, session_id=0, partitions=said
        )
        question.answer(b"".join(bytes(frame) for frame in frames))

    def prove(self, rights, *topics):
        """Ask for topics; what is heard of it."""
        heard: list[bool] = []
        rights.prove(dict.fromkeys(topics or (TOPIC_ID,), self.partition), VERSION, heard.append)
        return heard

    def allows(self, rights, topic=TOPIC_ID):
        return rights.allows(topic, self.broker.clock_s)


@pytest.fixture
def scene():
    return Scene()


# -- shared by one principal --------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [None, ALICE], ids=["nobody asks", "alice"])
def test_hundred_connections_ask_once(scene, identity):
    all_rights = [scene.connect(identity) for _ in range(100)]
    heard = [scene.prove(rights) for rights in all_rights]
    assert len(scene.questions) == 1 and scene.broker.principals.waiting == 99
    scene.answer()
    assert heard == [[True]] * 100 and scene.broker.principals.waiting == 0
    assert all(map(scene.allows, all_rights))
    assert scene.allows(scene.connect(identity)), "a later connection need not ask"
    assert scene.broker.counters.clients.authorization_proofs == 1


def test_clients_whom_forebay_signs_in_have_their_own_principals_rights(scene):
    """Their certificates are their names; none of them signs in by itself."""
    first, again = (scene.connect(principal="CN=first") for _ in range(2))
    second, nobody = scene.connect(principal="CN=second"), scene.connect()
    scene.prove(first)
    scene.answer()
    assert scene.allows(first) and scene.allows(again)
    assert not scene.allows(second) and not scene.allows(nobody)
    scene.prove(second)
    scene.answer(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert scene.allows(first) and not scene.allows(second)


def test_renewal_of_one_is_a_renewal_for_all(scene):
    one, other = scene.connect(ALICE), scene.connect(ALICE)
    scene.prove(one)
    scene.answer()
    scene.broker.clock_s += 0.8 * PERIOD_S
    for rights in (one, other, one, other):
        rights.used(TOPIC_ID, scene.partition, scene.broker.clock_s)
    assert len(scene.questions) == 1
    scene.answer()
    scene.broker.clock_s += 0.7 * PERIOD_S
    other.used(TOPIC_ID, scene.partition, scene.broker.clock_s)
    assert scene.allows(other) and scene.questions == []


def test_renewal_that_is_not_answered_is_taken_over(scene):
    one, other = scene.connect(ALICE), scene.connect(ALICE)
    scene.prove(one)
    scene.answer()
    scene.broker.clock_s += 0.8 * PERIOD_S
    one.used(TOPIC_ID, scene.partition, scene.broker.clock_s)
    scene.broker.clock_s += WAIT_S
    other.used(TOPIC_ID, scene.partition, scene.broker.clock_s)
    assert len(scene.questions) == 2


def test_one_renewal_asks_for_all_topics_that_end_soon(scene):
    rights = scene.connect(ALICE)
    scene.prove(rights, TOPIC_ID)
    scene.answer()
    scene.broker.clock_s += 0.3 * PERIOD_S
    scene.prove(rights, OTHER_ID)
    scene.answer()
    scene.broker.clock_s += 0.5 * PERIOD_S  # 0.2 of the period is left of one, half of the other
    for topic in (OTHER_ID, TOPIC_ID):
        rights.used(topic, scene.partition, scene.broker.clock_s)
    assert len(scene.questions) == 1
    assert scene.questions[0].topics == [TOPIC_ID]
    scene.broker.clock_s += 0.01
    rights.used(OTHER_ID, scene.partition, scene.broker.clock_s)
    assert len(scene.questions) == 1, "a connection has one renewal at a time"


# -- never another's ----------------------------------------------------------------------------------


def test_principals_are_told_apart(scene):
    alice = scene.connect(ALICE)
    scene.prove(alice)
    scene.answer()
    others = {
        "bob": scene.connect(BOB),
        "nobody": scene.connect(),
        "alice by another mechanism": scene.connect(SaslIdentity("SCRAM-SHA-256", b"alice")),
        "alice on another listener": scene.connect(ALICE, "other"),
        "not known": scene.connect(),
        "where nothing is stored": scene.connect(ALICE, stores=False),
    }
    scene.sign_in(others["not known"], None)
    assert scene.allows(alice)
    assert [name for name, rights in others.items() if scene.allows(rights)] == []
    for rights in others.values():
        assert scene.prove(rights) == []
    assert len(scene.questions) == len(others), "none waits for what another asks"


def test_unknown_principals_share_nothing(scene):
    one, other = scene.connect(), scene.connect()
    scene.sign_in(one, None)
    scene.sign_in(other, None)
    scene.prove(one)
    scene.answer()
    assert scene.allows(one) and not scene.allows(other)


def test_interleaved_proofs_give_each_his_own(scene):
    """The broker refuses bob what it grants alice, in either order of question and answer."""
    for alice_first in (True, False):
        alice, bob = scene.connect(ALICE), scene.connect(BOB)
        topic = TOPIC_ID if alice_first else OTHER_ID
        scene.prove(alice, topic)
        scene.prove(bob, topic)
        codes = [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        for number in (0, 1) if alice_first else (1, 0):
            scene.answer(number if number < len(scene.questions) else 0, codes[number])
        assert scene.allows(alice, topic) and not scene.allows(bob, topic)


def test_client_with_a_rack_has_its_own_rights(scene):
    """Only its own Fetch shows whether the broker sends it to a follower."""
    plain, racked = scene.connect(ALICE), scene.connect(ALICE)
    racked.note_rack(True)
    scene.prove(plain)
    scene.answer()
    assert scene.allows(plain) and not scene.allows(racked)
    racked.learn(TOPIC_ID, ErrorCode.NONE, scene.broker.clock_s)
    assert scene.allows(racked)
    scene.sign_in(racked, ALICE)
    assert not scene.allows(racked), "its own rights were of the exchange before"


# -- another principal, and none ----------------------------------------------------------------------


def test_other_principal_loses_the_rights_of_the_first(scene):
    rights, other = scene.connect(ALICE), scene.connect(ALICE)
    scene.prove(rights)
    scene.answer()
    before = rights.rights.version
    scene.sign_in(rights, BOB)
    assert not scene.allows(rights) and rights.rights.version != before
    assert scene.allows(other), "alice herself keeps hers"
    scene.sign_in(rights, ALICE)
    assert scene.allows(rights)


def test_answers_to_the_former_principal_prove_nothing(scene):
    rights, other = scene.connect(ALICE), scene.connect(ALICE)
    heard = scene.prove(rights)
    sent_at = scene.broker.clock_s
    scene.broker.clock_s += 0.001
    scene.sign_in(rights, BOB)
    rights.learn(TOPIC_ID, ErrorCode.NONE, sent_at)  # the client's own Fetch, sent before
    scene.answer()
    assert heard == [True]
    assert not scene.allows(rights), "bob has not asked"
    assert scene.allows(other), "the question was alice's"


def test_same_principal_again_keeps_its_rights_and_answers(scene):
    rights = scene.connect(ALICE)
    scene.prove(rights)
    sent_at = scene.broker.clock_s
    scene.sign_in(rights, ALICE)
    scene.answer()
    rights.learn(OTHER_ID, ErrorCode.NONE, sent_at)
    assert scene.allows(rights) and scene.allows(rights, OTHER_ID)


def test_failed_exchange_ends_all_rights_of_the_connection(scene):
    rights, other = scene.connect(ALICE), scene.connect(ALICE)
    scene.prove(rights)
    scene.answer()
    rights.begin_exchange(SaslExchange("PLAIN"))
    assert scene.allows(rights), "the broker has not decided"
    rights.sign_in(None)
    assert not scene.allows(rights) and scene.allows(other)


def test_right_of_others_does_not_outlive_the_own_session(scene):
    """KIP-368: the session is a connection's own, however fresh the rights of its principal are."""
    rights, other = scene.connect(ALICE), scene.connect(ALICE)
    now = scene.broker.clock_s
    rights.begin_session(now, now, 10.0)
    scene.broker.clock_s += 9.0
    scene.prove(other)
    scene.answer()
    assert scene.allows(rights)
    scene.broker.clock_s += 1.0
    assert not scene.allows(rights) and scene.allows(other)
    rights.learn(TOPIC_ID, ErrorCode.NONE, scene.broker.clock_s + 1.1)
    assert scene.allows(rights), "the broker has answered it beyond the end"


def test_nothing_is_renewed_within_an_exchange_or_at_the_end_of_a_session(scene):
    """A broker closes a connection for any other request then (SaslServerAuthenticator, KIP-368)."""
    for number in range(2):
        rights = scene.connect(SaslIdentity("PLAIN", b"%d" % number))
        scene.prove(rights)
        scene.answer()
        started_at = scene.broker.clock_s
        scene.broker.clock_s += 0.8 * PERIOD_S
        if number:
            rights.begin_exchange(SaslExchange("PLAIN"))
        else:
            rights.begin_session(started_at, started_at, 0.8 * PERIOD_S + 0.5)
        rights.used(TOPIC_ID, scene.partition, scene.broker.clock_s)
        assert scene.questions == []


# -- taken back ---------------------------------------------------------------------------------------


def test_refusal_that_one_connection_learns_ends_the_right_of_all(scene):
    one, other, bob = scene.connect(ALICE), scene.connect(ALICE), scene.connect(BOB)
    for rights in (one, bob):
        scene.prove(rights)
        scene.answer()
    before, of_bob = other.rights.version, bob.rights.version
    one.learn(TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED, scene.broker.clock_s)
    assert not scene.allows(one) and not scene.allows(other)
    assert other.rights.version != before, "those who wait at the tail look again"
    assert scene.allows(bob) and bob.rights.version == of_bob
    assert scene.broker.counters.clients.rights_withdrawn == 1


def test_older_grant_does_not_undo_a_refusal(scene):
    """A long poll that the broker has granted before is answered after another connection's refusal."""
    one, other = scene.connect(ALICE), scene.connect(ALICE)
    sent_at = scene.broker.clock_s
    scene.prove(one)
    scene.broker.clock_s += 1.0
    other.learn(TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED, scene.broker.clock_s)
    one.learn(TOPIC_ID, ErrorCode.NONE, sent_at)
    scene.answer()
    assert not scene.allows(one) and not scene.allows(other)
    scene.broker.clock_s += 1.0
    scene.prove(other)
    scene.answer()
    assert scene.allows(one), "given again"


@pytest.mark.parametrize(
    "error_code", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_deleted_topic_proves_nothing_for_its_successor(scene, error_code):
    rights = scene.connect(ALICE)
    scene.prove(rights)
    scene.answer(0, error_code)
    assert not scene.allows(rights)
    scene.prove(rights)
    scene.answer()
    assert not scene.allows(rights, OTHER_ID), "re-created under another id, it is asked for again"


# -- connections that end -----------------------------------------------------------------------------


def test_those_who_wait_ask_when_the_asking_connection_is_lost(scene):
    clients = [scene.connect(ALICE) for _ in range(5)]
    heard = [scene.prove(rights) for rights in clients]
    scene.answer(0, None)
    assert heard == [[False], [], [], [], []]
    assert len(scene.questions) == 1 and scene.broker.principals.waiting == 3, (
        "one asks for all again"
    )
    scene.answer()
    assert heard[1:] == [[True]] * 4 and scene.allows(clients[4])


def test_a_fetch_waits_for_two_others_at_most(scene):
    clients = [scene.connect(ALICE) for _ in range(4)]
    heard = [scene.prove(rights) for rights in clients]
    for _ in range(2):
        scene.answer(0, None)
    assert len(scene.questions) == 2 and scene.broker.principals.waiting == 0
    scene.answer()
    scene.answer()
    assert heard == [[False], [False], [True], [True]]


def test_those_who_wait_for_long_ask_themselves(scene):
    """The asking connection's client reads nothing, so that its broker is not read either."""
    slow, other = scene.connect(ALICE), scene.connect(ALICE)
    heard = scene.prove(slow), scene.prove(other)
    scene.broker.clock_s += WAIT_S - 0.01
    scene.broker.principals.tick(scene.broker.clock_s)
    assert len(scene.questions) == 1
    scene.broker.clock_s += 0.01
    scene.broker.principals.tick(scene.broker.clock_s)
    assert len(scene.questions) == 2 and heard == ([], [])
    scene.answer(1)
    assert heard == ([], [True]) and scene.allows(slow)
    scene.answer()
    assert heard == ([True], [True])


def test_nobody_waits_for_a_question_behind_a_long_poll(scene):
    """A broker works on one request of a connection at a time."""
    busy, other, third = (
        scene.connect(ALICE, unanswered=1),
        scene.connect(ALICE),
        scene.connect(ALICE),
    )
    for rights in (busy, other, third):
        scene.prove(rights)
    assert len(scene.questions) == 2 and scene.broker.principals.waiting == 1


def test_connection_that_ends_while_it_waits_is_told_once(scene):
    one, other = scene.connect(ALICE), scene.connect(ALICE)
    scene.prove(one)
    heard = scene.prove(other)
    other.close()
    assert heard == [False] and scene.broker.principals.waiting == 0
    scene.answer()
    assert heard == [False] and not scene.allows(other)


def test_connections_that_end_while_others_are_told(scene):
    """What one does when it is told may end another, which must not be told twice."""
    one, other, third = (scene.connect(ALICE) for _ in range(3))
    scene.prove(one)
    heard: list[str] = []

    def end_third(answered):
        heard.append(f"other {answered}")
        third.close()

    other.prove({TOPIC_ID: scene.partition}, VERSION, end_third)
    third.prove(
        {TOPIC_ID: scene.partition}, VERSION, lambda answered: heard.append(f"third {answered}")
    )
    scene.answer()
    assert heard == ["other True", "third False"]
    assert scene.broker.principals.waiting == 0


def test_rights_are_forgotten_with_the_last_connection(scene):
    one, other = scene.connect(ALICE), scene.connect(ALICE)
    scene.prove(one)
    scene.answer()
    one.close()
    assert scene.allows(other)
    other.close()
    assert not scene.allows(scene.connect(ALICE))


def test_question_of_one_who_left_is_not_learned_by_those_who_came(scene):
    one = scene.connect(ALICE)
    scene.prove(one)
    one.close()
    later = scene.connect(ALICE)
    scene.answer()
    assert not scene.allows(later) and not scene.allows(one)


# -- bounds -------------------------------------------------------------------------------------------


def test_principals_beyond_the_limit_share_nothing(scene):
    shared = scene.broker.principals
    identities = [SaslIdentity("PLAIN", b"%d" % number) for number in range(PRINCIPALS + 1)]
    pairs = [(scene.connect(one), scene.connect(one)) for one in identities]
    assert len(shared) == PRINCIPALS
    for one, _ in pairs:
        scene.prove(one)
    while scene.questions:
        scene.answer()
    served = [scene.allows(other) for _, other in pairs]
    assert served.count(True) == PRINCIPALS and all(scene.allows(one) for one, _ in pairs)
    for pair in pairs:
        for rights in pair:
            rights.close()
    assert len(shared) == 0


def test_limit_of_zero_shares_nothing(scene):
    scene.broker.principals.set_limit(0)
    one, other = scene.connect(), scene.connect()
    scene.prove(one)
    scene.answer()
    assert scene.allows(one) and not scene.allows(other) and len(scene.broker.principals) == 0


def test_fetches_beyond_the_limit_do_not_wait(scene, monkeypatch):
    monkeypatch.setattr(principals, "WAITS_LIMIT", 2)
    clients = [scene.connect(ALICE) for _ in range(5)]
    for rights in clients:
        scene.prove(rights)
    assert scene.broker.principals.waiting == 2 and len(scene.questions) == 3


def test_topics_of_a_principal_have_a_limit(monkeypatch):
    monkeypatch.setattr(principals, "TOPICS_LIMIT", 3)
    rights = Principals(1).join(PrincipalKey("default", None))
    for number in range(4):
        rights.grant(f"{number}", 1.0, 10.0 + number)
    assert list(rights.until) == ["0", "1", "2"]
    rights.grant("2", 2.0, 20.0)
    assert rights.until["2"] == 20.0, "known ones are renewed"
    rights.grant("4", 11.5, 30.0)
    assert list(rights.until) == ["2", "4"], "those that have ended make room"


def test_refusals_of_a_principal_have_a_limit(monkeypatch):
    """Beyond it the time of the last refusal stands for all topics: less is believed, never more."""
    monkeypatch.setattr(principals, "REFUSED_LIMIT", 2)
    rights = Principals(1).join(PrincipalKey("default", None))
    for number in range(3):
        rights.refuse(f"{number}", 5.0 + number)
    for topic in ("0", "2", "other"):
        rights.grant(topic, 6.5, 60.0)
        assert topic not in rights.until
        rights.grant(topic, 7.5, 60.0)
        assert topic in rights.until


# -- by chance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_allowed_what_the_broker_never_granted_him(seed):
    """Connections come, go, sign in as this or that, ask, are answered late or never; rights come and go.

    The reference is the broker: the last moment at which it would have granted a principal a topic.
    """
    rng, scene = Random(seed), Scene()
    identities = [None, ALICE, BOB, SaslIdentity("OAUTHBEARER", b"alice")]
    topics: list[str | bytes] = [bytes((number,)) * 16 for number in range(4)]
    may = {(who, topic): rng.random() < 0.5 for who in identities for topic in topics}
    granted: dict[tuple[object, str | bytes], float] = {}
    clients: list[tuple[Authorization, list[SaslIdentity | None]]] = []
    open_questions: list[tuple[object, dict[str | bytes, bool]]] = []

    def note(owner, frame, correlation_id, on_answer):
        scene.send(frame, correlation_id, on_answer)
        who = owner[-1]
        asked = scene.questions[-1].topics
        said = {topic: may[who, topic] for topic in asked}
        open_questions.append((who, said))
        for topic in asked:
            if said[topic]:
                granted[who, topic] = scene.broker.clock_s

    for _ in range(600):
        scene.broker.clock_s += rng.random()
        scene.broker.principals.tick(scene.broker.clock_s)
        act = rng.randrange(7)
        if act == 0 or not clients:
            owner: list[SaslIdentity | None] = [rng.choice(identities)]
            clients.append((scene.connect(owner[-1], send=partial(note, owner)), owner))
        index = rng.randrange(len(clients))
        rights, owner = clients[index]
        if act == 1:
            scene.prove(rights, *rng.sample(topics, rng.randint(1, 3)))
        elif act == 2 and scene.questions:
            number = rng.randrange(len(scene.questions))
            question, (_, said) = scene.questions.pop(number), open_questions.pop(number)
            if rng.random() < 0.2:
                question.answer(None)
                continue
            shown = [
                FetchAnswer(
                    topic,
                    0,
                    ErrorCode.NONE if said[topic] else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    *(5, 5, 0, None, (), 0),
                )
                for topic in question.topics
            ]
            frames = build_response(
                VERSION, 0, throttle_time_ms=0, error_code=0, session_id=0, partitions=shown
            )
            question.answer(b"".join(bytes(frame) for frame in frames))
        elif act == 3 and rng.random() < 0.3:
            rights.close()
            del clients[index]
        elif act == 4:
            pair = rng.choice(list(may))
            may[pair] = not may[pair]
        elif act == 5:
            topic = rng.choice(topics)
            if rights.allows(topic, scene.broker.clock_s):
                rights.used(topic, scene.partition, scene.broker.clock_s)
        elif act == 6 and rng.random() < 0.3:
            owner.append(rng.choice([ALICE, BOB]))
            scene.sign_in(rights, owner[-1])
        for one, owner in clients:
            for topic in topics:
                if one.allows(topic, scene.broker.clock_s):
                    since = granted.get((owner[-1], topic), float("-inf"))
                    assert scene.broker.clock_s < since + PERIOD_S
    assert granted, "somebody was granted something"
