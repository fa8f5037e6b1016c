"""Latency that most limits share is told to each limit; latency of a few is not."""

import pytest

from isolation.limits import UNUSED_LEAST, AdaptiveLimit, AdaptiveRule
from isolation.peers import LEAST_PEERS, RECENT_S, Peers
from tests.isolation.test_limits import Broker

QUEUES = 8
SHARED_TIMES = 20.0
GROWN_S = 5.0
"""All limits have grown to their ceiling by then."""


def note_all(peers, slowdowns, now_s=0.0):
    for number, slowdown in enumerate(slowdowns):
        peers.note(number, slowdown, now_s)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([5.0] * LEAST_PEERS, 5.0),
        ([5.0] * (LEAST_PEERS - 1), 1.0),
        ([0.5] * LEAST_PEERS, 1.0),
        ([1.0, 5.0, 6.0, 7.0], 5.0),
        ([1.0, 1.0, 6.0, 7.0], 1.0),
        ([1.0] * 5 + [100.0] * 3, 1.0),
    ],
)
def test_three_quarters_of_peers_must_be_slow(others, told):
    peers = Peers()
    note_all(peers, others)
    peers.note("me", 1000.0, 0.0)
    assert peers.slowdown_beside("me", 0.0) == told


def test_old_samples_of_peers_do_not_count():
    peers = Peers()
    note_all(peers, [5.0] * LEAST_PEERS)
    assert peers.slowdown_beside("me", RECENT_S) == 5.0
    assert peers.slowdown_beside("me", RECENT_S + 0.01) == 1.0


@pytest.mark.parametrize(("machine", "told"), [(1.0, 5.0), (4.0, 5.0), (9.0, 9.0)])
def test_the_machines_slowdown_counts_if_it_is_greater(machine, told):
    peers = Peers()
    note_all(peers, [5.0] * LEAST_PEERS)
    peers.note_machine(machine, 0.0)
    assert peers.slowdown_beside("me", RECENT_S) == told


def test_the_machines_slowdown_counts_alone_until_it_is_old():
    peers = Peers()
    peers.note_machine(9.0, 0.0)
    assert peers.slowdown_beside("me", RECENT_S) == 9.0
    assert peers.slowdown_beside("me", RECENT_S + 0.01) == 1.0


def run_all(brokers, until_s, service_s):
    """All limits at once, in steps of a tenth of a second; `service_s` by the limit's number."""
    step = min(one.now_s for one in brokers)
    while step < until_s:
        step += 0.1
        for number, one in enumerate(brokers):
            one.run(step, lambda _now, number=number: service_s(number))


def build_brokers():
    peers = Peers()
    return [Broker(AdaptiveLimit(AdaptiveRule(), peers), is_serial=False) for _ in range(QUEUES)]


def slots(brokers):
    return [one.limit.slots_at(one.now_s) for one in brokers]


def test_latency_that_all_share_shrinks_no_limit():
    brokers = build_brokers()
    run_all(brokers, GROWN_S, lambda _number: 0.01)
    before = slots(brokers)
    run_all(brokers, 140, lambda _number: 0.01 * SHARED_TIMES)
    assert min(slots(brokers)) >= min(before)
    run_all(brokers, 140 + GROWN_S, lambda _number: 0.01)
    assert min(slots(brokers)) >= min(before)


def test_latency_shrinks_a_limit_without_peers():
    alone = Broker(AdaptiveLimit(), is_serial=False)
    alone.run(20, lambda _now: 0.01)
    before = alone.limit.slots_at(alone.now_s)
    assert min(alone.run(60, lambda _now: 0.01 * SHARED_TIMES)) < before / 4


def run_on_busy_machine(slowdown, latency_s):
    """The slots of the only queue, busy processors from 20 s on; and the least of them."""
    peers = Peers()
    alone = Broker(AdaptiveLimit(AdaptiveRule(), peers), is_serial=False)
    alone.run(20, lambda _now: 0.01)
    before, seen = alone.limit.slots_at(alone.now_s), []
    while alone.now_s < 100:
        peers.note_machine(slowdown, alone.now_s)
        seen += alone.run(alone.now_s + 0.5, lambda _now: latency_s)
    return before, min(seen)


def test_busy_processors_shrink_the_limit_of_no_lonely_queue():
    before, least = run_on_busy_machine(SHARED_TIMES, 0.01 * SHARED_TIMES)
    assert least > before / 2, "the first windows are judged before the machine's slowdown is known"


def test_a_sick_queue_shrinks_on_busy_processors_too():
    before, least = run_on_busy_machine(SHARED_TIMES, 2.0)
    assert least < before / 4


@pytest.mark.parametrize("sick", [1, 2])
def test_sick_queue_shrinks_while_others_are_slower(sick):
    """The others wait for handlers that the sick one's requests hold: three times their usual latency."""
    brokers = build_brokers()
    run_all(brokers, GROWN_S, lambda _number: 0.01)
    run_all(brokers, 40, lambda number: 1.0 if number < sick else 0.03)
    found = slots(brokers)
    assert max(found[:sick]) <= UNUSED_LEAST, "of eight handlers, two are left to the others"
    assert min(found[sick:]) > max(found[:sick])
