"""Spoiled requests over sockets, through a whole Forebay with a real broker behind it: nothing in it raises, every
connection ends, and good clients read on.

Owns what is sent: golden requests about topics that exist here, spoiled by Hypothesis, some of them in a row on one
connection; and a kept corpus, corpus.json, of what once did harm. Must not know how a request is read. FUZZ_ROUNDS as
in test_golden_frames: more of them are more examples.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from protocol.api import FETCH, PRODUCE
from protocol.header import peek_request
from tests.e2e.raw_frames import Raw
from tests.fuzz.mutations import read_golden, spoil
from tests.fuzz.test_golden_frames import ROUNDS
from tests.kit import fetch_messages, produce_messages
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, end_of, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

pytestmark = pytest.mark.e2e

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())
REQUESTS = [one for one in read_golden() if one.kind == "request"]
READ = [one for one in REQUESTS if one.api_key in (PRODUCE, FETCH)]
RECORDS = 20
SILENT_S, PATIENCE_S = 3.0, 30.0
"""Silence for so long at Forebay and at the broker has no end; where the broker ends, Forebay has more time."""
ERRORS = "forebay_internal_errors_total"


class Stack:
    """A broker with a Forebay; the golden topics exist, and one is in memory."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.topic = create_topic(pair.direct)
        names = sorted(topic for topic in find_topics() if isinstance(topic, str))
        for name in names:
            create_topic(pair.direct, name)
        with RawClient(pair.through) as client:
            self._id = client.topic(names[0]).id
            for topic in (self.topic, *names):
                reader = RawReader(client, topic).settle(polls=2)
                for _ in range(RECORDS):
                    client.produce(topic, batch_v2(1))
                reader.read_to(RECORDS)

    def of_here(self, frame: bytes) -> bytes:
        """With an id that stands for a topic here in the place of each golden one."""
        for topic in find_topics():
            if isinstance(topic, bytes):
                frame = frame.replace(topic, self._id)
        return frame

    def send(self, frames: list[bytes]) -> None:
        """All of them on one connection, until it ends, as it does at the broker."""
        with Raw(self.pair.through, SILENT_S) as client:
            give(client, frames)
            if ends(client):
                return
            with Raw(self.pair.direct, SILENT_S) as direct:
                give(direct, frames)
                if not ends(direct):
                    return
            client.socket.settimeout(PATIENCE_S)
            assert ends(client), [frame.hex() for frame in frames]

    def errors(self) -> float:
        return self.pair.sidecar.metrics().get((ERRORS,), 0)

    def check(self) -> None:
        """What was never harmed is read as from the broker."""
        direct = read_all(self.pair.direct, self.topic)
        assert read_all(self.pair.through, self.topic, end=end_of(direct)) == direct


def give(client: Raw, frames: list[bytes]) -> None:
    """Send that, and say that no more will come; it may have been closed meanwhile."""
    with contextlib.suppress(OSError):
        client.send(*frames)
        client.socket.shutdown(socket.SHUT_WR)


def ends(client: Raw) -> bool:
    """Whether the connection ends, each part of an answer within the socket's time."""
    try:
        while client.socket.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@cache
def find_topics() -> frozenset[str | bytes]:
    """Topics of the golden Produces and Fetches, as they name them."""
    found: set[str | bytes] = set()
    for one in READ:
        at = peek_request(one.frame).body_start
        scan = (
            fetch_messages.scan_request if one.api_key == FETCH else produce_messages.scan_request
        )
        found |= {asked.topic for asked in scan(one.frame, one.version, at).partitions}
    return frozenset(topic for topic in found if topic)


@pytest.fixture(scope="module")
def stack(proxied: ProxiedBroker) -> Iterator[Stack]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield Stack(running)


def finish(frame: bytes) -> bytes:
    """With the length that it has, so that it is read."""
    return struct.pack(">i", len(frame) - 4) + frame[4:]


@pytest.mark.parametrize("kept", CORPUS, ids=[one["why"] for one in CORPUS])
def test_what_once_did_harm(stack: Stack, kept: dict[str, object]) -> None:
    before = stack.errors()
    frames = [bytes.fromhex(frame) for frame in kept["frames"]]  # type: ignore[attr-defined]
    stack.send([stack.of_here(frame) for frame in frames])
    assert stack.errors() == before
    stack.check()


@settings(
    max_examples=5 * ROUNDS,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_nothing_raises(stack: Stack, data: st.DataObject) -> None:
    rng: Random = data.draw(st.randoms(use_true_random=False))
    frames = []
    for _ in range(data.draw(st.integers(1, 4))):
        golden = data.draw(st.sampled_from(READ if data.draw(st.integers(0, 3)) else REQUESTS))
        frame = stack.of_here(golden.frame)
        frames.append(finish(spoil(frame, rng) if data.draw(st.integers(0, 3)) else frame))
    before = stack.errors()
    stack.send(frames)
    assert stack.errors() == before, [frame.hex() for frame in frames]


def test_good_clients_read_on(stack: Stack) -> None:
    """After all of that: it stands last."""
    stack.check()
