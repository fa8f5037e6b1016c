"""Produce through the request scheduler: forwarded, delayed, cut or refused, always in order."""

import gc

import pytest

from isolation.classify import queue_of_topic
from protocol import header
from proxy.config.model import Limits
from proxy.produce.in_flight import InFlightProduce
from proxy.relay import relay
from proxy.scheduling.queued_request import Entry
from tests.e2e.raw_frames import build_plain
from tests.proxy.followed_partition import EPOCH, QuietBroker, learn
from tests.proxy.played_scheduler import REFUSED, Link, held, make_broker

LIST_OFFSETS, METADATA = 2, 3
A, B = ("a", 0), ("b", 0)


@pytest.fixture
def broker(monkeypatch):
    return make_broker(monkeypatch)


@pytest.fixture
def orders(monkeypatch, broker):
    """A partition that is followed, on a broker that stores."""
    quiet = QuietBroker()
    monkeypatch.setattr(quiet.replica_fetcher, "produced", lambda *_: None, raising=False)
    for name in ("access_log", "cache", "stored_runs", "partitions", "topics", "replica_fetcher"):
        setattr(broker, name, getattr(quiet, name))
    broker.stores_on = lambda listener: True
    yield quiet.follow()  # its cache closes with the broker


def ask(link, api_key):
    frame = build_plain(api_key, 0)
    relay(link, header.peek_request(frame), frame)


def test_produce_is_forwarded_unchanged_and_returns_its_slot(broker):
    link = Link(broker)
    link.produce(("a", 0, 0))
    assert link.seen() == [[A]]
    link.reply()
    assert link.codes() == [{A: 0}]
    assert held(broker) == 0


def test_requests_of_a_connection_keep_their_order(
    broker,
):
    link = Link(broker)
    for sequence in range(3):
        link.produce(("a", sequence, 0))
    ask(link, LIST_OFFSETS)
    ask(link, METADATA)
    seen = []
    while link.sent:
        seen += link.seen()[-1:]
        link.reply()
    assert link.seen() == []
    assert seen.index(METADATA) < seen.index(LIST_OFFSETS) == len(seen) - 1
    assert len(link.got) == 5
    assert held(broker) == 0


def test_full_queue_refuses_until_the_batch_returns(monkeypatch):
    broker = make_broker(monkeypatch, queue_requests=1)
    link = Link(broker)
    for sequence in range(4):
        link.produce(("a", 0, sequence))
    assert broker.counters.produce.refused == 2, "one in service, one waits, which is the bound"
    link.reply()
    link.reply()
    assert link.codes() == [{A: 0}, {A: 0}, {A: REFUSED}, {A: REFUSED}]
    link.produce(("a", 0, 4))
    assert link.codes() == [{A: REFUSED}], "2 and 3 have yet to return"
    for sequence in (2, 3, 4):
        link.produce(("a", 0, sequence))
        link.reply()
    assert link.codes() == [{A: 0}] * 3
    assert (held(broker), len(link.refused)) == (0, 0)


def test_unread_request_does_not_follow_a_refused_one(monkeypatch):
    """It may hold the batch after the refused one, and a broker without state of its producer takes any."""
    broker = make_broker(monkeypatch, queue_requests=1)
    broker.config.limits = Limits(request_partitions=100)
    link = Link(broker)
    for sequence in range(3):
        link.produce(("a", 0, sequence))
    assert len(link.refused) == 1
    sent = len(link.sent)
    link.produce(*(("b", index, 0) for index in range(101)))
    assert (link.causes, broker.counters.clients.wide_requests) == (["refusals_full"], 1)
    assert sent == 1


def test_expired_produce_is_refused(monkeypatch):
    broker = make_broker(monkeypatch, max_queue_wait_s="1s", release_after_s="60s")
    first, second = Link(broker), Link(broker)
    first.produce(("a", 0, 0))
    second.produce(("a", 0, 0))
    broker.clock.advance(0.99)
    assert second.codes() == []
    broker.clock.advance(0.02)
    assert second.codes() == [{A: REFUSED}]
    first.reply()
    assert second.sent == []
    assert held(broker) == 0


def test_admitted_produce_is_planned_again(monkeypatch):
    broker = make_broker(monkeypatch, max_queue_wait_s="1s", release_after_s="60s")
    busy, link = Link(broker), Link(broker)
    busy.produce(("a", 1, 0))
    link.produce(("a", 0, 0))
    broker.clock.advance(0.5)
    link.produce(("a", 0, 1))
    link.produce(("a", 0, 2))
    broker.clock.advance(0.6)
    assert link.codes() == [{A: REFUSED}]
    busy.reply()
    assert link.sent == [], "1 and 2 got the slot, and must not go before 0"
    assert link.codes() == [{A: REFUSED}] * 2
    assert held(broker) == 0


@pytest.mark.parametrize("ends", ["answered", "full", "expired", "client", "broker"])
@pytest.mark.parametrize("quotas", [0, 1])
def test_waiting_produce_ends_once_and_leaves_no_garbage(monkeypatch, ends, quotas):
    quota = {"pattern": "*", "in_flight_bytes": 1000}
    bounds = {"queue_requests": 1, "max_queue_wait_s": "1s", "release_after_s": "60s"}
    broker = make_broker(monkeypatch, topic_quotas=[quota] * quotas, **bounds)
    busy, link = Link(broker), Link(broker)
    gc.collect()
    gc.disable()
    try:
        busy.produce(("a", 1, 0))
        link.produce(("a", 0, 0))
        assert (link.sent, broker.scheduler.queues.load_of(0)) == ([], 2)
        codes = [{A: 0}]
        if ends == "full":
            link.produce(("a", 0, 1))
            assert broker.counters.produce.refused == 1
            codes += [{A: REFUSED}]
        elif ends == "expired":
            broker.clock.advance(1.1)
            codes = [{A: REFUSED}]
        elif ends == "client":
            link.close("client_closed")
        elif ends == "broker":
            link.lose()
        busy.reply()
        if ends == "broker":
            assert held(broker) == 0
            link.close("upstream_closed")
        while link.sent:
            link.reply()
        assert link.codes() == (codes if ends not in ("client", "broker") else [])
        assert held(broker) == 0
        kinds = (Entry, InFlightProduce)
        assert [one for one in gc.get_objects() if isinstance(one, kinds)] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("times", [1, 2])
def test_waiting_produce_that_cannot_be_sent_is_relayed_or_closed(broker, times):
    busy, link = Link(broker), Link(broker)
    busy.produce(("a", 1, 0))
    link.produce(("a", 0, 0))
    send, failures = link.upstream.send, [ValueError("of ours")] * times

    def fail(*request):
        if failures:
            raise failures.pop()
        return send(*request)

    link.upstream.send = fail
    busy.reply()
    assert (broker.counters.faults.internal_errors, link.open) == (times, times == 1)
    if link.open:
        link.reply()
    assert link.codes() == [{A: 0}] * (2 - times)
    assert held(broker) == 0


@pytest.mark.parametrize("recovers", [False, True])
def test_waiting_produce_is_cut_by_what_hangs_at_its_turn(monkeypatch, recovers):
    """It waits for the topics that do not hang, in their queue alone."""
    waits = {"max_queue_wait_s": "60s", "release_after_s": "60s"}
    broker = make_broker(monkeypatch, data_queues=4, **waits)
    assert queue_of_topic("a", 4) != queue_of_topic("b", 4)
    stuck, busy, link, probing = (Link(broker) for _ in range(4))
    hang(broker, stuck)
    busy.produce(("b", 1, 0))
    link.produce(("a", 1, 0), ("b", 0, 0))
    assert link.sent == []
    assert broker.scheduler.queues.load_of(queue_of_topic("b", 4)) == 2
    if recovers:
        stuck.reply()
        probing.produce(("a", 2, 0))
        probing.reply()
        assert broker.scheduler.hanging(["a"]) == {}
    busy.reply()
    assert link.seen() == [[("a", 1), B] if recovers else [B]]
    link.reply()
    assert link.codes() == [{("a", 1): 0 if recovers else REFUSED, B: 0}]
    stuck.close("client_closed")
    assert broker.scheduler._of_connection == broker.scheduler.lines == {}


def wait_for_a_slot(broker, orders):
    """Two links with a request each of a partition whose batches are stored; the second waits."""
    orders.topic.fidelity.learn(False)
    orders.topic.fidelity.trust(0)
    learn(orders, 7)
    orders.tail = 7
    busy, link = Link(broker), Link(broker)
    busy.produce(("orders", 0, -1))
    link.produce(("orders", 0, -1))
    assert (len(busy.sent), link.sent) == (1, [])
    return busy, link


def test_waiting_produce_is_stored_by_state_at_dispatch(broker, orders):
    busy, link = wait_for_a_slot(broker, orders)
    busy.reply(base_offset=7)
    learn(orders, 8, epoch=EPOCH + 1)
    orders.tail = 8
    link.reply(base_offset=8)
    assert orders.tail == 8, "it went in another epoch than is proven now"
    busy, link = wait_for_a_slot(broker, orders)
    learn(orders, 9, epoch=EPOCH + 2)
    orders.tail = 9
    busy.close("client_closed")
    link.reply(base_offset=9)
    assert (orders.tail, broker.cache.last_epoch(orders.slot)) == (10, EPOCH + 2)


def test_forgotten_partition_is_followed_anew_at_dispatch(broker, orders):
    busy, link = wait_for_a_slot(broker, orders)
    broker.partitions.forget(orders)
    broker.routes.clear()
    busy.reply(base_offset=7)
    again = broker.partitions.find(orders.topic, 0)
    assert again is not None and again is not orders
    link.reply(base_offset=8)
    assert link.codes() == [{("orders", 0): 0}]
    assert again.acknowledged_end == 9 and orders.acknowledged_end < 9


def test_acks_0_waits_and_is_never_refused(monkeypatch):
    broker = make_broker(monkeypatch, queue_requests=1)
    busy, link = Link(broker), Link(broker)
    busy.produce(("a", 0, 0))
    for sequence in range(2000):
        link.produce(("a", sequence, 0), acks=0)
    assert link.sent == []
    busy.reply()
    assert [seen[0][1] for seen in link.seen()] == list(range(2000))
    assert (link.got, held(broker)) == ([], 0)


def hang(broker, link, topic="a"):
    """A Produce of `topic` that the broker does not answer."""
    link.produce((topic, 0, 0))
    broker.clock.advance(6.0)
    broker.scheduler.tick(broker.clock.now)


@pytest.fixture
def wide(monkeypatch):
    return make_broker(monkeypatch, data_slots={"floor": 9, "initial": 9, "ceiling": 9})


def test_hanging_topic_is_refused_until_a_probe_succeeds(wide):
    stuck, link, other = Link(wide), Link(wide), Link(wide)
    hang(wide, stuck)
    link.produce(("a", 1, 0))
    assert link.codes() == [{("a", 1): REFUSED}]
    other.produce(("b", 0, 0))
    assert other.seen() == [[B]]
    other.reply()
    wide.clock.advance(2.0)
    link.produce(("a", 1, 0))
    assert link.seen() == [[("a", 1)]], "a probe"
    other.produce(("a", 2, 0))
    assert other.codes()[1:] == [{("a", 2): REFUSED}], "one at a time"
    link.reply()
    other.produce(("a", 2, 0))
    assert other.seen() == [[("a", 2)]]
    other.reply()
    stuck.reply()
    assert held(wide) == 0


def test_hanging_topic_is_cut_out_and_answered(wide):
    stuck, link = Link(wide), Link(wide)
    hang(wide, stuck)
    link.produce(("a", 1, 0), ("b", 0, 0), ("a", 2, 0))
    assert link.seen() == [[B]]
    link.reply()
    assert link.codes() == [{B: 0, ("a", 1): REFUSED, ("a", 2): REFUSED}]
    assert wide.counters.produce.refused == 2
    link.produce(("a", 1, 1))
    assert link.codes() == [{("a", 1): REFUSED}], "by order, and since it hangs"


def test_a_probe_goes_by_itself(wide):
    stuck, link = Link(wide), Link(wide)
    hang(wide, stuck)
    wide.clock.advance(2.0)
    link.produce(("b", 0, 0), ("a", 1, 0))
    assert link.seen() == [[("a", 1)]]


def test_transaction_passes_fails_and_probes_whole(wide):
    stuck, link = Link(wide), Link(wide)
    hang(wide, stuck)
    link.produce(("a", 1, 0), ("b", 0, 0), transactional_id="t")
    assert link.codes() == [{("a", 1): REFUSED, B: REFUSED}]
    wide.clock.advance(2.0)
    link.produce(("a", 1, 0), ("b", 0, 0), transactional_id="t")
    assert link.seen() == [[("a", 1), B]], (
        "else nothing of a transaction would ever find out that it answers"
    )


def test_waiting_request_is_refused_when_its_topic_hangs(monkeypatch):
    broker = make_broker(monkeypatch, max_queue_wait_s="60s", release_after_s="60s")
    stuck, link = Link(broker), Link(broker)
    stuck.produce(("a", 0, 0))
    link.produce(("a", 1, 0))
    link.produce(("b", 0, 0))
    broker.clock.advance(6.0)
    broker.scheduler.tick(broker.clock.now)
    assert link.codes() == [{("a", 1): REFUSED}]
    stuck.reply()
    assert link.seen() == [[B]]


def test_produce_over_quota_is_refused(monkeypatch):
    quota = {"pattern": "a*", "in_flight_bytes": 150}
    slots = {"floor": 9, "initial": 9, "ceiling": 9}
    broker = make_broker(monkeypatch, topic_quotas=[quota], data_slots=slots)
    one, two = Link(broker), Link(broker)
    one.produce(("a", 0, 0))
    two.produce(("a", 1, 0))
    two.produce(("b", 0, 0))
    assert two.codes() == [{("a", 1): REFUSED}]
    one.reply()
    two.produce(("a", 1, 0))
    assert two.seen() == [[B], [("a", 1)]]
    two.reply()
    two.reply()
    assert held(broker) == 0


@pytest.mark.parametrize("ends", ["client", "broker"])
@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_lost_client_gives_back_all_slots(monkeypatch, ends, acks):
    quota = {"pattern": "*", "in_flight_bytes": 1000}
    broker = make_broker(monkeypatch, topic_quotas=[quota], client_quotas=[quota])
    busy, link, other = Link(broker), Link(broker), Link(broker)
    busy.produce(("a", 9, 0))
    for sequence in range(3):
        link.produce(("a", 0, sequence), acks=acks)
    other.produce(("a", 1, 0))
    if ends == "broker":
        busy.lose()
        link.lose()
    busy.close("client_closed")
    link.close("client_closed")
    assert other.seen() == [[("a", 1)]]
    other.reply()
    assert held(broker) == 0


def test_full_refusal_table_makes_the_request_wait(broker):
    busy, link = Link(broker), Link(broker)
    link.refused.limit = 0
    busy.produce(("a", 0, 0))
    link.produce(("a", 1, 0))
    broker.clock.advance(60.0)
    assert link.got == []
    busy.reply()
    assert link.seen() == [[("a", 1)]]
    link.reply()
    assert held(broker) == 0


def test_acknowledgements_of_several_connections_may_cross(broker, orders):
    """What is not shown yet ends where the last of them ends, not where the latest to arrive does."""
    first, second = Link(broker), Link(broker)
    first.produce(("orders", 0, 0))
    first.reply(base_offset=40)
    second.produce(("orders", 0, 0))
    second.reply(base_offset=39)
    assert orders.acknowledged_end == 41 and orders.probe_offset == 40
    learn(orders, 40)
    assert orders.has_unseen(40)
    learn(orders, 41)
    assert not orders.has_unseen(40)
