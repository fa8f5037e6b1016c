"""A passthrough Fetch gives the same bytes, counts and lines whether C or Python reads it."""

import asyncio
import socket
import struct

import pytest
import uvloop

from protocol import fetch, fetch_ordinary
from protocol.fetch_build import FetchAnswer, build_request, build_response
from protocol.header import peek_request
from proxy.fetch.response import PAUSE_MS
from tests.protocol.test_produce_rows import build as build_produce
from tests.proxy.event_loop import until
from tests.proxy.produce_link import build_answer
from tests.proxy.uncached_forebay import OFF, front

TOPIC_ID = bytes(range(16))
LARGE_BYTES = 900_000
SESSION = 5, 6
VERSIONS = [4, 6, 9, 11, 12, 13, 16]
RUNNERS = [asyncio.run, uvloop.run]
both_loops = pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])


def topic_of(version):
    return TOPIC_ID if version >= fetch.TOPIC_IDS_FROM else "orders"


def request(version=13, correlation_id=1, asked=1, session=(0, -1), client_id="c", rack_id=""):
    """A consumer's, of the first partitions of a topic."""
    partitions = [
        fetch.FetchPartition(topic_of(version), number, -1, 40 + number, -1, -1, 1 << 20)
        for number in range(asked)
    ]
    return build_request(
        version,
        correlation_id,
        client_id,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        isolation_level=1,
        session_id=session[0],
        session_epoch=session[1],
        partitions=partitions,
        rack_id=rack_id,
    )


def answer(version=13, correlation_id=1, sizes=(100,), first=0, error_code=0):
    """The broker's, with so many bytes of records for each partition from the first on."""
    said = [
        FetchAnswer(
            topic_of(version), number, error_code, 90, 80, 0, None, (bytes([number]) * size,), size
        )
        for number, size in enumerate(sizes, first)
    ]
    return b"".join(
        build_response(
            version, correlation_id, throttle_time_ms=0, error_code=0, session_id=0, partitions=said
        )
    )


def replica(frame):
    """The same, asked by a follower: below version 15 its id is where the body begins."""
    at = peek_request(frame).body_start
    return frame[:at] + (1).to_bytes(4, "big") + frame[at + 4 :]


def script():
    """Requests and their answers, one after the other."""
    for version in VERSIONS:
        for size in (0, 100, 70_000, LARGE_BYTES):
            yield request(version), answer(version, sizes=(size,))
        yield request(version, asked=3), answer(version, sizes=(5, 60, LARGE_BYTES))
        yield request(version, asked=2), answer(version, sizes=(LARGE_BYTES, 80_000))
        yield request(version, asked=0, session=SESSION), answer(version, sizes=(80, LARGE_BYTES))
        yield request(version, asked=0, session=SESSION), answer(version, sizes=(LARGE_BYTES,))
        yield request(version, client_id=None, rack_id="r"), answer(version, first=3)
        yield request(version), answer(version, first=3, sizes=(LARGE_BYTES,))
        yield request(version), answer(version, error_code=3, sizes=())
        yield request(version), answer(version)[:-1] + b"\1"
        yield request(version, rack_id="naïve"), answer(version)
        if version < fetch.REPLICA_STATE_FROM:
            yield replica(request(version)), answer(version, sizes=(LARGE_BYTES,))
    yield request()[:-6] + b"\x7f" * 6, answer()


async def play(settings, has_log):
    async with front(settings, has_log) as played:
        got = [await played.ask(*exchange) for exchange in script()]
        assert got == [answered for _, answered in script()]
        assert played.broker.seen == [asked for asked, _ in script()]
        assert played.forebay.broker.responses.in_flight_bytes == 0
        assert played.forebay.broker.requests.in_flight_bytes == 0
        logged = played.lines and (played.lines.fetches, played.lines.count_empty())
        return played.counters, logged, played.link.client_id


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("has_log", [False, True])
def test_c_and_python_pass_fetches_alike(monkeypatch, has_log, isolated):
    settings = {**OFF, "isolation": {"enabled": isolated}}
    by_c = uvloop.run(play(settings, has_log))
    monkeypatch.setattr(fetch_ordinary, "scan_answer", lambda *_of: None)
    assert uvloop.run(play(settings, has_log)) == by_c


@both_loops
@pytest.mark.parametrize("has_log", [False, True])
def test_partitions_are_counted_when_the_response_left(run, has_log):
    async def scenario():
        async with front(has_log=has_log) as played:
            sizes = [(100,), (LARGE_BYTES,), (7, 8, LARGE_BYTES)]
            for number, records in enumerate(sizes):
                whole = answer(correlation_id=number, sizes=records)
                await played.send(request(correlation_id=number, asked=len(records)))
                played.broker.answer(whole[:-1])
                assert played.counters["traffic.responses_out"][1].frames == number
                played.broker.answer(whole[-1:])
                assert await played.take(len(whole)) == whole
            counters = played.counters
            assert counters["fetch.partitions"] == {("pass", "disabled"): 5}
            assert counters["fetch.record_bytes"] == {
                ("pass", "disabled"): 100 + 2 * LARGE_BYTES + 15
            }
            assert (counters["fetch.upstream_s"], counters["fetch.undelivered_partitions"]) == (
                3,
                0,
            )
            sent = sum(len(answer(sizes=records)) for records in sizes)
            for traffic in (
                counters["traffic.responses_in"][1],
                counters["traffic.responses_out"][1],
            ):
                assert (traffic.frames, traffic.size_bytes) == (3, sent)
            if has_log:
                lines = [(line.partition, line.offset, line.bytes) for line in played.lines.fetches]
                assert lines == [
                    *((0, 40, 100), (0, 40, LARGE_BYTES)),
                    *((0, 40, 7), (1, 41, 8), (2, 42, LARGE_BYTES)),
                ]
                assert {(line.result, line.reason) for line in played.lines.fetches} == {
                    ("pass", "disabled")
                }

    run(scenario())


@both_loops
def test_pipelined_responses_keep_their_order(run):
    async def scenario():
        async with front() as played:
            await played.send(*(request(correlation_id=number) for number in range(4)))
            sizes = LARGE_BYTES, 10, LARGE_BYTES, LARGE_BYTES
            stream = b"".join(
                answer(correlation_id=n, sizes=(size,)) for n, size in enumerate(sizes)
            )
            played.broker.answer(stream)
            assert await played.take(len(stream)) == stream
            assert [line.bytes for line in played.lines.fetches] == list(sizes)

    run(scenario())


@both_loops
def test_lost_broker_within_a_response_logs_nothing(run):
    async def scenario():
        async with front() as played:
            whole = answer(sizes=(LARGE_BYTES,))
            await played.send(request(), request(asked=0, session=SESSION))
            played.broker.answer(whole[:500_000])
            assert await played.take(400_000) == whole[:400_000]
            played.broker.close()
            assert whole[400_000:].startswith(await played.take(len(whole)))
            await until(lambda: not played.forebay.listeners[0].links)
            assert (played.counters["fetch.undelivered_partitions"], played.lines.fetches) == (
                1,
                [],
            )
            assert played.forebay.broker.responses.in_flight_bytes == 0
            assert played.forebay.broker.requests.in_flight_bytes == 0

    run(scenario())


@both_loops
def test_lost_client_within_a_response_is_uncounted(run):
    async def scenario():
        async with front() as played:
            whole = answer(sizes=(LARGE_BYTES,))
            await played.send(request())
            played.broker.answer(whole[:500_000])
            await played.take(1000)
            played.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            played.client.close()
            played.broker.answer(whole[500_000:-1])
            await until(lambda: not played.forebay.listeners[0].links)
            assert (played.counters["fetch.undelivered_partitions"], played.lines.fetches) == (
                1,
                [],
            )
            assert played.forebay.broker.responses.in_flight_bytes == 0

    run(scenario())


def test_stalled_client_is_charged_and_not_read():
    async def scenario():
        async with front() as played:
            played.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            whole = answer(sizes=(24 << 20,))
            await played.send(request())
            played.broker.answer(whole)
            await until(lambda: played.link.upstream.framed.reading_held)
            assert 0 < played.forebay.broker.responses.in_flight_bytes < 3 << 20
            assert played.counters["traffic.responses_out"][1].frames == 0
            assert await played.take(len(whole)) == whole
            await until(lambda: played.lines.fetches)
            assert played.forebay.broker.responses.in_flight_bytes == 0

    uvloop.run(scenario())


def test_full_queue_answers_empty_without_session():
    slots = {"floor": 1, "initial": 1, "ceiling": 1}
    isolation = {"dataQueues": 1, "dataSlots": slots, "maxQueueWait": "0ms"}

    async def scenario():
        async with front({**OFF, "isolation": isolation}) as played:
            await played.send(build_produce(9))
            await asyncio.get_running_loop().sock_sendall(
                played.client, request(correlation_id=8, session=SESSION)
            )
            await until(lambda: played.counters["fetch.refused"])
            produced = build_answer(0)
            played.broker.answer(produced)
            assert await played.take(len(produced)) == produced
            size = int.from_bytes(prefix := await played.take(4), "big")
            said = fetch.scan_response(frame := prefix + await played.take(size), 13)
            assert frame[4:8] == (8).to_bytes(4, "big")
            assert (said.throttle_time_ms, said.error_code, said.session_id) == (PAUSE_MS, 0, 0)
            assert said.partitions == []
            (refused,) = played.lines.count_empty()
            assert (refused.result, refused.reason) == ("miss", "refused")
            assert played.lines.fetches == []
            assert played.counters["faults.internal_errors"] == 0
            whole = answer(sizes=(LARGE_BYTES,))
            assert await played.ask(request(), whole) == whole, "the next goes"

    uvloop.run(scenario())
