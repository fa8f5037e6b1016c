"""`Broker.fall_back`: an error of Forebay's own costs a miss, and no more."""

import itertools
import logging

import pytest

from blockcache.sending import Sender
from protocol import header
from proxy import relay
from proxy.fetch import delayed_fetch, evaluate, handler, response
from proxy.fetch.accounts import Accounts
from proxy.fetch.authorization import Authorization
from proxy.fetch.misses import reads
from proxy.fetch.misses.coalescing import SharedReads
from proxy.fetch.sessions.cache import SessionCache
from proxy.partitions.table import Partitions
from proxy.scheduling.quotas import QuotaTable
from proxy.scheduling.request_scheduler import RequestScheduler
from tests.kit.cache_batches import read
from tests.protocol.test_produce_rows import build
from tests.proxy.answering_broker import Scene, said_of
from tests.proxy.cached_partition import END, build_fetch
from tests.proxy.event_loop import until
from tests.proxy.fetch.test_completion import HEARTBEAT, RECORDS, Mixed
from tests.proxy.followed_partition import TOPIC_ID, known
from tests.proxy.produce_link import build_answer


class OfOurs(Exception):
    """An error of ours."""


def spoil(monkeypatch, owner, name, first=1, last=1):
    """From the `first` call to the `last` it fails."""
    real, calls = getattr(owner, name), itertools.count(1)

    def spoiled(*args, **options):
        if first <= next(calls) <= last:
            raise OfOurs(name)
        return real(*args, **options)

    monkeypatch.setattr(owner, name, spoiled)


def ids(scene):
    """The correlation ids of what the client was answered, in order."""
    return [header.peek_correlation_id(frame) for frame in scene.sent]


async def goes_whole(scene, frame):
    """The broker has got the frame as it came; its answer is the client's, once, and the connection goes on."""
    await scene.turn()
    assert scene.asked == [frame]
    assert scene.broker.counters.faults.internal_errors == 1
    before = len(scene.sent)
    scene.answer_fetch(said_of(TOPIC_ID, records=RECORDS))
    said, answer = scene.hear()
    assert len(scene.sent) == before + 1
    assert answer[said.partitions[0].start : said.partitions[0].end] == RECORDS
    goes_on(scene)


def goes_on(scene):
    """Nothing is left of what was, and the next Fetch is answered from memory."""
    link, broker = scene.link, scene.broker
    assert scene.transport.calls == []
    assert (len(link.replies), link.request_bytes, broker.requests.in_flight_bytes) == (0, 0, 0)
    assert (broker.purgatory.parked, len(known(scene.partition).parked)) == (0, 0)
    scene.receive(build_fetch(0, correlation_id=99))
    assert ids(scene)[-1] == 99


AT_ONCE = {
    "rights": (Authorization, "allows"),
    "session": (SessionCache, "find"),
    "quota": (QuotaTable, "peek_delay_s"),
    "judge": (evaluate, "find_limits"),
    "cache": (Sender, "find_all"),
    "answer": (handler, "build_answer"),
    "heads": (response, "build_heads"),
}


@pytest.mark.parametrize("stage", AT_ONCE)
async def test_a_fetch_that_memory_could_answer(monkeypatch, stage):
    scene = Scene()
    scene.broker.scheduler.quotas.active = stage == "quota"
    spoil(monkeypatch, *AT_ONCE[stage])
    frame = build_fetch(0, session=(0, 0)) if stage == "session" else build_fetch(0)
    scene.receive(frame)
    await goes_whole(scene, frame)


async def test_failed_response_leaves_no_records_behind(monkeypatch):
    scene = Scene(room_bytes=1 << 20)
    spoil(monkeypatch, response, "build_heads")
    scene.receive(build_fetch(0, max_bytes=1))
    assert scene.cache.statistics().pins > 0
    scene.receive(build_fetch(20, correlation_id=2, max_bytes=1))
    await scene.turn()
    scene.answer_fetch(said_of(TOPIC_ID))
    assert ids(scene) == [1, 2]
    said, frame = scene.hear()
    (one,) = said.partitions
    stored = known(read(scene.cache, known(scene.partition).slot, 20))
    assert frame[one.start : one.end] == stored[:25_000]
    assert scene.cache.statistics().pins == 0


async def test_a_fetch_that_has_left_is_answered(monkeypatch):
    scene = Scene(room_bytes=1 << 20)
    scene.receive(build_fetch(0, max_bytes=1000))
    spoil(monkeypatch, Accounts, "enter")
    scene.receive(build_fetch(0, max_bytes=1000, correlation_id=2))
    assert ids(scene) == [1, 2]
    assert scene.broker.counters.faults.internal_errors == 1
    goes_on(scene)
    await scene.turn()
    assert scene.asked == []


@pytest.mark.parametrize("news", ["records", "time", "heartbeat", "finish"])
async def test_a_fetch_that_waits_at_the_tail(monkeypatch, news):
    scene = Scene()
    known(scene.partition).open_polls = 1
    frame = build_fetch(END, max_wait_ms=30 if news == "time" else 500)
    scene.receive(frame)
    assert len(known(scene.partition).parked) == 1
    spoil(monkeypatch, evaluate, "find_limits")
    if news == "records":
        scene.arrive(100)
    elif news == "time":
        scene.clock_s += 1
        await until(lambda: scene.broker.counters.faults.internal_errors)
    elif news == "heartbeat":
        scene.receive(HEARTBEAT)
    else:
        scene.link.framed.eof_received()
    await scene.turn()
    assert sorted(scene.asked) == sorted([frame] + [HEARTBEAT] * (news == "heartbeat"))
    if news == "heartbeat":
        if scene.asked[0] == HEARTBEAT:
            scene.answer(b"\0\0\0\x06" + HEARTBEAT[8:12] + b"\0\0")
            scene.answer_fetch(said_of(TOPIC_ID))
        else:
            scene.answer_fetch(said_of(TOPIC_ID))
            scene.answer(b"\0\0\0\x06" + HEARTBEAT[8:12] + b"\0\0")
        assert ids(scene) == [1, 42], "in the order of the requests"
    else:
        scene.answer_fetch(said_of(TOPIC_ID))
        assert ids(scene) == [1]
    if news != "finish":
        goes_on(scene)


async def test_a_fetch_whose_right_was_asked_for_first(monkeypatch):
    scene = Scene()
    scene.link.handlers.authorization.rights.until.clear()
    frame = build_fetch(0)
    scene.receive(frame)
    await scene.turn()
    assert (len(scene.asked), scene.sent) == (1, [])
    spoil(monkeypatch, evaluate, "find_limits")
    scene.answer_fetch(said_of(TOPIC_ID))
    await goes_whole(scene, frame)


BESIDE = {
    "sending": (SharedReads, "begin"),
    "beginning": (reads, "Read"),
    "asking": (reads, "build_request"),
    "scanning": (reads, "is_plain"),
    "looking": (evaluate, "find_limits", 2),
    "telling": (delayed_fetch, "build_answer"),
}


@pytest.mark.parametrize("stage", BESIDE)
async def test_a_fetch_part_of_which_is_read_beside(monkeypatch, stage):
    scene = Mixed()
    owner, name, *first = BESIDE[stage]
    spoil(monkeypatch, owner, name, *(first * 2))
    await scene.fetch()
    if stage in ("scanning", "looking", "telling"):
        scene.read()
        await scene.turn()
    (asked,) = scene.asked
    assert header.peek_request(asked).correlation_id == 7
    assert scene.broker.counters.faults.internal_errors == 1
    scene.answer_fetch(said_of(TOPIC_ID, 0), said_of(TOPIC_ID, 1))
    assert ids(scene) == [7]
    goes_on(scene)
    await scene.fetch()
    if stage not in ("looking", "telling"):  # else it has been read
        scene.read()
    assert scene.sizes()[1] == len(RECORDS), "the next is read for as ever"


async def test_a_shared_read_that_cannot_be_taken(monkeypatch):
    scene = Mixed()
    await scene.fetch()
    await scene.fetch(scene.other)
    spoil(monkeypatch, reads, "is_plain", 2, 2)
    scene.read()
    await scene.turn()
    assert scene.sizes()[1] == len(RECORDS)
    assert scene.broker.counters.faults.internal_errors == 1
    assert len(scene.other.upstream.expected) == 1, "it has asked for all of it by itself"


async def test_a_fetch_on_its_way_to_the_broker(monkeypatch):
    scene = Scene()
    spoil(monkeypatch, SharedReads, "begin_forwarded")
    frame = build_fetch(-5)
    scene.receive(frame)
    await goes_whole(scene, frame)


async def test_the_places_of_others_stay_theirs(monkeypatch):
    """One that waits, one that fails, one that memory answers: in this order."""
    scene = Scene()
    known(scene.partition).open_polls = 1
    scene.receive(build_fetch(END, correlation_id=1))
    spoil(monkeypatch, evaluate, "find_limits")
    scene.receive(build_fetch(0, correlation_id=2))
    scene.receive(build_fetch(0, correlation_id=3))
    await scene.turn()
    scene.answer_fetch(said_of(TOPIC_ID))
    assert ids(scene) == []
    scene.arrive(100)
    assert ids(scene) == [1, 2, 3]
    goes_on(scene)


async def test_a_control_request(monkeypatch):
    scene = Scene()
    spoil(monkeypatch, relay, "pass_on")
    scene.receive(HEARTBEAT)
    await scene.turn()
    assert (scene.asked, scene.broker.counters.faults.internal_errors) == ([HEARTBEAT], 1)
    scene.answer(b"\0\0\0\x06" + HEARTBEAT[8:12] + b"\0\0")
    assert ids(scene) == [42]
    goes_on(scene)


PRODUCING = {
    "partition": (Partitions, "follow"),
    "queue": (RequestScheduler, "try_dispatch"),
    "note": (RequestScheduler, "dispatched"),
}


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("stage", PRODUCING)
async def test_a_produce_goes_once_and_is_answered_once(monkeypatch, stage, acks):
    scene = Scene()
    spoil(monkeypatch, *PRODUCING[stage])
    frame = build(9, acks=acks, index=0)
    scene.receive(frame)
    await scene.turn()
    is_spoiled = scene.broker.counters.faults.internal_errors
    assert (scene.asked, is_spoiled) == ([frame], is_spoiled)
    if acks:
        assert is_spoiled == (stage != "note"), "the ordinary way notes it otherwise"
        scene.answer(build_answer(END))
        assert scene.sent == [build_answer(END)]
    assert scene.link.answered_ordinal == scene.link.last_ordinal
    scene.asked.clear()
    goes_on(scene)


async def test_connection_ends_without_a_broker(monkeypatch):
    scene = Scene()
    spoil(monkeypatch, evaluate, "find_limits")
    spoil(monkeypatch, RequestScheduler, "submit")
    scene.receive(build_fetch(0))
    assert scene.transport.calls == ["abort"]
    assert scene.broker.counters.faults.internal_errors == 2
    assert scene.broker.requests.in_flight_bytes == 0


async def test_errors_are_logged_once_per_place(monkeypatch, caplog):
    """So that the log counts those of a second instead of writing them (log_queue.py)."""
    scene = Scene()
    spoil(monkeypatch, evaluate, "find_limits", 1, 5)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            scene.receive(build_fetch(0))
    assert scene.broker.counters.faults.internal_errors == 4
    assert [record.msg for record in caplog.records] == ["handling a request failed"] * 4
    assert caplog.records[-1].exc_info[0] is OfOurs
