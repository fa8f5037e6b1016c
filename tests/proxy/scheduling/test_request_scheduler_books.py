"""The request scheduler's state of Produces: hanging topics, samples, slots, reports."""

import pytest

from isolation.health import HealthRule
from isolation.limits import FixedLimit
from tests.proxy.played_scheduler import REFUSED, Link, held, make_broker


@pytest.fixture
def wide(monkeypatch):
    return make_broker(monkeypatch, data_slots={"floor": 9, "initial": 9, "ceiling": 9})


def test_topic_hangs_in_time_without_a_turn(wide):
    stuck, early, late = Link(wide), Link(wide), Link(wide)
    stuck.produce(("a", 0, 0))
    wide.clock.advance(4.9)
    early.produce(("a", 1, 0))
    assert early.seen() == [[("a", 1)]]
    wide.clock.advance(0.2)
    late.produce(("a", 2, 0))
    assert late.codes() == [{("a", 2): REFUSED}]
    late.produce(("b", 0, 0))
    assert late.seen() == [[("b", 0)]]


def test_later_quick_response_clears_its_topic(wide):
    stuck, link = Link(wide), Link(wide)
    stuck.produce(("a", 0, 0))
    wide.clock.advance(0.1)
    link.produce(("a", 1, 0))
    link.reply()
    wide.clock.advance(6.0)
    wide.scheduler.tick(wide.clock.now)
    link.produce(("a", 1, 1))
    assert link.seen() == [[("a", 1)]]


def test_earlier_response_clears_nothing(wide):
    first, stuck, link = Link(wide), Link(wide), Link(wide)
    first.produce(("a", 0, 0))
    wide.clock.advance(0.1)
    stuck.produce(("a", 1, 0))
    wide.clock.advance(0.1)
    first.reply()
    wide.clock.advance(6.0)
    link.produce(("a", 2, 0))
    assert link.codes() == [{("a", 2): REFUSED}]


def test_response_of_another_topic_clears_nothing(wide):
    stuck, link = Link(wide), Link(wide)
    stuck.produce(("a", 0, 0), ("b", 0, 0))
    wide.clock.advance(1.0)
    wide.scheduler.tick(wide.clock.now)
    link.produce(("b", 1, 0))
    link.reply()
    wide.clock.advance(5.0)
    assert set(wide.scheduler.hanging(["a", "b"])) == {"a"}


def test_queued_request_is_late_only_once_begun(wide):
    link = Link(wide)
    link.produce(("a", 0, 0))
    link.produce(("b", 0, 0))
    wide.clock.advance(4.0)
    link.reply()
    wide.clock.advance(4.9)
    assert wide.scheduler.hanging(["b"]) == {}
    wide.clock.advance(0.2)
    assert set(wide.scheduler.hanging(["a", "b"])) == {"b"}


def test_only_a_probe_response_ends_a_hang(wide):
    stuck, behind, probing = Link(wide), Link(wide), Link(wide)
    stuck.produce(("a", 0, 0))
    behind.produce(("a", 1, 0))
    wide.clock.advance(6.0)
    assert wide.scheduler.hanging(["a"])
    behind.reply()
    assert wide.scheduler.hanging(["a"]), "after minutes is no recovery"
    probing.produce(("a", 2, 0))
    assert probing.seen() == [[("a", 2)]]
    wide.clock.advance(0.1)
    probing.reply()
    assert wide.scheduler.hanging(["a"]) == {}
    assert wide.scheduler.statistics()[1] | {"watched": 0} == {
        "watched": 0,
        "hanging": 0,
        "hangs": 1,
        "recoveries": 1,
        "probes": 1,
        "unwatched": 0,
    }


def test_limited_number_of_topics_is_remembered(wide):
    health = wide.scheduler._health
    health.rule = HealthRule(hang_after_s=5.0, max_keys=2)
    stuck, link = Link(wide), Link(wide)
    stuck.produce(("a", 0, 0))
    for topic in "abcde":
        link.produce((topic, 1, 0))
        wide.clock.advance(0.01)
        link.reply()
        assert len(health.last_timely) <= 2
    wide.clock.advance(6.0)
    assert wide.scheduler.hanging(["a"]) == {}, "what began later was answered"
    stuck.reply()
    assert held(wide) == 0


class Recording(FixedLimit):
    def __init__(self):
        super().__init__(100)
        self.samples = []

    def sample(self, now_s, latency_s, in_use, ok):
        self.samples.append((round(latency_s, 3), in_use, ok))


def test_requests_are_measured_from_their_possible_start(monkeypatch):
    limit = Recording()
    monkeypatch.setattr("proxy.scheduling.request_scheduler.build_limit", lambda *_: limit)
    broker = make_broker(monkeypatch, release_after_s="60s")
    link, lost = Link(broker), Link(broker)
    for number, wait_s in enumerate((0.0, 0.0, 0.1)):
        broker.clock.advance(wait_s)
        link.produce(("a", number, 0))
    lost.produce(("a", 9, 0))
    lost.close("client_closed")
    for wait_s in (0.2, 0.3, 0.4):
        broker.clock.advance(wait_s)
        link.reply()
    assert limit.samples == [(0.3, 3, True), (0.3, 2, True), (0.4, 1, True)]
    assert held(broker) == 0


def test_requests_awaiting_followers_return_some_slots(monkeypatch):
    broker = make_broker(
        monkeypatch, data_slots={"floor": 4, "initial": 4, "ceiling": 4}, release_after_s="500ms"
    )
    links = [Link(broker) for _ in range(5)]
    links[0].produce(("a", 0, 0), acks=1)
    for number, link in enumerate(links[1:]):
        broker.clock.advance(0.1)
        link.produce(("a", number, 0))
    assert links[4].sent == [], "four slots"
    broker.clock.advance(0.35)
    assert links[4].seen() == [[("a", 3)]], "the first with acks=all has given its slot back"
    state = broker.scheduler.statistics()[0][0]
    assert (state["in_use"], state["lingering_acks"], state["released"]) == (4, 1, 1)
    broker.clock.advance(5.0)
    assert broker.scheduler.statistics()[0][0]["lingering_acks"] == 1, "a quarter of four"
    links[1].reply()
    assert broker.scheduler.statistics()[0][0]["lingering_acks"] == 1, (
        "one lingers no more, so the next may"
    )
    for link in (links[0], *links[2:]):
        link.reply()
    assert held(broker) == 0


def test_the_report_counts_what_is_unanswered(wide):
    one, two = Link(wide), Link(wide)
    for link, topic in ((one, "a"), (one, "b"), (two, "c")):
        link.produce((topic, 0, 0))
    assert wide.scheduler.report()["topics"]["watched"] == 2, "b stands behind a"
    assert wide.scheduler.report()["queues"]["data-0"]["in_use"] == 3
    one.reply()
    one.reply()
    two.close("client_closed")
    assert wide.scheduler.report()["topics"]["watched"] == 0
    assert held(wide) == 0


@pytest.mark.parametrize("times", [1, 2])
def test_second_send_error_closes_the_client(wide, times):
    link, other = Link(wide), Link(wide)
    other.produce(("a", 1, 0))
    send, failures = link.upstream.send, [ValueError("of ours")] * times

    def fail(*request):
        if failures:
            raise failures.pop()
        return send(*request)

    link.upstream.send = fail
    link.produce(("a", 0, 0))
    assert wide.counters.faults.internal_errors == times
    assert link.causes == ["internal_error"] * (times - 1)
    if link.open:
        link.produce(("a", 0, 1))
        link.reply()
        link.reply()
        assert link.codes() == [{("a", 0): 0}] * 2
        assert link.answered_ordinal == 2
    other.reply()
    assert other.codes() == [{("a", 1): 0}]
    assert (other.open, held(wide)) == (True, 0)


@pytest.mark.parametrize("sent_count", [0, 1])
def test_lost_client_leaves_others_in_place(wide, sent_count):
    links = [Link(wide), Link(wide)]
    for number in range(3):
        for link in links:
            link.produce(("a", number, 0))
    links[sent_count].reply()
    links[sent_count].close("client_closed")
    stays = links[1 - sent_count]
    for _ in range(3):
        stays.reply()
    assert stays.codes() == [{("a", number): 0} for number in range(3)]
    assert held(wide) == 0
