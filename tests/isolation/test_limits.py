"""Limits against model brokers: concurrency that helps is allowed, queueing is not."""

import random
from heapq import heappop, heappush

import pytest

from isolation.limits import DIP_MAX_WINDOWS, UNFELT_S, AdaptiveLimit, AdaptiveRule, FixedLimit
from isolation.peers import Peers


class Broker:
    """Keeps every slot of a limit busy; `service_s(now_s)` is one request's, one after the other where
    `is_serial`.
    """

    def __init__(self, limit, *, is_serial):
        self.limit, self.is_serial = limit, is_serial
        self.random = random.Random(7)
        self.now_s = self.free_s = 0.0
        self.in_flight = []

    def run(self, until_s, service_s, in_use=10**9):
        """The slots seen at each answer, with at most `in_use` requests in flight."""
        seen = []
        while self.now_s < until_s:
            while len(self.in_flight) < min(in_use, self.limit.slots_at(self.now_s)):
                self._send(service_s(self.now_s) * self.random.lognormvariate(0, 0.3))
            done_s, sent_s = heappop(self.in_flight)
            self.now_s = done_s
            self.limit.sample(done_s, done_s - sent_s, len(self.in_flight) + 1, True)
            seen.append(self.limit.slots_at(done_s))
        return seen

    def _send(self, lasts_s):
        start_s = max(self.free_s, self.now_s) if self.is_serial else self.now_s
        self.free_s = start_s + lasts_s
        heappush(self.in_flight, (self.free_s, self.now_s))


def test_serial_log_gets_few_slots():
    limit = AdaptiveLimit(AdaptiveRule(initial=64))
    broker = Broker(limit, is_serial=True)
    broker.run(60, lambda _now: 0.02)
    assert 3 <= limit.slots_at(broker.now_s) <= 8


def test_fast_serial_log_keeps_its_slots():
    """64 connections of a healthy broker: a queue inside it that is shorter than UNFELT_S costs others nothing."""
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=True)
    broker.run(30, lambda _now: 0.0001)
    assert limit.slots_at(broker.now_s) == limit.rule.ceiling
    broker.run(60, lambda _now: UNFELT_S / 8)
    assert 8 <= limit.slots_at(broker.now_s) <= 16


def test_fast_log_has_all_slots_within_a_second():
    """A limit far from what is allowed doubles with each window, and does not let the requests of a crowd wait."""
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=True)
    broker.run(0.8, lambda _now: 0.00005)
    assert limit.slots_at(broker.now_s) == limit.rule.ceiling


def test_slowed_serial_log_gets_no_more_slots():
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=True)
    broker.run(30, lambda _now: 0.002)
    seen = broker.run(300, lambda _now: 0.2)
    assert max(seen) <= 10
    assert min(seen) >= limit.rule.floor


def test_concurrent_waits_get_the_ceiling():
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=False)
    broker.run(30, lambda _now: 0.05)
    assert limit.slots_at(broker.now_s) == limit.rule.ceiling


def test_limit_recovers_from_lasting_longer_waits():
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=False)
    broker.run(30, lambda _now: 0.01)
    assert min(broker.run(60, lambda _now: 0.4)) < 16
    broker.run(200, lambda _now: 0.4)
    assert limit.slots_at(broker.now_s) == limit.rule.ceiling


def test_limit_does_not_oscillate_between_dips():
    rule = AdaptiveRule(quiet_for_s=1000.0)
    broker = Broker(AdaptiveLimit(rule), is_serial=True)
    broker.run(60, lambda _now: 0.02)
    seen = broker.run(300, lambda _now: 0.02)
    assert max(seen) - min(seen) <= 1


def test_unused_limit_does_not_grow():
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=False)
    broker.run(30, lambda _now: 0.05, in_use=3)
    assert limit.slots_at(broker.now_s) <= limit.rule.initial


def test_one_quiet_window_withdraws_few_slots():
    """A fast broker whose clients pause for a moment: a share of the unused slots is taken back."""
    limit = AdaptiveLimit(AdaptiveRule(initial=64))
    broker = Broker(limit, is_serial=False)
    broker.run(1, lambda _now: 0.001)
    assert limit.slots_at(broker.now_s) == limit.rule.ceiling
    windows = limit.statistics()["windows"]
    while limit.statistics()["windows"] < windows + 2:
        broker.run(broker.now_s + 0.01, lambda _now: 0.001, in_use=1)
    assert limit.slots_at(broker.now_s) > limit.rule.ceiling / 3


def test_unused_slots_are_withdrawn_and_return():
    limit = AdaptiveLimit()
    broker = Broker(limit, is_serial=False)
    broker.run(30, lambda _now: 0.02)
    broker.run(60, lambda _now: 0.02, in_use=5)
    assert limit.slots_at(broker.now_s) <= 15
    broker.run(90, lambda _now: 0.02)
    assert limit.slots_at(broker.now_s) == limit.rule.ceiling


@pytest.mark.parametrize(
    ("quiet_s", "stuck_s"), [(0.001, 0.05), (0.02, 0.2), (0.08, 0.5), (0.4, 0.8)], ids=str
)
def test_only_the_floor_while_requests_are_stuck(quiet_s, stuck_s):
    limit = AdaptiveLimit(AdaptiveRule(initial=8))
    now_s = answers(limit, 0.0, 10, latency_s=quiet_s)
    assert limit.slots_at(now_s, stuck_s * 0.99) > limit.rule.floor
    assert limit.slots_at(now_s, stuck_s * 1.01) == limit.rule.floor


def answers(limit, now_s, count, *, latency_s=0.01, in_use=1, ok=True, apart_s=0.02):
    for _ in range(count):
        now_s += apart_s
        limit.sample(now_s, latency_s, in_use, ok)
    return now_s


def test_drops_shrink_the_limit_to_its_floor():
    limit = AdaptiveLimit(AdaptiveRule(initial=8))
    now_s = answers(limit, 0.0, 10)
    before = limit.slots_at(99.0)
    answers(limit, now_s, 10, ok=False)
    assert limit.slots_at(99.0) < before
    answers(limit, now_s, 200, ok=False)
    assert limit.slots_at(99.0) == limit.floor == limit.rule.floor


def test_one_window_halves_the_limit_at_most():
    limit = AdaptiveLimit(AdaptiveRule(initial=60, smoothing=1.0))
    now_s = answers(limit, 0.0, 10, in_use=2)
    before = limit.slots_at(now_s)
    answers(limit, now_s, 10, latency_s=100.0, in_use=60)
    assert limit.slots_at(now_s) >= before / 2


def test_dip_stays_at_the_floor_and_ends():
    limit = AdaptiveLimit(AdaptiveRule(initial=20))
    now_s = answers(limit, 0.0, 10, in_use=20)
    assert limit.slots_at(now_s) == limit.rule.floor
    ends_s = now_s + DIP_MAX_WINDOWS * limit.rule.window_max_s
    assert limit.slots_at(ends_s - 0.01) == limit.rule.floor
    assert limit.slots_at(ends_s) == 20
    answers(limit, ends_s, 1, in_use=20)
    assert limit.statistics()["dips"] == 1


def test_earlier_requests_do_not_set_the_quiet_latency():
    limit = AdaptiveLimit(AdaptiveRule(initial=20))
    now_s = answers(limit, 0.0, 10, in_use=20)
    now_s = answers(limit, now_s, 10, latency_s=0.5, in_use=2)
    assert limit.statistics()["quiet_s"] == -1
    answers(limit, now_s + 0.5, 10, latency_s=0.03, in_use=2)
    assert limit.statistics()["quiet_s"] == pytest.approx(0.03)


def test_a_fixed_limit_does_not_move():
    limit = FixedLimit(3)
    answers(limit, 0.0, 100, ok=False)
    assert limit.slots_at(99.0) == 3
    assert limit.statistics() == {"slots": limit.floor} == {"slots": 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor": 0},
        {"initial": 1},
        {"initial": 65},
        {"tolerance": 0.9},
        {"smoothing": 0.0},
        {"quiet_for_s": 6.0},
    ],
)
def test_rules_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="<="):
        AdaptiveRule(**wrong)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing"):
        FixedLimit(0)


def test_another_rule_of_one_kind_keeps_what_was_learnt():
    peers = Peers()
    limit = AdaptiveLimit(AdaptiveRule(floor=2, ceiling=64, initial=8), peers)
    Broker(limit, is_serial=False).run(10.0, lambda _now: 0.02)
    slots, quiet_s = limit.slots_at(10.0), limit.statistics()["quiet_s"]
    assert slots > 8 and quiet_s > 0
    assert limit.replaced_by(AdaptiveLimit(AdaptiveRule(floor=2, ceiling=70, initial=8))) is limit
    assert (limit.slots_at(10.0), limit.statistics()["quiet_s"]) == (slots, quiet_s)
    limit.replaced_by(AdaptiveLimit(AdaptiveRule(floor=2, ceiling=4, initial=4)))
    assert limit.slots_at(10.0) <= 4
    limit.replaced_by(AdaptiveLimit(AdaptiveRule(floor=16, ceiling=64, initial=16)))
    assert (limit.floor, limit.slots_at(10.0)) == (16, 16)


def test_another_kind_of_limit_replaces_it_among_its_peers():
    peers, fixed = Peers(), FixedLimit(3)
    limit = AdaptiveLimit(AdaptiveRule(), peers)
    others = [object() for _ in range(3)]
    for one in (limit, *others):
        peers.note(one, 5.0, 0.0)
    assert peers.slowdown_beside(others[0], 0.0) == 5.0
    assert limit.replaced_by(fixed) is fixed
    assert peers.slowdown_beside(others[0], 0.0) == 1.0, "two others are no measure"
    assert fixed.replaced_by(limit) is limit
