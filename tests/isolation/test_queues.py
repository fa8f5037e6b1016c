"""Queues at their limits: slots, waiting, expiry, order keys, early release."""

import pytest

from isolation.classify import CONTROL
from isolation.limits import AdaptiveLimit, AdaptiveRule, FixedLimit
from isolation.queues import LONGEST_WAITS, QueueRule, Queues
from isolation.tickets import State, Waits
from tests.isolation.queued_item import Item


class Recorded(FixedLimit):
    """A fixed limit that remembers its samples."""

    def __init__(self, slots):
        super().__init__(slots)
        self.samples = []

    def sample(self, now_s, latency_s, in_use, ok):
        self.samples.append((latency_s, in_use, ok))


def make(slots=1, **rule):
    limits = []

    def new_limit():
        limits.append(Recorded(slots))
        return limits[-1]

    queues: Queues[Item] = Queues(QueueRule(**{"data_queues": 2, **rule}), FixedLimit(2), new_limit)
    return queues, limits


def offer(queues, name, queue=0, now_s=0.0, **more):
    """The item, which knows its state."""
    item = Item(name, queue, **more)
    assert queues.offer(item, now_s, item.order_key) is item.state
    return item


def names(items):
    return [item.name for item in items]


def test_next_request_waits_for_a_slot():
    queues, _ = make()
    first, second = offer(queues, 1), offer(queues, 2)
    assert (first.state, second.state) == (State.ADMITTED, State.WAITING)
    assert queues.finished(first, 0.1, 0.1) == [second]
    assert second.state is State.ADMITTED
    assert first.state is State.DONE


def test_clients_take_turns_however_many_requests_each_has():
    queues, _ = make(max_waiting=100)
    served = offer(queues, "in service")
    for number in range(20):
        offer(queues, f"crowd {number}", link="crowd")
    for number in range(2):
        offer(queues, f"good {number}", link="good")
    admitted = []
    for _ in range(6):
        (served,) = queues.finished(served, 0.1, 0.1)
        admitted.append(served.name)
    assert admitted == ["crowd 0", "good 0", "crowd 1", "good 1", "crowd 2", "crowd 3"]


def test_a_client_without_waiting_requests_has_no_turn():
    queues, _ = make()
    served = offer(queues, "in service")
    waiting = [offer(queues, name, link=name) for name in ("a", "b")]
    queues.cancel(waiting[0], 0.1)
    assert queues.finished(served, 0.1, 0.1) == waiting[1:]
    assert not queues.find(0).turns


def test_a_full_queue_touches_no_other():
    queues, _ = make(max_waiting=1)
    states = [offer(queues, n).state for n in range(3)]
    assert states == [State.ADMITTED, State.WAITING, State.REFUSED]
    assert offer(queues, "other", queue=1).state is State.ADMITTED
    assert offer(queues, "control", queue=CONTROL).state is State.ADMITTED


@pytest.mark.parametrize(("sizes", "last"), [((60, 40), State.WAITING), ((60, 41), State.REFUSED)])
def test_waiting_bytes_at_their_bound(sizes, last):
    queues, _ = make(max_waiting_bytes=100)
    offer(queues, "in service")
    states = [offer(queues, size, size_bytes=size).state for size in sizes]
    assert states == [State.WAITING, last]


def test_request_larger_than_the_limit_waits_alone():
    queues, _ = make(max_waiting_bytes=100)
    offer(queues, "in service")
    assert offer(queues, "large", size_bytes=1000).state is State.WAITING
    assert offer(queues, "small", size_bytes=1).state is State.REFUSED


def test_no_wait_at_all_refuses_at_once():
    queues, _ = make(max_wait_s=0)
    offer(queues, "in service")
    assert offer(queues, "late").state is State.REFUSED
    assert offer(queues, "acks=0", never_refused=True).state is State.WAITING


def test_unrefusable_request_waits_beyond_all_limits():
    queues, _ = make(max_waiting=1, max_waiting_bytes=10)
    first = offer(queues, "in service")
    waiting = [offer(queues, n, never_refused=True) for n in range(3)]
    assert {item.state for item in waiting} == {State.WAITING}
    assert queues.next_due_s(0.0) is None
    assert queues.turn(1e9).expired == []
    assert queues.finished(first, 1e9, None) == [waiting[0]]


def test_item_expires_when_due():
    queues, _ = make(max_wait_s=1.0)
    offer(queues, "in service")
    early, late = offer(queues, "early", now_s=0.0), offer(queues, "late", now_s=0.5)
    assert queues.next_due_s(0.5) == 1.0
    assert queues.turn(0.99).expired == []
    assert queues.turn(1.0).expired == [early]
    assert (early.state, late.state) == (State.EXPIRED, State.WAITING)
    assert queues.next_due_s(1.0) == 1.5


def test_answered_queue_expires_nothing():
    queues, _ = make(slots=2, max_wait_s=1.0)
    served = [offer(queues, "a"), offer(queues, "b")]
    waiting = [offer(queues, number) for number in range(3)]
    served += queues.finished(served.pop(0), 0.9, 0.9)
    assert queues.turn(1.0).expired == []
    assert queues.next_due_s(1.0) == 1.9
    assert queues.turn(1.9).expired == waiting[1:], "none came for so long"


def test_wait_expires_while_the_queue_is_answered():
    queues, _ = make(slots=1, max_wait_s=1.0)
    (served,) = [offer(queues, "first")]
    for number in range(20):
        offer(queues, number)
    for tenth in range(1, 11):
        now_s = tenth * 0.5
        assert queues.turn(now_s - 0.01).expired == []
        (served,) = queues.finished(served, now_s, 0.5)
    assert len(queues.turn(LONGEST_WAITS * queues.rule.max_wait_s).expired) == 10
    assert queues.statistics(5.0)[0]["waiting"] == 0


def test_dropped_request_is_no_answer():
    queues, _ = make(slots=2, max_wait_s=1.0)
    first = offer(queues, "first")
    offer(queues, "second")
    waiting = [offer(queues, number) for number in range(2)]
    queues.finished(first, 0.9, None)
    assert queues.turn(1.0).expired == waiting[1:]


def test_a_client_that_goes_away_leaves_no_trace():
    queues, _ = make()
    first, second, third = (offer(queues, n) for n in range(3))
    assert queues.cancel(second, 0.1) == []
    assert queues.cancel(first, 0.2) == [third]
    assert queues.cancel(first, 0.2) == []
    assert queues.cancel(third, 0.3) == []
    assert queues.statistics(0.3)[0] | {"admitted": 0, "cancelled": 0} == dict.fromkeys(
        queues.statistics(0.3)[0], 0
    ) | {"slots": 1, "slots_floor": 1}


def test_finishing_twice_is_a_mistake():
    queues, _ = make()
    item = offer(queues, 1)
    queues.finished(item, 0.1, 0.1)
    with pytest.raises(ValueError, match="done"):
        queues.finished(item, 0.2, 0.1)


def test_a_lane_keeps_its_order_across_queues():
    queues, _ = make()
    first = offer(queues, "other client's")
    offer(queues, "A1", order_key="c")
    waiting = offer(queues, "B1", queue=1, order_key="c")
    assert (waiting.state, waiting.queue) == (State.WAITING, 0), "it would overtake A1"
    assert offer(queues, "B of another", queue=1, order_key="d").state is State.ADMITTED
    (a1,) = queues.finished(first, 0.1, 0.1)
    (b1,) = queues.finished(a1, 0.2, 0.1)
    assert (a1.name, b1.name) == ("A1", "B1")
    assert offer(queues, "B2", queue=1, order_key="c").queue == 1, (
        "nothing of that order key waits any more"
    )


def test_order_key_is_free_when_its_items_left():
    queues, _ = make(max_wait_s=1.0)
    offer(queues, "in service")
    cancelled = offer(queues, "A1", order_key="c")
    offer(queues, "A2", order_key="c")
    queues.cancel(cancelled, 0.1)
    assert offer(queues, "B1", queue=1, order_key="c").queue == 0
    queues.turn(5.0)
    assert offer(queues, "B2", queue=1, order_key="c", now_s=5.0).state is State.ADMITTED


def test_long_polls_free_slots_without_a_sample():
    queues, limits = make(release_after_s=0.5)
    poll = offer(queues, "poll", waits=Waits.POLL)
    offer(queues, "next", never_refused=True)
    assert queues.next_due_s(0.0) == 0.5
    assert queues.turn(0.49).admitted == []
    assert names(queues.turn(0.5).admitted) == ["next"]
    assert queues.finished(poll, 30.0, 30.0) == []
    assert limits[0].samples == []


def test_request_that_does_not_poll_keeps_its_slot():
    queues, _ = make(release_after_s=0.5)
    slow = offer(queues, "slow")
    offer(queues, "next", never_refused=True)
    assert queues.turn(60.0).admitted == []
    assert queues.release_early(slow, 60.0) == []
    assert slow.holds_slot


def test_acks_all_wait_is_sampled_after_its_slot():
    queues, limits = make(release_after_s=0.5)
    item = offer(queues, "acks=all", waits=Waits.ACKS)
    queues.turn(0.6)
    assert (limits[0].samples, queues.statistics(0.6)[0]["in_use"]) == ([], 0)
    queues.finished(item, 3.0, 2.5)
    assert limits[0].samples == [(2.5, 0, True)]


def test_reads_and_polls_say_nothing_of_the_limit():
    queues, limits = make(release_after_s=0.5)
    read = offer(queues, "read", is_measured=False)
    poll = offer(queues, "poll", waits=Waits.POLL, is_measured=False)
    queues.finished(read, 3.0, 3.0)
    queues.finished(poll, 3.0, 3.0)
    assert limits[0].samples == []


def test_acks_all_waits_beyond_their_share_keep_slots():
    queues, _ = make(slots=2, release_after_s=0.5, lingering_acks_per_slot=1.0)
    items = [offer(queues, n, waits=Waits.ACKS, never_refused=True) for n in range(5)]
    assert names(queues.turn(0.5).admitted) == [2, 3]
    assert queues.turn(9.0).admitted == [], "two linger, which is the bound"
    assert queues.next_due_s(9.0) is None, "nothing is due that could not be done"
    admitted = queues.finished(items[0], 9.0, 9.0)
    assert names(admitted) == [4], "one lingers no more, so the next one may"
    assert queues.statistics(9.0)[0]["lingering_acks"] == 2


def test_polls_linger_up_to_their_bound():
    queues, _ = make(slots=2, release_after_s=0.5, lingering_polls=1)
    first, second = (offer(queues, n, waits=Waits.POLL) for n in range(2))
    queues.turn(0.5)
    assert (first.holds_slot, second.holds_slot) == (False, True)
    queues.finished(first, 1.0, None)
    assert not second.holds_slot


def test_a_slot_can_be_released_before_its_time():
    queues, _ = make()
    poll = offer(queues, "poll", waits=Waits.POLL)
    offer(queues, "next")
    assert names(queues.release_early(poll, 0.01)) == ["next"]
    assert queues.release_early(poll, 0.02) == []


@pytest.mark.parametrize(
    ("latency_s", "ok", "samples"),
    [(0.2, True, [(0.2, 1, True)]), (None, True, []), (None, False, [(3.0, 1, False)])],
)
def test_samples_are_of_service_and_of_drops(latency_s, ok, samples):
    queues, limits = make()
    queues.finished(offer(queues, 1, now_s=1.0), 4.0, latency_s, ok)
    assert limits[0].samples == samples


def test_requests_of_a_hanging_topic_are_refused():
    queues, _ = make()
    offer(queues, "in service")
    for item in ("hangs 1", "fine", "hangs 2"):
        offer(queues, item)
    offer(queues, "hangs, acks=0", never_refused=True)
    turn = queues.refuse_waiting(0, lambda item: item.name.startswith("hangs"), 0.1)
    assert (names(turn.expired), turn.admitted) == (["hangs 1", "hangs 2"], [])
    assert {item.state for item in turn.expired} == {State.REFUSED}
    said = queues.statistics(0.1)[0]
    assert (said["waiting"], said["waiting_bytes"], said["refused"]) == (2, 20, 2)


def test_load_counts_service_and_waiting():
    queues, _ = make()
    for n in range(3):
        offer(queues, n)
    assert (queues.load_of(0), queues.load_of(1)) == (3, 0)


def test_two_stuck_requests_lower_the_limit_in_time():
    rule = AdaptiveRule(floor=2, initial=6)
    queues: Queues[Item] = Queues(
        QueueRule(data_queues=1), FixedLimit(2), lambda: AdaptiveLimit(rule)
    )
    stuck_s = 0.25  # ten times the latency that is assumed
    first = offer(queues, "first", now_s=0.0)
    offer(queues, "second", now_s=0.1)
    slots = [
        queues.statistics(now_s)[0]["slots"]
        for now_s in (0.1, 0.2, 0.1 + stuck_s, 0.1 + stuck_s + 0.01)
    ]
    assert slots == [6, 6, 6, 2]
    queues.finished(first, 0.4, None)
    assert queues.statistics(0.4)[0]["slots"] == 6, "one alone may be an accident"
    offer(queues, "third", now_s=0.4)
    assert queues.statistics(0.64)[0]["slots"] == 6
    assert queues.statistics(0.66)[0]["slots"] == 2


@pytest.mark.parametrize("wrong", [{"data_queues": 0}, {"max_waiting": -1}, {"max_wait_s": -1.0}])
def test_rules_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="negative"):
        QueueRule(**wrong)


def set_rules(queues, slots, **rule):
    queues.set_rules(
        QueueRule(**{"data_queues": 2, **rule}), FixedLimit(2), lambda: FixedLimit(slots)
    )


def test_smaller_bounds_refuse_nobody_who_waits():
    queues, _ = make(slots=1, max_waiting=3, max_waiting_bytes=100)
    served, *waiting = [offer(queues, n) for n in range(4)]
    set_rules(queues, 1, max_waiting=1, max_waiting_bytes=10)
    assert queues.turn(0.1).expired == []
    assert offer(queues, "new", now_s=0.1).state is State.REFUSED
    assert [ticket.state for ticket in waiting] == [State.WAITING] * 3
    for ticket in waiting:
        assert queues.finished(served, 0.2, 0.1) == [ticket]
        served = ticket
    assert offer(queues, "new", now_s=0.2).state is State.WAITING


def test_who_waits_keeps_the_time_that_held_when_it_came():
    queues, _ = make(slots=1, max_wait_s=3.0)
    offer(queues, "served")
    waiting = offer(queues, "waits")
    set_rules(queues, 1, max_wait_s=1.0)
    assert queues.turn(2.9).expired == []
    assert queues.next_due_s(2.9) == pytest.approx(2.9, abs=3.0)
    assert queues.turn(3.0).expired == [waiting]
    later = offer(queues, "later", now_s=3.0)
    assert queues.turn(4.0).expired == [later]


def test_fewer_slots_take_none_away():
    queues, _ = make(slots=3)
    served = [offer(queues, n) for n in range(3)]
    set_rules(queues, 1)
    waiting = offer(queues, "waits")
    assert (waiting.state, queues.statistics(0.0)[0]["in_use"]) == (State.WAITING, 3)
    assert queues.finished(served[0], 0.1, 0.1) == []
    assert queues.finished(served[1], 0.1, 0.1) == []
    assert queues.finished(served[2], 0.1, 0.1) == [waiting]


def test_more_slots_admit_who_waits():
    queues, _ = make(slots=1)
    _, second, third, fourth = [offer(queues, n) for n in range(4)]
    set_rules(queues, 3)
    assert queues.turn(0.1).admitted == [second, third]
    assert fourth.state is State.WAITING


def test_an_earlier_release_holds_for_who_has_a_slot():
    queues, _ = make(slots=1, release_after_s=10.0)
    offer(queues, "poll", waits=Waits.POLL)
    waiting = offer(queues, "waits")
    set_rules(queues, 1, release_after_s=0.5)
    assert queues.turn(0.4).admitted == []
    assert queues.turn(0.5).admitted == [waiting]


def test_the_number_of_queues_stays():
    queues, _ = make()
    with pytest.raises(ValueError, match="cannot change"):
        set_rules(queues, 1, data_queues=3)
