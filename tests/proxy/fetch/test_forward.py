"""A Fetch that the broker answers: what its session makes of the answer."""

import pytest

from protocol import fetch
from protocol.errors import ErrorCode
from protocol.fetch import scan_request
from protocol.header import peek_request
from tests.proxy.answering import Scene, said_of
from tests.proxy.followed import TOPIC_ID
from tests.proxy.hitting import END, build_fetch

UNKNOWN_SERVER_ERROR = -1
BELOW = -5
"""An offset that only the broker answers."""


async def begin(scene):
    """A session of the one partition: its id."""
    scene.receive(build_fetch(0, session=(0, 0)))
    said, _ = scene.hear()
    assert said.session_id
    return said.session_id


async def test_a_throttled_answer_names_the_session_it_is_of():
    """IncrementalFetchContext.getThrottledResponse; without the id a client begins a full session."""
    scene = Scene()
    session_id = await begin(scene)
    scene.receive(build_fetch(BELOW, correlation_id=2, session=(session_id, 1)))
    await scene.turn()
    (frame,) = scene.asked
    asked = scan_request(frame, 13, peek_request(frame).body_start)
    assert (asked.session_id, asked.session_epoch) == (0, -1)
    scene.answer_fetch(throttle_time_ms=70)
    said, _ = scene.hear()
    assert said == (70, ErrorCode.NONE, session_id, [])
    scene.receive(build_fetch(END - 1, correlation_id=3, session=(session_id, 2)))
    said, _ = scene.hear()
    assert (said.error_code, said.session_id, len(said.partitions)) == (0, session_id, 1)


async def test_a_throttled_answer_grants_no_session():
    """FetchContext.getThrottledResponse."""
    scene = Scene()
    scene.receive(build_fetch(BELOW, session=(0, 0)))
    await scene.turn()
    scene.answer_fetch(throttle_time_ms=70)
    said, _ = scene.hear()
    assert said == (70, ErrorCode.NONE, 0, [])
    assert scene.broker.sessions.statistics().sessions == 0


async def test_a_throttled_answer_to_a_duplicate_is_the_sessions_error():
    scene = Scene()
    session_id = await begin(scene)
    scene.receive(build_fetch(BELOW, correlation_id=2, session=(session_id, 1)))
    await scene.turn()
    (session,) = scene.broker.sessions._sessions.values()
    session.epoch += 1  # another connection's request has come between
    scene.answer_fetch(throttle_time_ms=70)
    said, _ = scene.hear()
    assert said == (70, ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id, [])


@pytest.mark.parametrize("error", [0, 1])
async def test_an_answer_with_partitions_is_of_the_session(error):
    scene = Scene()
    session_id = await begin(scene)
    scene.receive(build_fetch(BELOW, correlation_id=2, session=(session_id, 1)))
    await scene.turn()
    scene.answer_fetch(said_of(TOPIC_ID, error=error))
    said, _ = scene.hear()
    assert (said.session_id, [one.error_code for one in said.partitions]) == (session_id, [error])


async def test_an_answer_that_refuses_the_whole_request_names_its_session():
    """FetchRequest.getErrorResponse."""
    scene = Scene()
    session_id = await begin(scene)
    scene.receive(build_fetch(0, correlation_id=2, session=(session_id, 1), isolation_level=2))
    await scene.turn()
    scene.answer_fetch(error_code=UNKNOWN_SERVER_ERROR)
    said, _ = scene.hear()
    assert said == (0, UNKNOWN_SERVER_ERROR, session_id, [])


async def test_a_large_answer_that_there_is_no_room_for_leaves_as_it_comes_and_has_no_session():
    scene = Scene()
    session_id = await begin(scene)
    scene.receive(build_fetch(BELOW, correlation_id=2, session=(session_id, 1)))
    await scene.turn()
    responses, counters = scene.broker.responses, scene.broker.counters
    responses.in_flight_bytes += responses.limit_bytes
    records, told_bytes = bytes(300_000), sum(counters.fetch_bytes.values())
    frame = scene.build_fetch_answer(said_of(TOPIC_ID, records=records))
    before, left = len(scene.transport.pieces), frame
    for size_bytes in (100_000, 10, 150_000, len(frame)):
        scene.deliver(left[:size_bytes])
        left = left[size_bytes:]
        assert responses.in_flight_bytes <= responses.limit_bytes + (1 << 16)
    assert b"".join(scene.transport.pieces[before:]) == frame
    assert fetch.scan_response(frame, 13).session_id == 0
    assert responses.in_flight_bytes == responses.limit_bytes
    assert not responses.waiting
    assert sum(counters.fetch_bytes.values()) == told_bytes + len(records)
    assert counters.responses_out[1].size_bytes == sum(map(len, scene.sent))
