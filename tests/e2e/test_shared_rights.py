"""Rights that connections of one principal share, before a real broker with an authorizer.

Owns the broker, four users and a Forebay that would renew rights only after an hour: what ends a right here is the
broker's answer, or that it was another's. Records that are not to be seen carry a mark, so that one of them anywhere
in an answer is found.
"""

from __future__ import annotations

import contextlib
import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from protocol import fetch
from protocol.errors import ErrorCode
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from tests.e2e.raw_frames import HIT, TIMEOUT_S, Raw, build_fetch, fetched, numbers
from tests.e2e.sasl_frames import (
    SCRAM,
    build_token,
    shake_hands,
    show,
    sign_in_plain,
    sign_in_scram,
    sign_in_token,
)
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient
from tests.kit.sidecar import PATIENT_CACHE, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

ALL_USERS = USERS | {"bob": "bob-secret", "carol": "carol-secret"}
MARK, OPEN_MARK = b"not-for-you", b"for-carol-too"
CONNECTIONS, TRIES, BEFORE = 20, 1000, 5
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
PROOFS, RENEWALS = (
    ("forebay_authorization_proofs_total",),
    ("forebay_authorization_renewals_total",),
)


class Guarded(NamedTuple):
    """`inside`: the broker's own listener with the same security, past Forebay."""

    broker: KafkaCluster
    sidecar: Sidecar
    listen: str
    inside: str


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lease_port())
        mechanisms = ("PLAIN", SCRAM, "OAUTHBEARER")
        listener = Listener("CLIENT", "SASL_PLAINTEXT", mechanisms, advertised=(HOST, lease.port))
        cluster = KafkaCluster(listeners=[listener], users=ALL_USERS, authorizer=True)
        broker = stack.enter_context(cluster)
        secret = broker.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(ALL_USERS["admin"])
        host, port = broker.address("CLIENT")
        entry = {
            "listen": f"{HOST}:{lease.port}",
            "upstream": f"{host}:{port}",
            "upstreamCredentials": {
                "mechanism": "PLAIN",
                "username": "admin",
                "passwordFile": str(secret),
            },
        }
        cache = PATIENT_CACHE | {"authorizeEvery": "1h"}
        sidecar = stack.enter_context(Sidecar([entry], {"cache": cache}))
        yield Guarded(broker, sidecar, sidecar.bootstrap, f"{host}:{port}")


def change_acl(guarded: Guarded, user: str, topic: str, *, grant: bool = True) -> None:
    """Whether a user may read a topic."""
    admin = AdminClient({"bootstrap.servers": guarded.broker.direct})
    what = (
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    changed = (
        admin.create_acls([AclBinding(*what)])
        if grant
        else admin.delete_acls([AclBindingFilter(*what)])
    )
    for future in changed.values():
        future.result(TIMEOUT_S)
    with connect_plain(guarded.inside, user) as client:
        wait_until(lambda: (read_code(client, topic, 0) == 0) is grant)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def connect_plain(address: str, user: str) -> Iterator[Raw]:
    with Raw(address) as client:
        assert sign_in_plain(client, user, ALL_USERS[user]).error_code == 0
        yield client


def read(client: Raw, topic: str, offset: int, max_wait_ms: int = 100) -> tuple[int, bytes]:
    """Error code and record bytes of one Fetch."""
    answer = client.call(build_fetch(topic, offset, max_wait_ms))
    said = fetched(answer)
    return said.error_code, answer[max(said.start, 0) : max(said.end, 0)]


def read_code(client: Raw, topic: str, offset: int) -> int:
    return read(client, topic, offset, 0)[0]


def hits(guarded: Guarded) -> float:
    return guarded.sidecar.fetch_counts().get(HIT, 0)


def questions(guarded: Guarded) -> float:
    metrics = guarded.sidecar.metrics()
    return metrics[PROOFS] + metrics[RENEWALS]


def make_topic(guarded: Guarded, mark: bytes = MARK) -> tuple[str, int]:
    """A topic whose first records Forebay has not seen, and their end."""
    topic = create_topic(guarded.broker.direct)
    with RawClient(guarded.broker.direct) as writer:
        for _ in range(BEFORE):
            writer.produce(topic, batch_v2(1, value=mark))
    return topic, BEFORE


def read_until_hit(guarded: Guarded, client: Raw, topic: str, mark: bytes = MARK) -> int:
    """Tail a topic until memory has served `client`. The offset of the last record, which memory holds."""
    before, deadline = hits(guarded), time.monotonic() + 2 * TIMEOUT_S
    with RawClient(guarded.broker.direct) as writer:
        while True:
            assert time.monotonic() < deadline, guarded.sidecar.fetch_counts()
            offset = writer.produce(topic, batch_v2(1, value=mark))
            wait_until(lambda offset=offset: mark in read(client, topic, offset)[1])  # type: ignore[misc]
            if hits(guarded) > before:
                return offset


def test_connections_of_one_principal_ask_once(guarded: Guarded) -> None:
    topic, _ = make_topic(guarded)
    change_acl(guarded, "alice", topic)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect_plain(guarded.listen, "alice"))
        offset = read_until_hit(guarded, first, topic)
        asked, before = questions(guarded), hits(guarded)
        for _ in range(CONNECTIONS):
            client = stack.enter_context(connect_plain(guarded.listen, "alice"))
            code, records = read(client, topic, offset)
            assert code == 0 and MARK in records
        assert hits(guarded) > before
        assert questions(guarded) == asked, "none of them asked the broker"
        bob = stack.enter_context(connect_plain(guarded.listen, "bob"))
        assert read(bob, topic, offset) == (REFUSED, b"")
        again = stack.enter_context(Raw(guarded.listen))
        sign_in_scram(again, "alice", ALL_USERS["alice"])
        asked = questions(guarded)
        assert MARK in read(again, topic, offset)[1]
        assert questions(guarded) == asked + 1, "by another mechanism it asks for itself"


def test_refusal_that_one_connection_sees_ends_the_rights_of_all_at_once(guarded: Guarded) -> None:
    topic, _ = make_topic(guarded)
    change_acl(guarded, "alice", topic)
    with (
        connect_plain(guarded.listen, "alice") as one,
        connect_plain(guarded.listen, "alice") as other,
    ):
        offset = read_until_hit(guarded, one, topic)
        assert MARK in read(other, topic, offset)[1]
        change_acl(guarded, "alice", topic, grant=False)
        assert MARK in read(other, topic, offset)[1], "cache.authorizeEvery has not passed"
        assert read_code(one, topic, 0) == REFUSED, "what memory lacks, the broker is asked for"
        assert read(other, topic, offset) == (REFUSED, b"")
        assert read(one, topic, offset) == (REFUSED, b"")
        assert guarded.sidecar.metrics()["forebay_authorization_withdrawals_total",] >= 1


def test_token_that_is_refused_without_an_error_code_gives_no_rights(guarded: Guarded) -> None:
    """The broker answers a bad token with error NONE and a reason (RFC 7628), and waits for the client to end it."""
    topic, _ = make_topic(guarded)
    change_acl(guarded, "alice", topic)
    expired = build_token("alice", -1.0)
    with Raw(guarded.listen) as holder:
        assert sign_in_token(holder, build_token("alice", 3600.0)).auth_bytes == b""
        offset = read_until_hit(guarded, holder, topic)
        for _ in range(3):
            with Raw(guarded.listen) as thief:
                answer = sign_in_token(thief, expired)
                assert answer.error_code == 0 and answer.auth_bytes
                thief.send(build_fetch(topic, offset, 0))
                assert thief.ends(), "the broker ends it, and memory serves it nothing"
        before = hits(guarded)
        assert MARK in read(holder, topic, offset)[1] and hits(guarded) > before


def test_exchange_that_fails_gives_no_rights(guarded: Guarded) -> None:
    topic, _ = make_topic(guarded)
    change_acl(guarded, "alice", topic)
    with connect_plain(guarded.listen, "alice") as holder:
        offset = read_until_hit(guarded, holder, topic)
        with Raw(guarded.listen) as thief:
            assert sign_in_plain(thief, "alice", "wrong").error_code != 0
            with contextlib.suppress(ConnectionError):
                thief.send(build_fetch(topic, offset, 0))
            assert thief.ends()
        with Raw(guarded.listen) as thief:
            shake_hands(thief, SCRAM)
            assert show(thief, b"n,,n=alice,r=abcdef").error_code == 0
            thief.send(build_fetch(topic, offset, 0))
            assert thief.ends()
        with connect_plain(guarded.listen, "bob") as bob:
            token = b"\0alice\0" + ALL_USERS["alice"].encode()
            assert show(bob, token).error_code != 0, "the broker's connection is bob's already"
            assert read(bob, topic, offset) == (REFUSED, b"")


# -- by chance ----------------------------------------------------------------------------------------


class Prey(NamedTuple):
    """A topic as it can be named, offsets that exist, and the mark of its records."""

    name: str
    id: bytes
    end: int
    mark: bytes


def build_theft(
    rng: Random, prey: list[Prey], sessions: list[tuple[int, int]]
) -> tuple[bytes, int]:
    """A Fetch of any version for some of the topics, by name or by id, in a stolen session or none; its version."""
    version = rng.randint(4, 17)
    asked = [
        FetchPartition(
            one.id if version >= fetch.TOPIC_IDS_FROM else one.name,
            0,
            rng.choice((-1, 0)),
            rng.randint(0, one.end),
            -1,
            -1,
            1 << 20,
        )
        for one in rng.sample(prey, rng.randint(1, len(prey)))
    ]
    session_id, epoch = rng.choice(sessions) if version >= 7 else (0, -1)
    frame = build_request(
        version,
        next(numbers),
        rng.choice(("raw", "alice", "bob")),
        max_wait_ms=rng.choice((0, 0, 5)),
        min_bytes=rng.choice((0, 1)),
        max_bytes=1 << 20,
        isolation_level=rng.choice((0, 1)),
        session_id=session_id,
        session_epoch=max(-1, epoch + rng.choice((0, 0, 1))),
        partitions=asked if rng.random() < 0.8 else [],
    )
    return frame, version


def open_session(client: Raw, one: Prey, version: int) -> tuple[int, int]:
    """Id and next epoch of a fetch session on one topic at its end."""
    topic = one.id if version >= fetch.TOPIC_IDS_FROM else one.name
    frame = build_request(
        version,
        next(numbers),
        "raw",
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=0,
        partitions=[FetchPartition(topic, 0, -1, one.end, -1, -1, 1 << 20)],
    )
    response = fetch.scan_response(client.call(frame), version)
    assert response.error_code == 0 and response.session_id
    return response.session_id, 1


def test_thousand_thefts_bring_no_record(guarded: Guarded) -> None:
    """Clients without a right, or with a right to another topic, ask for what memory serves alice meanwhile."""
    rng, thefts, of_own, refused = Random(19), 0, 0, 0
    with contextlib.ExitStack() as stack:
        alice = stack.enter_context(connect_plain(guarded.listen, "alice"))
        prey: list[Prey] = []
        for mark in (MARK, MARK, OPEN_MARK):
            topic, _ = make_topic(guarded, mark)
            change_acl(guarded, "alice", topic)
            if mark == OPEN_MARK:
                change_acl(guarded, "carol", topic)
            end = read_until_hit(guarded, alice, topic, mark) + 1
            with RawClient(guarded.broker.direct) as client:
                prey.append(Prey(topic, client.topic(topic).id, end, mark))
        sessions = [(0, -1), (0, 0)]
        sessions += [open_session(alice, one, version) for one in prey for version in (11, 13)]
        thieves: dict[str, Callable[[Raw], object]] = {
            "bob": lambda client: sign_in_plain(client, "bob", ALL_USERS["bob"]),
            "carol": lambda client: sign_in_plain(client, "carol", ALL_USERS["carol"]),
            "carol by SCRAM": lambda client: sign_in_scram(client, "carol", ALL_USERS["carol"]),
            "bob by a token": lambda client: sign_in_token(client, build_token("bob", 3600)),
            "nobody": lambda client: None,
            "a wrong password": lambda client: sign_in_plain(client, "alice", "wrong"),
        }
        connected: dict[str, Raw] = {}
        before = hits(guarded)
        weights = [8, 8, 8, 8, 1, 1]
        for number in range(TRIES):
            who = rng.choices(list(thieves), weights)[0]
            if who not in connected:
                connected[who] = stack.enter_context(Raw(guarded.listen))
                thieves[who](connected[who])
            frame, version = build_theft(rng, prey, sessions)
            thefts += 1
            try:
                answer = connected[who].call(frame)
            except ConnectionError:
                connected.pop(who).socket.close()
                refused += 1
                continue
            assert MARK not in answer, (number, who, version)
            is_carol = who.startswith("carol")
            assert is_carol or OPEN_MARK not in answer, (number, who, version)
            of_own += OPEN_MARK in answer
            if number % 10 == 0:
                one = rng.choice(prey)
                assert one.mark in read(alice, one.name, one.end - 1)[1]
        assert hits(guarded) > before, "memory served those who may all the while"
    assert thefts == TRIES and of_own > TRIES / 50 and refused > 10


def test_topic_made_anew_is_asked_for_anew(guarded: Guarded) -> None:
    """Rights by id end with the id; the right by name is the broker's to give again."""
    name = create_topic(guarded.broker.direct)
    change_acl(guarded, "alice", name)
    with connect_plain(guarded.listen, "alice") as one:
        read_until_hit(guarded, one, name)
        admin = AdminClient({"bootstrap.servers": guarded.broker.direct})
        admin.delete_topics([name])[name].result(TIMEOUT_S)
        change = (ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:alice", "*")
        rule = AclBindingFilter(*change, AclOperation.READ, AclPermissionType.ALLOW)
        for done in admin.delete_acls([rule]).values():
            done.result(TIMEOUT_S)
        wait_until(lambda: read_code(one, name, 0) != 0)
        create_topic(guarded.broker.direct, name)
        with RawClient(guarded.broker.direct) as writer:
            writer.produce(name, batch_v2(1, value=MARK))
        with connect_plain(guarded.listen, "alice") as other:
            for client in (one, other):
                code, records = read(client, name, 0)
                assert code != 0 and records == b""
