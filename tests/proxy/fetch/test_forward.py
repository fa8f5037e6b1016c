"""A Fetch that the broker answers: the response in its fetch session."""

import pytest

from protocol import fetch
from protocol.errors import ErrorCode
from protocol.fetch_build import stamp_response_session
from protocol.header import peek_request
from proxy.fetch.forward import WHOLE_BYTES
from tests.kit.fetch_messages import scan_request
from tests.proxy.answering_broker import Scene, said_of
from tests.proxy.cached_partition import END, build_fetch
from tests.proxy.followed_partition import TOPIC_ID

UNKNOWN_SERVER_ERROR = -1
BELOW = -5
"""An offset that only the broker answers."""


async def begin(scene):
    """A session of the one partition: its id."""
    scene.receive(build_fetch(0, session=(0, 0)))
    said, _ = scene.hear()
    assert said.session_id
    return said.session_id


async def test_throttled_response_names_its_session():
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


async def test_throttled_duplicate_gets_the_sessions_error():
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


async def test_refusing_response_names_its_session():
    """FetchRequest.getErrorResponse."""
    scene = Scene()
    session_id = await begin(scene)
    scene.receive(build_fetch(0, correlation_id=2, session=(session_id, 1), isolation_level=2))
    await scene.turn()
    scene.answer_fetch(error_code=UNKNOWN_SERVER_ERROR)
    said, _ = scene.hear()
    assert said == (0, UNKNOWN_SERVER_ERROR, session_id, [])


@pytest.mark.parametrize(("named", "forgotten"), [(0, ()), (1, ()), (1, [("orders", 1)])])
async def test_refusal_repeats_the_named_partitions_by_name(named, forgotten):
    """The broker refuses if it could read any partition of the session; below version 13 with names, also of partitions
    that the request forgets at once (FetchRequest.fetchData).
    """
    scene = Scene()
    scene.receive(build_fetch(0, version=12, session=(0, 0)))
    session_id = fetch.scan_response(scene.sent[-1], 12).session_id
    request = build_fetch(
        0,
        version=12,
        correlation_id=2,
        session=(session_id, 1),
        isolation_level=2,
        index=1,
        partitions=named,
        forgotten=forgotten,
    )
    scene.receive(request)
    await scene.turn()
    asked = scan_request(scene.asked[0], 12, peek_request(scene.asked[0]).body_start)
    remembered = 1 if forgotten else 1 + named
    assert [one.partition for one in asked.partitions] == list(range(remembered))
    said = [said_of("orders", index, error=UNKNOWN_SERVER_ERROR) for index in range(remembered)]
    scene.answer_fetch(*said, error_code=UNKNOWN_SERVER_ERROR)
    refused = fetch.scan_response(scene.sent[-1], 12)
    assert (refused.error_code, refused.session_id) == (UNKNOWN_SERVER_ERROR, session_id)
    found = [(one.partition, one.error_code, one.high_watermark) for one in refused.partitions]
    assert found == [(1, UNKNOWN_SERVER_ERROR, -1)] * named
    assert [one.aborted for one in refused.partitions] == [[]] * named


async def ask_for_much(scene, size_bytes):
    """A Fetch in a session, which the broker answers with so many bytes of records: the frame, and the session's id."""
    session_id = await begin(scene)
    scene.receive(build_fetch(BELOW, correlation_id=2, session=(session_id, 1)))
    await scene.turn()
    return scene.build_fetch_answer(said_of(TOPIC_ID, records=bytes(size_bytes))), session_id


def deliver_in_pieces(scene, frame, most_bytes):
    """The most that was charged for it meanwhile, in bytes; no more than `most_bytes` arrive at once."""
    charged_bytes, responses = 0, scene.broker.responses
    for at in range(0, len(frame), most_bytes):
        scene.deliver(frame[at : at + most_bytes])
        charged_bytes = max(charged_bytes, responses.in_flight_bytes)
    return charged_bytes


@pytest.mark.parametrize("has_room", [True, False])
async def test_large_response_is_passed_on_within_its_session(has_room):
    size_bytes = WHOLE_BYTES + 1 if has_room else 300_000
    scene = Scene()
    frame, session_id = await ask_for_much(scene, size_bytes)
    responses, counters = scene.broker.responses, scene.broker.counters
    held_bytes = 0 if has_room else responses.limit_bytes
    responses.in_flight_bytes += held_bytes
    told_bytes, before = sum(counters.fetch.record_bytes.values()), len(scene.transport.pieces)
    assert deliver_in_pieces(scene, frame, 100_000) <= held_bytes + (1 << 16)
    answer = bytearray(frame)
    stamp_response_session(answer, 13, session_id)
    assert b"".join(scene.transport.pieces[before:]) == answer
    assert responses.in_flight_bytes == held_bytes
    assert not responses.waiting
    assert sum(counters.fetch.record_bytes.values()) == told_bytes + size_bytes
    assert counters.traffic.responses_out[1].size_bytes == sum(map(len, scene.sent))
    responses.in_flight_bytes -= held_bytes
    scene.receive(build_fetch(END - 1, correlation_id=3, session=(session_id, 2)))
    said, _ = scene.hear()
    assert (said.error_code, said.session_id) == (0, session_id)


async def test_outdated_large_response_carries_no_session():
    scene = Scene()
    frame, _ = await ask_for_much(scene, WHOLE_BYTES + 1)
    (session,) = scene.broker.sessions._sessions.values()
    session.epoch += 1  # another connection's request has come between
    before = len(scene.transport.pieces)
    deliver_in_pieces(scene, frame, 100_000)
    assert b"".join(scene.transport.pieces[before:]) == frame
    assert fetch.scan_response(frame, 13).session_id == 0


async def test_response_within_the_budget_is_received_whole():
    scene = Scene()
    frame, session_id = await ask_for_much(scene, WHOLE_BYTES - 1000)
    before = len(scene.transport.pieces)
    assert deliver_in_pieces(scene, frame, 100_000) >= len(frame)
    answer = b"".join(scene.transport.pieces[before:])
    assert fetch.scan_response(answer, 13).session_id == session_id
