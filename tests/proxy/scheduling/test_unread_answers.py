"""Clients that take no answers: their requests keep no slots, and condemn no topic."""

import pytest

from isolation.tickets import Waits
from proxy.scheduling.unread_answers import UNREAD_S
from tests.proxy.played_scheduler import Link, held, make_broker

TICK_S = 0.1
"""How often the janitor calls `tick`."""


@pytest.fixture
def broker(monkeypatch):
    return make_broker(monkeypatch, release_after_s="60s", max_queue_wait_s="3s")


@pytest.fixture
def log():
    """Requests that were sent, with their entries, or refused, with None."""
    return []


def ask(broker, link, log, name, *, way="upstream", **how):
    """Submit a request that is sent in its turn, on the client's first connection or its other one."""

    def begin(entry):
        log.append((name, entry))
        if way == "upstream":
            broker.scheduler.dispatched(entry)

    broker.scheduler.submit(
        link, begin, lambda: log.append((name, None)), topics=["t"], size_bytes=10, **how
    )


def names(log):
    return [name if entry is not None else f"{name} refused" for name, entry in log]


def tick(broker, times=2):
    for _ in range(times):
        broker.clock.advance(TICK_S)
        broker.scheduler.tick(broker.clock.now)


def queue(broker, *gauges):
    said = broker.scheduler.statistics()[0][0]
    return [said[gauge] for gauge in gauges]


@pytest.mark.parametrize("way", ["upstream", "catch_up"])
def test_unread_answer_gives_its_slot_back(broker, log, way):
    unread, other = Link(broker), Link(broker)
    ask(broker, unread, log, "unread", way=way)
    ask(broker, other, log, "other")
    tick(broker)
    assert names(log) == ["unread"], "the broker may be slow"
    getattr(unread, way).reading_held = True
    tick(broker, 1)
    assert names(log) == ["unread"], "it may be read within milliseconds"
    tick(broker, 1)
    assert names(log) == ["unread", "other"]
    assert queue(broker, "in_use", "unread") == [1, 1]
    for _, entry in log:
        broker.scheduler.answered(entry)
    assert held(broker) == 0


def test_answer_that_is_read_between_two_looks_keeps_its_slot(broker, log):
    unread, other = Link(broker), Link(broker)
    ask(broker, unread, log, "unread")
    ask(broker, other, log, "other")
    for _ in range(10):
        unread.upstream.reading_held = not unread.upstream.reading_held
        tick(broker, 1)
    assert names(log) == ["unread"]


def test_looks_that_follow_at_once_count_as_one(broker, log):
    unread, other = Link(broker), Link(broker)
    ask(broker, unread, log, "unread")
    ask(broker, other, log, "other")
    unread.upstream.reading_held = True
    broker.scheduler.tick(broker.clock.now)
    broker.clock.advance(UNREAD_S / 2)
    broker.scheduler.tick(broker.clock.now)
    assert names(log) == ["unread"]


def test_request_behind_an_unread_answer_takes_no_slot(broker, log):
    unread, other = Link(broker), Link(broker)
    ask(broker, unread, log, "1")
    unread.upstream.reading_held = True
    tick(broker, 10)
    assert queue(broker, "in_use", "unread") == [0, 1]
    ask(broker, unread, log, "2", is_ordered=True)
    ask(broker, unread, log, "3", waits=Waits.POLL)
    ask(broker, other, log, "other")
    assert names(log) == ["1", "2", "3", "other"]
    assert queue(broker, "in_use", "unread") == [1, 3]
    unread.upstream.reading_held = False
    broker.scheduler.answered(log[-1][1])
    ask(broker, unread, log, "4")
    assert queue(broker, "in_use", "unread") == [1, 3], "it is read again"
    unread.close("client_closed")
    assert held(broker) == 0


def test_crowd_that_never_reads_leaves_the_slots_to_others(broker, log):
    crowd, other = [Link(broker) for _ in range(8)], Link(broker)
    for link in crowd:
        for number in range(4):
            ask(broker, link, log, f"{number}")
        link.upstream.reading_held = True
    ask(broker, other, log, "other")
    tick(broker, 2 * len(crowd))
    sent = names(log)
    assert sent[-1] == "other" and sent.count("0") == len(crowd)
    assert len(sent) <= len(crowd) + 2, "it waits for one request of each client"
    broker.scheduler.answered(log[-1][1])
    tick(broker)
    assert len(log) == 4 * len(crowd) + 1
    for link in crowd:
        link.close("client_closed")
    assert held(broker) == 0


def test_topic_does_not_hang_while_its_answer_is_not_read(broker):
    unread, other = Link(broker), Link(broker)
    unread.produce(("a", 0, 0))
    tick(broker)
    unread.upstream.reading_held = True
    tick(broker, 200)
    assert broker.scheduler.hanging(["a"]) == {}
    other.produce(("a", 1, 0))
    assert other.seen() == [[("a", 1)]]
    unread.upstream.reading_held = False
    tick(broker, 45)
    assert broker.scheduler.hanging(["a"]) == {}, "the broker has had 4.5 s"
    tick(broker, 6)
    assert broker.scheduler.hanging(["a"])


def test_latency_of_an_unread_answer_shrinks_no_limit(monkeypatch):
    broker = make_broker(monkeypatch, data_slots={"floor": 1, "initial": 8, "ceiling": 8})
    samples = []
    limit = broker.scheduler.queues.find(0).limit
    monkeypatch.setattr(
        type(limit), "sample", lambda _self, _now, latency_s, *_: samples.append(latency_s)
    )
    unread, other = Link(broker), Link(broker)
    unread.produce(("a", 0, 0))
    unread.upstream.reading_held = True
    tick(broker, 20)
    unread.upstream.reading_held = False
    unread.reply()
    assert samples == []
    other.produce(("a", 1, 0))
    broker.clock.advance(0.25)
    other.reply()
    assert samples == [pytest.approx(0.25)]
