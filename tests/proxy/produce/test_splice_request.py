"""A large Produce forwarded while it arrives gives the same bytes, responses and counts as a whole one."""

import asyncio
import random

import pytest
import uvloop

from proxy.net.splice import SpliceTransfer
from proxy.produce import splice_request
from tests.protocol.batches import batch_v2
from tests.protocol.test_produce_rows import build
from tests.proxy.event_loop import until
from tests.proxy.followed_partition import LEADERS
from tests.proxy.produce_link import build_answer
from tests.proxy.uncached_forebay import OFF, front

PASSING = {**OFF, "isolation": {"enabled": False}}
LARGE_BYTES = 900_000
RUNNERS = [asyncio.run, uvloop.run]
both_loops = pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])


def produce(size_bytes=LARGE_BYTES, version=9, acks=-1, **values):
    """One whole Produce of about that size."""
    value = random.Random(size_bytes).randbytes(size_bytes)
    return build(version, acks=acks, records=batch_v2(1, value=value), **values)


@pytest.fixture
def passages(monkeypatch):
    """Sizes of the requests that have passed."""
    passed = []

    def passing(*values):
        passed.append(values[4])
        return original(*values)

    original = SpliceTransfer
    monkeypatch.setattr(splice_request, "SpliceTransfer", passing)
    monkeypatch.setattr(passing, "end", original.end, raising=False)
    return passed


async def greet(played):
    """The link to the broker is open from here on."""
    assert await played.ask(build(9), build_answer(0)) == build_answer(0)


def script():
    """Requests, and whether they are answered."""
    for version in (3, 8, 9, 12, 13):
        yield produce(version=version), True
        yield produce(100, version=version), True
        yield produce(70_000, version=version, topic="t", index=3), True
        yield produce(version=version, acks=0), False
        yield produce(version=version, acks=1, transactional_id="t"), True
    yield produce(partitions=2), True


async def play():
    async with front(PASSING) as played:
        played.forebay.broker.topic_lookup.ask = lambda *_of: None  # of what acks=0 says nothing of
        await greet(played)
        for request, is_answered in script():
            await played.send(request)
            assert played.broker.seen[-1] == request
            if is_answered:
                played.broker.answer(build_answer(7))
                assert await played.take(len(build_answer(7))) == build_answer(7)
        assert played.forebay.broker.requests.in_flight_bytes == 0
        assert played.link.upstream.unanswered == 0
        return played.counters, played.link.client_id


def test_spliced_request_gives_the_same_bytes_and_counts(monkeypatch, passages):
    passed = uvloop.run(play())
    assert sum(size > LARGE_BYTES for size in passages) == 10
    passages.clear()
    monkeypatch.setattr(splice_request, "scan_single", lambda *_of: None)
    assert uvloop.run(play()) == passed
    assert not passages


@both_loops
def test_earlier_pipelined_request_is_answered_first(run, passages):
    async def scenario():
        async with front(PASSING) as played:
            played.forebay.broker.topics.learn("orders", bytes(16), LEADERS)
            for _ in range(2):
                await played.ask(produce(50), build_answer(0))
            await played.send(produce(100))
            assert len(played.link.pipeline) == 1
            await played.send(produce())
            answers = build_answer(1), build_answer(2)
            played.broker.answer(*answers)
            assert await played.take(sum(map(len, answers))) == b"".join(answers)

    run(scenario())
    assert max(passages) > LARGE_BYTES


@both_loops
def test_pipelined_requests_of_all_sizes_keep_their_order(run, passages):
    async def scenario():
        rng = random.Random(11)
        requests = [produce(rng.choice((100, 70_000, LARGE_BYTES))) for _ in range(20)]
        async with front(PASSING) as played:
            await greet(played)
            stream = b"".join(requests)
            sending = asyncio.ensure_future(
                asyncio.get_running_loop().sock_sendall(played.client, stream)
            )
            await until(lambda: len(played.broker.seen) == 1 + len(requests))
            await sending
            assert b"".join(played.broker.seen[1:]) == stream
            played.broker.answer(*[build_answer(number) for number in range(20)])
            expected = b"".join(build_answer(number) for number in range(20))
            assert await played.take(len(expected)) == expected
        assert passages

    run(scenario())


@both_loops
def test_lost_broker_within_a_request_ends_the_client(run, passages):
    async def scenario():
        async with front(PASSING) as played:
            await greet(played)
            await asyncio.get_running_loop().sock_sendall(played.client, produce()[:500_000])
            await until(lambda: passages)
            played.broker.close()
            assert await played.take(1) == b""
            await until(lambda: not played.forebay.listeners[0].links)
            assert (
                played.counters["upstream.reopened"],
                played.counters["clients.connection_errors"],
            ) == (
                0,
                1,
            )
            assert played.counters["traffic.requests_in"][0].frames == 1
            assert played.forebay.broker.requests.in_flight_bytes == 0

    run(scenario())


@both_loops
def test_lost_client_within_a_request_ends_the_upstream(run, passages):
    async def scenario():
        async with front(PASSING) as played:
            await greet(played)
            await asyncio.get_running_loop().sock_sendall(played.client, produce()[:500_000])
            await until(lambda: passages)
            played.client.close()
            await until(lambda: not played.forebay.listeners[0].links)
            await until(lambda: played.broker.writers[-1].is_closing())
            assert len(played.broker.seen) == 1
            assert played.counters["traffic.requests_in"][0].frames == 1
            assert played.forebay.broker.requests.in_flight_bytes == 0

    run(scenario())


@pytest.mark.parametrize(("limit", "may_pass"), [(2, True), (1, False)])
def test_request_beyond_the_limit_is_received_whole(passages, limit, may_pass):
    settings = {**PASSING, "limits": {"pipelinedRequests": limit + 1}}

    async def scenario():
        async with front(settings) as played:
            await greet(played)
            await played.send(build(9))
            await played.send(produce())
            assert bool(passages) is may_pass

    uvloop.run(scenario())


def test_untaken_bytes_are_charged_and_pause_reads(passages):
    async def scenario():
        async with front(PASSING) as played:
            await greet(played)
            played.broker.writers[-1].transport.pause_reading()
            whole = produce(24 << 20)
            sending = asyncio.ensure_future(
                asyncio.get_running_loop().sock_sendall(played.client, whole)
            )
            await until(lambda: passages and played.link.framed.reading_held)
            assert 0 < played.forebay.broker.requests.in_flight_bytes < 3 << 20
            played.broker.writers[-1].transport.resume_reading()
            await sending
            await until(lambda: len(played.broker.seen) == 2)
            assert played.broker.seen[-1] == whole
            assert played.forebay.broker.requests.in_flight_bytes == 0

    uvloop.run(scenario())


def test_no_other_request_enters_a_spliced_one(passages):
    async def scenario():
        async with front(PASSING) as played:
            await greet(played)
            await asyncio.get_running_loop().sock_sendall(played.client, produce()[:500_000])
            await until(lambda: passages)
            with pytest.raises(AssertionError, match="within another"):
                played.link.upstream.send(b"x", 1, None)

    uvloop.run(scenario())


@pytest.mark.parametrize(
    "settings", [OFF, {"isolation": {"enabled": False}, "throttle": {"enabled": False}}]
)
def test_request_for_queue_or_memory_is_not_spliced(settings):
    async def scenario():
        async with front({"cache": {"size": "16MiB", "directory": ""}, **settings}) as played:
            await until(lambda: played.forebay.listeners[0].links)
            assert played.link.framed._on_large is None

    uvloop.run(scenario())
