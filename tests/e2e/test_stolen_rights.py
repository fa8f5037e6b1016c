"""Whoever may not read a topic gets none of it, whatever its Fetches name: stolen session ids, names, ids, offsets.

Owns the intruders: a signed-in user and a client that never signed in, on connections of their own, beside a reader who
has the right and whom memory serves. Must not know how Forebay keeps rights. Invariant: the secret topic's records hold
a word that no answer to an intruder may hold, wherever it stands in the frame.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from protocol import api, control, fetch
from protocol.errors import ErrorCode
from protocol.fetch_build import build_request
from tests.e2e.test_security_conformance import (
    ADMIN,
    ALICE,
    ANONYMOUS,
    PATIENCE_S,
    THROUGH,
    Fronts,
    Rights,
    count_hits,
    fronts,
)
from tests.kit.broker.kafka import USERS
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, TopicWords
from tests.kit.session_client import SessionClient

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fronts"]  # the fixture
pytestmark = pytest.mark.e2e

TRIES = 1000
RECORDS = 20
ADMIN_POLLS_EVERY = 10
SECRET, OPEN = b"only for who may", b"for everybody"
UNKNOWN = TopicWords("no-such-topic", bytes(range(16)), {})
FETCH_VERSIONS = range(4, 19)
FIRST_WITH_IDS = 13
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
REFUSALS = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID}


def sign_in(client: RawClient, user: str) -> None:
    hello = control.build_sasl_handshake_request(
        HANDSHAKE_VERSION, 1, client.client_id, mechanism="PLAIN"
    )
    answer = control.scan_sasl_handshake_response(client.call(hello), HANDSHAKE_VERSION)
    assert answer.error_code == 0
    token = f"\0{user}\0{USERS[user]}".encode()
    shown = control.build_sasl_authenticate_request(
        AUTHENTICATE_VERSION, 2, client.client_id, auth_bytes=token
    )
    accepted = control.scan_sasl_authenticate_response(client.call(shown), AUTHENTICATE_VERSION)
    assert accepted.error_code == 0


def connect(fronts: Fronts, user: str) -> RawClient:
    protocol = "PLAINTEXT" if user == ANONYMOUS else "SASL_PLAINTEXT"
    client = RawClient(fronts.addresses[THROUGH, protocol], user)
    if user != ANONYMOUS:
        sign_in(client, user)
    return client


def fill(fronts: Fronts, word: bytes, readers: list[str]) -> str:
    """A topic whose records hold `word`, for these to read beside the administrator."""
    topic = create_topic(fronts.broker.direct)
    rights = Rights(fronts, topic)
    for user in readers:
        rights.grant(user)
    producer = Producer(fronts.connect_admin(THROUGH))
    for _ in range(RECORDS):
        producer.produce(topic, word, partition=0)
        assert producer.flush(PATIENCE_S) == 0
    return topic


class Owner:
    """Who may read the secret, in a fetch session that goes on; memory serves it."""

    def __init__(self, fronts: Fronts, topic: str) -> None:
        self._client = connect(fronts, ADMIN)
        self.words = self._client.topic(topic)
        self.session = SessionClient(self._client, FETCH_VERSIONS[-1])
        self.reads = 0

    def poll(self) -> None:
        """Read the secret from some offset on."""
        offset = self.reads % RECORDS
        asked = fetch.FetchPartition(self.words.id, 0, -1, offset, -1, -1, 1 << 16)
        self.session.want = {(self.words.id, 0): asked}
        _, frame = self.session.poll()
        self.reads += SECRET in frame


class Intruder:
    """Asks at random on one connection, with the owner's session beside its own."""

    def __init__(self, fronts: Fronts, user: str, owner: Owner, topics: list[TopicWords]) -> None:
        self._client = connect(fronts, user)
        self._owner = owner
        self._topics = topics
        self._own_session = 0
        self.open_reads = 0

    def ask(self, draw: random.Random) -> tuple[int, bytes]:
        """The version of a Fetch, and the frame that answers it."""
        version = draw.choice(FETCH_VERSIONS)
        session = self._owner.session
        sessions = (0, 0, session.id, session.id, self._own_session, draw.randrange(1, 1 << 31))
        epochs = (-1, 0, 1, session.epoch, session.epoch + 1, draw.randrange(1 << 31))
        named = draw.sample(self._topics, draw.randrange(len(self._topics) + 1))
        forgotten = draw.sample(self._topics, draw.randrange(2))
        frame = build_request(
            version,
            draw.randrange(1 << 31),
            "intruder",
            max_wait_ms=draw.choice((0, 0, 10)),
            min_bytes=draw.choice((0, 1, 1 << 20)),
            max_bytes=1 << 20,
            isolation_level=draw.randrange(2),
            session_id=draw.choice(sessions),
            session_epoch=draw.choice(epochs),
            partitions=[self._name(one, version, draw) for one in named],
            forgotten=[(self._word(one, version), 0) for one in forgotten],
        )
        return version, self._client.call(frame)

    def _word(self, topic: TopicWords, version: int) -> str | bytes:
        return topic.id if version >= FIRST_WITH_IDS else topic.name

    def _name(self, topic: TopicWords, version: int, draw: random.Random) -> fetch.FetchPartition:
        epoch = draw.choice((-1, -1, 0, topic.epochs.get(0, 0)))
        offset = draw.choice((0, draw.randrange(RECORDS), RECORDS, RECORDS + 1))
        return fetch.FetchPartition(self._word(topic, version), 0, epoch, offset, -1, -1, 1 << 16)

    def check(self, version: int, frame: bytes, secret: TopicWords) -> None:
        """Nothing of the secret is in the answer: no record, and no offset."""
        assert SECRET not in frame
        response = fetch.scan_response(frame, version)
        assert response.error_code == 0 or response.error_code in SESSION_ERRORS
        self._own_session = response.session_id or self._own_session
        self.open_reads += OPEN in frame
        for partition in response.partitions:
            if partition.topic in {secret.name, secret.id}:
                assert partition.error_code in REFUSALS, partition
                assert partition.end == partition.start
                assert partition.high_watermark == -1


@pytest.fixture
def seed() -> Iterator[int]:
    number = random.SystemRandom().randrange(1 << 32)
    print(f"seed {number}")
    yield number


def test_nothing_of_a_secret_reaches_who_may_not_read_it(fronts: Fronts, seed: int) -> None:
    assert api.APIS[api.FETCH].decoded == (FETCH_VERSIONS[0], FETCH_VERSIONS[-1])
    draw = random.Random(seed)
    owner = Owner(fronts, fill(fronts, SECRET, []))
    open_words = connect(fronts, ALICE).topic(fill(fronts, OPEN, [ALICE, ANONYMOUS]))
    topics = [owner.words, open_words, UNKNOWN]
    intruders = [Intruder(fronts, user, owner, topics) for user in (ALICE, ANONYMOUS)]
    before = count_hits(fronts)
    for number in range(TRIES):
        if number % ADMIN_POLLS_EVERY == 0:
            owner.poll()
        intruder = draw.choice(intruders)
        intruder.check(*intruder.ask(draw), owner.words)
    assert owner.reads > TRIES / ADMIN_POLLS_EVERY / 2, "the secret was there to be read"
    assert count_hits(fronts) > before, "and memory served it"
    assert all(one.open_reads > 0 for one in intruders), "others read what they may"
