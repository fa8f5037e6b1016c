"""Requests whose answers nobody reads: they hold no slot, and the limit learns nothing from them."""

import pytest

from isolation.limits import FixedLimit
from isolation.queues import QueueRule, Queues
from isolation.tickets import State, Waits
from tests.isolation.queued_item import Item


class Recorded(FixedLimit):
    """A fixed limit that remembers the latencies of its samples."""

    def __init__(self, slots):
        super().__init__(slots)
        self.samples = []

    def sample(self, now_s, latency_s, in_use, ok):
        self.samples.append(latency_s)


def make(slots=1, **rule):
    limit = Recorded(slots)
    queues: Queues[Item] = Queues(QueueRule(data_queues=1, **rule), FixedLimit(2), lambda: limit)
    return queues, limit


def offer(queues, name, now_s=0.0, **more):
    item = Item(name, **more)
    queues.offer(item, now_s)
    return item


def count(queues, *names):
    said = queues.statistics(0.0)[0]
    return [said[name] for name in names]


@pytest.mark.parametrize("waits", Waits)
def test_slot_goes_to_the_next_once(waits):
    queues, limit = make()
    unread, waiting = offer(queues, "unread", waits=waits), [offer(queues, n) for n in range(2)]
    assert queues.release_unread(unread, 0.1) == waiting[:1]
    assert queues.release_unread(unread, 0.2) == [], "known"
    assert queues.release_early(unread, 0.2) == []
    assert count(queues, "in_use", "unread", "released") == [1, 1, 1]
    assert queues.finished(unread, 9.0, 9.0) == []
    assert limit.samples == [], "its time was not the broker's"
    assert queues.finished(waiting[0], 9.0, 0.1) == waiting[1:]
    queues.finished(waiting[1], 9.0, 0.2)
    assert limit.samples == [0.1, 0.2]
    assert count(queues, "in_use", "unread", "lingering_polls", "lingering_acks") == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("waits", "gauge"), [(Waits.POLL, "lingering_polls"), (Waits.ACKS, "lingering_acks")]
)
def test_request_without_a_slot_lingers_no_more(waits, gauge):
    queues, limit = make(slots=4)
    unread = offer(queues, "unread", waits=waits)
    queues.release_early(unread, 0.6)
    assert count(queues, "in_use", gauge) == [0, 1]
    assert queues.release_unread(unread, 0.7) == []
    assert count(queues, "in_use", gauge, "unread", "released") == [0, 0, 1, 1]
    queues.finished(unread, 9.0, 9.0)
    assert limit.samples == []
    assert count(queues, "in_use", gauge, "unread") == [0, 0, 0]


def test_unread_acks_make_room_for_those_that_linger():
    queues, _ = make(slots=2, release_after_s=0.5)
    first, second = (offer(queues, n, waits=Waits.ACKS) for n in range(2))
    waiting = [offer(queues, n, 0.6) for n in "ab"]
    assert queues.turn(0.6).admitted == waiting[:1], "one may linger"
    assert queues.release_unread(first, 0.7) == waiting[1:], "the second one's slot"
    assert (first.holds_slot, second.holds_slot) == (False, False)
    assert count(queues, "in_use", "lingering_acks", "unread") == [2, 1, 1]


def test_unread_requests_at_their_bound_keep_their_slots():
    queues, _ = make(slots=3, unread=2)
    items = [offer(queues, n) for n in range(4)]
    for item in items[:3]:
        queues.release_unread(item, 0.1)
    assert count(queues, "in_use", "unread") == [2, 2]
    assert (items[2].holds_slot, items[3].state) == (True, State.ADMITTED)
    queues.finished(items[0], 0.2, None)
    queues.release_unread(items[2], 0.3)
    assert count(queues, "in_use", "unread") == [1, 2]


def test_unread_requests_hold_no_limit_at_the_floor():
    """`Queue.slots_at`: two that are long unanswered are taken for a disk that hangs."""
    seen = []

    class Looking(Recorded):
        floor = 1

        def slots_at(self, now_s, oldest_s=0.0):
            seen.append(oldest_s)
            return 4

    queues: Queues[Item] = Queues(QueueRule(data_queues=1), FixedLimit(2), lambda: Looking(4))
    stuck = [offer(queues, n) for n in range(2)]
    offer(queues, "late", 3.0)
    assert seen[-1] == 3.0
    for one in stuck:
        queues.release_unread(one, 3.0)
    seen.clear()
    for number in range(3):
        offer(queues, number, 3.0)
    assert max(seen) == 0.0


@pytest.mark.parametrize("state", [State.WAITING, State.DONE])
def test_only_admitted_requests_are_released(state):
    queues, _ = make()
    served, waiting = offer(queues, "served"), offer(queues, "waiting")
    if state is State.DONE:
        queues.cancel(waiting, 0.1)
    assert queues.release_unread(waiting, 0.1) == []
    assert waiting.state is state
    assert served.holds_slot
    assert count(queues, "unread") == [0]


def test_client_that_goes_away_leaves_no_trace():
    queues, _ = make()
    unread = offer(queues, "unread")
    queues.release_unread(unread, 0.1)
    assert queues.cancel(unread, 0.2) == []
    assert count(queues, "in_use", "unread", "lingering_polls", "cancelled") == [0, 0, 0, 1]


def test_an_answer_that_nobody_reads_is_one_for_those_who_wait():
    queues, _ = make(slots=1, max_wait_s=3.0)
    served = offer(queues, "unread")
    waiting = [offer(queues, number) for number in range(3)]
    for number in range(2):
        now_s = 2.0 * (number + 1)
        assert queues.release_unread(served, now_s) == waiting[number : number + 1]
        served = waiting[number]
    assert queues.turn(6.9).expired == [], "the last answer was three seconds before"
    assert queues.turn(7.1).expired == waiting[2:]
