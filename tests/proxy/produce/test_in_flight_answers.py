"""Acknowledgements on a real client connection between played transports: out of turn, sent in part, or the last."""

from typing import Any

import pytest

from protocol.api import PRODUCE
from tests.kit.played import ISOLATED, ON, Played, PlayedTransport, build_acknowledgement, feed
from tests.proxy.followed_partition import stand_in


class Transport(PlayedTransport):
    """Takes no more than it is told to, and remembers whether it was closed."""

    def __init__(self, peer):
        super().__init__(peer)
        self.framed: Any = None
        self.is_stuck = self.closed = False

    def write(self, data):
        super().write(data)
        if self.is_stuck:
            self.framed.pause_writing()

    def close(self):
        self.closed = True

    abort = close


@pytest.fixture(params=[ISOLATED, ON], ids=["isolation", "admission"])
async def played(request, tmp_path):
    """Connected, with one Produce on its way."""
    played = Played(request.param, tmp_path)
    await played.connect()
    for framed, sink in (
        (played.link.framed, played.answered),
        (played.link.upstream.framed, played.sent),
    ):
        transport = Transport(sink.append)
        transport.framed = framed
        framed.connection_made(stand_in(transport))
    feed(played.link.framed, played.frame)
    assert played.sent == [played.frame]
    return played


def client_of(played):
    """The transport toward the client."""
    return played.link.framed._transport


def acknowledge(played, offset=1):
    answer = build_acknowledgement(offset)
    feed(played.link.upstream.framed, answer)
    return answer


def counts(played):
    """Answers out, bytes of requests and of answers that are held, requests at the gate."""
    broker = played.forebay.broker
    return (
        broker.counters.traffic.responses_out[PRODUCE].frames,
        broker.requests.in_flight_bytes,
        broker.responses.in_flight_bytes,
        sum(state["in_use"] for state in broker.scheduler.statistics()[0].values()),
    )


async def test_acknowledgement_leaves_at_once(played):
    size_bytes = len(played.frame)
    assert counts(played) == (1, size_bytes, 0, 1)
    answer = acknowledge(played)
    assert played.answered == [answer]
    assert counts(played) == (2, 0, 0, 0)


async def test_behind_another_it_waits_for_its_turn(played):
    first = played.link.replies.reserve()
    feed(played.link.framed, played.frame)
    acknowledge(played)
    answer = acknowledge(played, 2)
    assert played.answered == [build_acknowledgement(1)], "the second is behind what was reserved"
    assert counts(played) == (2, 0, len(answer), 0)
    first.complete((b"first",))
    assert played.answered[1:] == [b"first", answer]
    assert counts(played) == (3, 0, 0, 0)


async def test_unsent_bytes_are_held_until_they_leave(played):
    client_of(played).is_stuck = True
    answer = acknowledge(played)
    assert counts(played) == (1, 0, len(answer), 0)
    feed(played.link.framed, played.frame)
    behind = acknowledge(played, 2)
    assert counts(played)[2] == len(answer) + len(behind)
    client_of(played).is_stuck = False
    played.link.framed.resume_writing()
    assert played.answered == [answer, behind]
    assert counts(played) == (3, 0, 0, 0)


async def test_finished_client_gets_the_last_response(played):
    assert played.link.framed.eof_received(), "an answer is owed"
    assert not client_of(played).closed
    acknowledge(played)
    assert len(played.answered) == 1
    assert client_of(played).closed


@pytest.mark.parametrize("ends", ["client", "broker"])
async def test_ended_connection_leaves_nothing(played, ends):
    feed(played.link.framed, played.frame)
    framed = played.link.framed if ends == "client" else played.link.upstream.framed
    framed.connection_lost(None)
    assert counts(played)[1:] == (0, 0, 0)
    assert played.link.upstream.closed
    assert len(played.link.replies) == 0
