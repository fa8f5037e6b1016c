"""The request scheduler at its limits: turns, order, counts, and an empty state in the end."""

import json

import pytest

from isolation.classify import CONTROL
from isolation.limits import FixedLimit
from isolation.tickets import Waits
from proxy.admin.samples import _isolation
from proxy.config.isolation import build_limit
from proxy.scheduling.request_scheduler import LANDED, LANDED_FOR_WAITING, LIFTED, LIFTED_FIRST
from tests.proxy.played_scheduler import Link, held, make_broker

GAUGES = (
    *("slots", "in_use", "waiting", "waiting_bytes"),
    *("lingering_polls", "lingering_acks", "unread"),
)
TOTALS = ("admitted", "refused", "expired", "cancelled", "released")


class Asking:
    """One request that does as it is told when its turn comes. `log` is shared: what happened, in order."""

    def __init__(self, broker, link, log, name, **how):
        self.scheduler, self.link, self.log, self.name = broker.scheduler, link, log, name
        self.entry = None
        self.on_go = how.pop("on_go", None)
        refuse = (lambda: log.append(f"{name} refused")) if how.pop("may_refuse", True) else None
        broker.scheduler.submit(
            link, self.go, how.pop("refuse", refuse), **{"topics": ["t"], "size_bytes": 10, **how}
        )

    def go(self, entry):
        self.entry = entry
        self.log.append(f"{self.name} begins")
        if self.on_go:
            self.on_go(entry)
        else:
            self.scheduler.dispatched(entry)
        self.log.append(f"{self.name} ends")


@pytest.fixture
def broker(monkeypatch):
    return make_broker(monkeypatch)


def queue(broker, number=0):
    return broker.scheduler.statistics()[0][number]


def test_admitted_request_is_dispatched_after_the_current_one(broker):
    log: list[str] = []
    scheduler = broker.scheduler
    first = Asking(broker, Link(broker), log, "1")
    for name in "23":
        Asking(broker, Link(broker), log, name, on_go=scheduler.withdraw)
    log.clear()
    scheduler.answered(first.entry)
    assert log == ["2 begins", "2 ends", "3 begins", "3 ends"]
    assert held(broker) == 0


def test_new_request_does_not_overtake_an_admitted_one(broker):
    log: list[str] = []
    link, scheduler = Link(broker), broker.scheduler
    seen = []

    def meanwhile(entry):
        seen.append(scheduler.in_order(link))
        Asking(broker, link, log, "new", is_ordered=True)
        scheduler.withdraw(entry)

    first = Asking(broker, Link(broker), log, "first")
    Asking(broker, link, log, "old", on_go=meanwhile, is_ordered=True)
    Asking(broker, link, log, "next", is_ordered=True, on_go=scheduler.withdraw)
    scheduler.answered(first.entry)
    begun = [line for line in log if line.endswith("begins")]
    assert begun == ["first begins", "old begins", "next begins", "new begins"]
    assert seen == [False], "its order is not known yet while an earlier one waits"


def test_requests_ended_by_a_refusal_are_refused_once(monkeypatch):
    broker = make_broker(monkeypatch, max_queue_wait_s="1s")
    log: list[str] = []
    link = Link(broker)
    Asking(broker, Link(broker), log, "busy")
    Asking(broker, link, log, "1", refuse=lambda: link.close("refusals_full"))
    Asking(broker, link, log, "2")
    broker.clock.advance(1.1)
    assert log == ["busy begins", "busy ends"]
    assert (len(broker.scheduler.lines), len(broker.scheduler._of_connection)) == (1, 0), (
        "the busy one"
    )


def test_failed_dispatch_closes_its_client_only(broker):
    link = Link(broker)
    log: list[str] = []

    def fail(_entry):
        raise ValueError("of ours")

    Asking(broker, link, log, "1", on_go=fail)
    Asking(broker, Link(broker), log, "2")
    assert link.causes == ["internal_error"]
    assert broker.counters.faults.internal_errors == 1
    assert log == ["1 begins", "2 begins", "2 ends"]


def test_a_client_that_is_gone_holds_nothing(broker):
    link = Link(broker)
    link.close("client_closed")
    Asking(broker, link, [], "late")
    assert held(broker) == 0


def test_control_request_holds_a_slot_a_poll_none(monkeypatch):
    broker = make_broker(monkeypatch, release_after_s="500ms")
    polls = [Asking(broker, Link(broker), [], str(n), waits=Waits.POLL) for n in range(5)]
    control = Asking(broker, Link(broker), [], "c", waits=Waits.POLL, is_control=True)
    assert (queue(broker)["in_use"], queue(broker)["lingering_polls"]) == (0, 5)
    assert queue(broker, CONTROL)["in_use"] == 1
    broker.clock.advance(0.6)
    assert (queue(broker, CONTROL)["in_use"], queue(broker, CONTROL)["lingering_polls"]) == (0, 1)
    for one in (*polls, control):
        broker.scheduler.answered(one.entry)
    assert held(broker) == 0


class Recording(FixedLimit):
    def __init__(self):
        super().__init__(100)
        self.samples = []

    def sample(self, now_s, latency_s, in_use, ok):
        self.samples.append(round(latency_s, 3))


def test_only_produces_are_measured(monkeypatch):
    limit = Recording()
    monkeypatch.setattr("proxy.scheduling.request_scheduler.build_limit", lambda *_: limit)
    broker = make_broker(monkeypatch)
    link = Link(broker)
    read = Asking(broker, link, [], "read")
    for number in range(2):
        link.produce(("t", number, 0))
    broker.clock.advance(1.0)
    broker.scheduler.answered(read.entry)
    for delay_s in (0.2, 0.3):
        broker.clock.advance(delay_s)
        link.reply()
    assert limit.samples == [0.2, 0.3]


def test_statistics_count_what_happened(monkeypatch):
    broker = make_broker(
        monkeypatch, queue_requests=3, max_queue_wait_s="1s", release_after_s="60s"
    )
    links = [Link(broker) for _ in range(5)]
    asking = [Asking(broker, link, [], str(n), is_ordered=True) for n, link in enumerate(links)]
    stands = queue(broker)
    assert [stands[name] for name in GAUGES] == [1, 1, 3, 30, 0, 0, 0]
    links[1].close("client_closed")
    broker.clock.advance(1.1)
    Asking(broker, Link(broker), [], "last")
    broker.scheduler.answered(asking[0].entry)
    stands = queue(broker)
    assert [stands[name] for name in GAUGES] == [1, 1, 0, 0, 0, 0, 0]
    assert [stands[name] for name in TOTALS] == [2, 1, 2, 1, 0]
    shown = {(sample[0], *sample[1]): sample[2] for sample in _isolation(broker)}
    for name in TOTALS:
        assert shown[f"forebay_isolation_{name}_total", "data-0"] == stands[name]
    for name in GAUGES:
        assert shown[f"forebay_isolation_{name}", "data-0"] == stands[name]


def test_the_report_names_queues_and_topics_that_hang(broker):
    Link(broker).produce(("t", 0, 0))
    broker.clock.advance(6.0)
    broker.scheduler.tick(broker.clock.now)
    report = json.loads(json.dumps(broker.scheduler.report()))
    assert report["topics"]["names"] == ["t"]
    assert report["topics"]["hanging"] == 1
    assert set(report["queues"]) == {"control", "data-0"}
    assert report["queues"]["data-0"]["admitted"] == 1


def test_waiting_bytes_at_their_bound(monkeypatch):
    broker = make_broker(monkeypatch, queue_size_bytes=1 << 20)
    log: list[str] = []
    for name, size_bytes in (("served", 1), ("fits", 1 << 19), ("too", 1 << 19), ("much", 1)):
        Asking(broker, Link(broker), log, name, size_bytes=size_bytes)
    assert log == ["served begins", "served ends", "much refused"]


def test_request_without_slot_is_refused_with_no_queue(monkeypatch):
    broker = make_broker(monkeypatch, max_queue_wait_s="0s")
    log: list[str] = []
    Asking(broker, Link(broker), log, "1")
    Asking(broker, Link(broker), log, "2")
    assert log[-1] == "2 refused"


def test_switched_off_everything_goes_and_nothing_is_counted(monkeypatch):
    broker = make_broker(monkeypatch, enabled=False)
    log: list[str] = []
    asking = [Asking(broker, Link(broker), log, "x") for _ in range(50)]
    assert log.count("x begins") == 50
    for one in asking:
        broker.scheduler.answered(one.entry)
    broker.scheduler.tick(broker.clock.now)
    assert queue(broker)["admitted"] == 0


def test_equal_floor_and_ceiling_fix_the_slots(broker):
    slots = broker.config.isolation.data_slots
    fixed = build_limit(slots)
    assert isinstance(fixed, FixedLimit)
    assert fixed.statistics() == {"slots": 1}
    wide = slots.model_copy(update={"ceiling": 9, "initial": 20})
    assert build_limit(wide).slots_at(0.0) == 9


def test_pipelined_request_takes_and_returns_a_slot(monkeypatch):
    broker = make_broker(monkeypatch, data_slots={"floor": 2, "initial": 2, "ceiling": 2})
    link, scheduler = Link(broker), broker.scheduler
    link.produce(("a", 0, 0))
    link.reply()
    line, started_at = scheduler.queues.find(0), broker.now()
    assert scheduler.lift(line, link, Waits.ACKS, started_at) == LIFTED_FIRST
    assert scheduler.lift(line, link, Waits.ACKS, started_at) == LIFTED_FIRST
    assert scheduler.lift(line, link, Waits.ACKS, started_at) == 0, "two slots"
    assert line.in_use == 2
    broker.clock.advance(0.01)
    assert scheduler.land(line, "a", started_at, broker.now()) == LANDED
    assert scheduler.land(line, "a", started_at, broker.now()) == LANDED
    assert scheduler.last_timely["a"] == started_at
    assert held(broker) == 0


def test_pipelined_request_behind_another_has_not_begun(monkeypatch):
    broker = make_broker(monkeypatch, data_slots={"floor": 2, "initial": 2, "ceiling": 2})
    link, scheduler = Link(broker), broker.scheduler
    link.produce(("a", 0, 0))
    assert scheduler.lift(scheduler.queues.find(0), link, Waits.ACKS, broker.now()) == LIFTED


@pytest.mark.parametrize("against", ["health", "hanging", "dispatching", "timer"])
def test_request_with_pending_work_is_not_pipelined(monkeypatch, against):
    broker = make_broker(monkeypatch, data_slots={"floor": 2, "initial": 2, "ceiling": 2})
    link, scheduler, now = Link(broker), broker.scheduler, broker.now()
    link.produce(("a", 0, 0))
    link.reply()
    if against == "health":
        scheduler.next_health_check_at = now
    elif against == "hanging":
        scheduler.watched["a"] = None
    elif against == "dispatching":
        scheduler.is_dispatching = True
    else:
        scheduler.due_at = float("inf")
    line = scheduler.queues.find(0)
    assert scheduler.lift(line, link, Waits.ACKS, now) == 0
    assert (line.in_use, line.admitted) == (0, 1)


def test_waiting_request_follows_a_pipelined_one(monkeypatch):
    broker = make_broker(monkeypatch, data_slots={"floor": 1, "initial": 1, "ceiling": 1})
    link, scheduler, now = Link(broker), broker.scheduler, broker.now()
    link.produce(("a", 0, 0))
    link.reply()
    line = scheduler.queues.find(0)
    assert scheduler.lift(line, link, Waits.ACKS, now)
    other = Link(broker)
    other.produce(("a", 1, 0))
    assert (len(line.waiting), len(other.sent)) == (1, 0)
    assert scheduler.land(line, "a", now, now) == LANDED_FOR_WAITING
    assert (len(line.waiting), line.in_use) == (1, 0)
    scheduler.admit_waiting(line, now)
    assert (len(line.waiting), line.in_use, len(other.sent)) == (0, 1, 1)


@pytest.mark.parametrize("against", ["topic", "late", "not begun", "aged"])
def test_response_with_pending_work_is_not_pipelined(monkeypatch, against):
    slots = {"floor": 1, "initial": 1, "ceiling": 1}
    broker = make_broker(monkeypatch, data_slots=slots, release_after_s="60s")
    link, scheduler, now = Link(broker), broker.scheduler, broker.now()
    link.produce(("a", 0, 0))
    link.reply()
    line = scheduler.queues.find(0)
    assert scheduler.lift(line, link, Waits.ACKS, now)
    topic, started_at = "b" if against == "topic" else "a", now
    if against == "late":
        now += scheduler.hang_after_s
    elif against == "not begun":
        started_at = -1.0
    elif against == "aged":
        line.ages_at_s = now
    assert not scheduler.land(line, topic, started_at, now)
    assert line.in_use == 1
