"""Tickets: granted in turn within the rate, overdue, refused at limits, cancelled, found again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle.budget import FairRule
from throttle.delayed_queue import DelayedQueue
from throttle.tickets import DelayRefused, DelayRule, DelayTicket, TicketKey

MIB = 1 << 20
RULE = DelayRule(
    max_delay_s=30.0, waiting_requests=5, waiting_bytes=10 * MIB, burst_s=0.0, burst_floor_bytes=MIB
)


def key(offset: int, connection: str = "c1") -> TicketKey:
    return TicketKey(connection, ("topic", 0), offset)


def busy_queue(rule: DelayRule = RULE, rate: float = MIB) -> DelayedQueue:
    """One disk, busy, at `rate`, whose bucket is empty."""
    queue = DelayedQueue(rule, 0.0)
    queue.set_disk("sda", True, rate, 0.0)
    assert submit(queue, -1, size=rule.burst_floor_bytes).granted
    return queue


def submit(
    queue: DelayedQueue, offset: int, client: str = "a", size: int = MIB, now_s: float = 0.0
) -> DelayTicket:
    ticket = queue.submit(key(offset), client, "sda", size, now_s)
    assert isinstance(ticket, DelayTicket)
    return ticket


def test_waits_for_its_turn_exactly() -> None:
    queue = busy_queue()
    tickets = [submit(queue, offset) for offset in range(3)]
    for second, ticket in enumerate(tickets, 1):
        due_s = queue.next_due_s(second - 1.0)
        assert due_s is not None and due_s == pytest.approx(second, abs=1e-4)
        assert queue.advance(due_s - 0.01) == []
        assert queue.advance(due_s) == [ticket]
        assert ticket.delay_s == pytest.approx(second, abs=1e-4)
    assert queue.next_due_s(5.0) is None
    counts = queue.statistics().by_disk["sda"]
    assert (counts.granted, counts.delayed, counts.waiting_requests, counts.waiting_bytes) == (
        4,
        3,
        0,
        0,
    )
    assert (counts.delay_sum_s, counts.delay_max_s) == (
        pytest.approx(6, abs=0.01),
        pytest.approx(3, abs=0.01),
    )


def test_idle_disk_grants_up_to_the_surge() -> None:
    queue = DelayedQueue(replace(RULE, surge_s=4.0, in_flight_s=10.0), 0.0)
    queue.set_disk("sda", False, MIB, 0.0)
    assert [submit(queue, offset).granted for offset in range(6)] == [True] * 5 + [
        False
    ]  # the bucket, and four
    queue.set_disk("sda", False, MIB, 0.001)  # was looked at: it bore that
    assert [ticket.key.offset for ticket in queue.advance(0.001)] == [5]


def test_reads_in_flight_are_limited_on_idle_disks() -> None:
    queue = DelayedQueue(replace(RULE, in_flight_s=2.5, surge_s=100.0), 0.0)
    queue.set_disk("sda", False, MIB, 0.0)
    tickets = [submit(queue, offset) for offset in range(4)]
    assert [ticket.granted for ticket in tickets] == [True, True, False, False]
    assert queue.next_due_s(0.5) == pytest.approx(RULE.late_s)
    assert queue.advance(0.5) == []
    queue.done(tickets[0], MIB)
    assert queue.next_due_s(0.5) == 0.5
    assert queue.advance(0.5) == [tickets[2]]


def test_one_read_is_always_in_flight() -> None:
    queue = DelayedQueue(replace(RULE, in_flight_s=0.001, surge_s=1e6), 0.0)
    queue.set_disk("sda", False, 1.0, 0.0)
    first, second = submit(queue, 0, size=64 * MIB), submit(queue, 1, size=1)
    assert (first.granted, second.granted) == (True, False)
    queue.done(first, 0)
    assert queue.advance(0.0) == [second]


def test_slow_client_does_not_block_the_disk() -> None:
    queue = DelayedQueue(replace(RULE, in_flight_s=0.001, surge_s=1e6), 0.0)
    queue.set_disk("sda", False, MIB, 0.0)
    slow, other = submit(queue, 0), submit(queue, 1)
    assert queue.advance(RULE.late_s - 0.01) == []
    assert queue.advance(RULE.late_s) == [other]
    queue.done(slow, MIB)  # counted once
    third = submit(queue, 2, now_s=RULE.late_s)
    assert not third.granted
    queue.cancel(other)  # its connection is closed
    assert queue.advance(RULE.late_s) == [third]


def test_busy_disk_owes_only_reads_in_flight() -> None:
    queue = DelayedQueue(replace(RULE, surge_s=4.0, in_flight_s=10.0), 0.0)
    queue.set_disk("sda", False, MIB, 0.0)
    tickets = [submit(queue, offset) for offset in range(5)]  # a debt of four
    for ticket in tickets[:3]:
        queue.done(ticket, MIB)
    queue.set_disk("sda", True, MIB, 0.0)
    submit(queue, 9)
    assert queue.next_due_s(0.0) == pytest.approx(3.0, abs=1e-3)  # two in flight, and its own
    assert queue.statistics().by_disk["sda"].in_flight_bytes == 2 * MIB


def test_becomes_idle_while_some_wait() -> None:
    queue = busy_queue(rate=1.0)
    submit(queue, 1)
    assert queue.advance(1.0) == []
    queue.set_disk("sda", False, 10.0 * MIB, 2.0)
    assert len(queue.advance(2.0)) == 1


def test_overdue_is_released_and_charged() -> None:
    queue = busy_queue(rate=1.0)
    ticket = submit(queue, 1)
    assert queue.advance(29.9) == []
    assert queue.advance(30.0) == [ticket]
    assert ticket.overdue
    assert queue.statistics().by_disk["sda"].overdue == 1
    queue.set_disk("sda", True, MIB, 31.0)
    submit(queue, 2, now_s=31.0)
    assert queue.next_due_s(31.0) == pytest.approx(33.0, abs=0.01)  # the debt first


def test_unknown_disks_never_delay() -> None:
    queue = DelayedQueue(RULE, 0.0)
    for disk in (None, "sdz"):
        ticket = queue.submit(key(1), "a", disk, 99 * MIB, 5.0)
        assert isinstance(ticket, DelayTicket)
        assert (ticket.granted, ticket.disk, ticket.delay_s) == (True, None, 0.0)
        queue.done(ticket, 5)
        assert not queue.cancel(ticket)
    assert queue.statistics().ungated == 2


def test_free_ticket_has_no_disk_and_no_count() -> None:
    queue = busy_queue(rate=1.0)
    ticket = DelayTicket.build_free(key(1), "a", 99 * MIB, 5.0)
    assert (ticket.granted, ticket.disk, ticket.delay_s) == (True, None, 0.0)
    assert not queue.cancel(ticket)
    queue.done(ticket, 7)
    found = queue.statistics()
    assert (found.ungated, found.by_disk["sda"].done_bytes, ticket.finished) == (0, 0, True)


def test_dropped_disk_lets_go() -> None:
    queue = busy_queue(rate=1.0)
    ticket = submit(queue, 1)
    queue.drop_disk("sda")
    assert queue.next_due_s(3.0) == 3.0
    assert queue.advance(3.0) == [ticket]
    assert not ticket.overdue
    assert submit(queue, 2).disk is None
    queue.set_disk("sda", True, 1.0, 4.0)
    assert not submit(queue, 3, now_s=4.0).granted


def test_requests_are_refused_at_the_bound() -> None:
    queue = busy_queue()
    for offset in range(5):
        assert not submit(queue, offset, size=10).granted
    assert queue.submit(key(9), "b", "sda", 1, 0.0) == DelayRefused("requests")
    assert submit(queue, 4) is queue.find(key(4))  # waits already: not one more
    counts = queue.statistics().by_disk["sda"]
    assert (counts.refused_requests, counts.waiting_requests) == (1, 5)


def test_bytes_are_refused_at_the_bound() -> None:
    queue = busy_queue()
    submit(queue, 1, size=6 * MIB)
    submit(queue, 2, size=4 * MIB)
    assert queue.submit(key(3), "b", "sda", 1, 0.0) == DelayRefused("bytes")
    assert queue.statistics().by_disk["sda"].refused_bytes == 1


def test_larger_than_the_bound_waits_alone() -> None:
    queue = busy_queue()
    assert not submit(queue, 1, size=50 * MIB).granted
    assert queue.submit(key(2), "b", "sda", 1, 0.0) == DelayRefused("bytes")
    assert [ticket.key.offset for ticket in queue.advance(1.001)] == [
        1
    ]  # a full bucket, and a debt
    submit(queue, 3, now_s=1.001)
    assert queue.advance(30.0) == []


def test_disks_have_separate_room() -> None:
    queue = busy_queue()
    for offset in range(5):
        submit(queue, offset)
    queue.set_disk("sdb", True, MIB, 0.0)
    assert isinstance(queue.submit(key(7), "a", "sdb", 9 * MIB, 0.0), DelayTicket)
    assert isinstance(queue.submit(key(8), "a", "sdb", 9 * MIB, 0.0), DelayTicket)


def test_cancel() -> None:
    queue = busy_queue()
    first, second = submit(queue, 1), submit(queue, 2)
    assert queue.cancel(first)
    assert not queue.cancel(first)
    assert queue.find(key(1)) is None
    assert queue.advance(1.0 + 1e-3) == [second]
    assert not queue.cancel(second)  # is done, with nothing: the charge is given back
    assert submit(queue, 3, now_s=1.001).granted
    assert queue.statistics().by_disk["sda"].cancelled == 1
    assert queue.statistics().deadlines == 0


def test_connection_closes() -> None:
    queue = busy_queue()
    for offset in range(3):
        queue.submit(key(offset, f"c{offset % 2}"), "a", "sda", MIB, 0.0)
    assert len(queue.of_connection("c0")) == 2
    assert queue.cancel_connection("c0") == 2
    assert queue.cancel_connection("c0") == 0
    assert len(queue) == 1


def test_actual_size_corrects_the_charge() -> None:
    queue = DelayedQueue(RULE, 0.0)
    queue.set_disk("sda", True, MIB, 0.0)
    small = submit(queue, 1)
    queue.done(small, MIB // 4)
    queue.done(small, 99 * MIB)  # once only
    submit(queue, 2)
    assert queue.next_due_s(0.0) == pytest.approx(0.25, abs=1e-3)
    counts = queue.statistics().by_disk["sda"]
    assert (counts.done_bytes, counts.in_flight_requests) == (MIB // 4, 0)


def test_negative_size_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="size"):
        busy_queue().submit(key(1), "a", "sda", -1, 0.0)


def test_weights_hold_through_the_queue() -> None:
    rule = replace(
        RULE, waiting_requests=100, waiting_bytes=1 << 40, fair=FairRule(weights=(("gold*", 3.0),))
    )
    queue = busy_queue(replace(rule, max_delay_s=1e6))
    got = dict.fromkeys(("gold", "a", "b"), 0)
    for number, client in enumerate(got):
        submit(queue, number, client)
    now_s, offset = 0.0, 100
    while now_s < 500:
        due_s = queue.next_due_s(now_s)
        assert due_s is not None
        now_s = due_s
        for ticket in queue.advance(now_s):
            got[ticket.client_id] += 1
            offset += 1
            submit(queue, offset, ticket.client_id, now_s=now_s)
    assert got == {
        "gold": pytest.approx(300, rel=0.05),
        "a": pytest.approx(100, rel=0.05),
        "b": pytest.approx(100, rel=0.05),
    }


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "cancel", "advance", "done", "busy", "idle", "drop"]),
            st.integers(0, 3 * MIB),
        ),
        max_size=60,
    )
)
def test_each_ticket_leaves_once(steps: list[tuple[str, int]]) -> None:
    queue, now_s = DelayedQueue(RULE, 0.0), 0.0
    queue.set_disk("sda", True, MIB, 0.0)
    waiting: dict[int, DelayTicket] = {}
    granted: list[DelayTicket] = []
    for number, (what, amount) in enumerate(steps):
        if what == "submit":
            ticket = queue.submit(key(number), f"client-{amount % 3}", "sda", amount, now_s)
            if isinstance(ticket, DelayTicket):
                (granted.append(ticket) if ticket.granted else waiting.update({number: ticket}))
        elif what == "cancel" and waiting:
            assert queue.cancel(waiting.pop(sorted(waiting)[amount % len(waiting)]))
        elif what == "done" and granted:
            queue.done(granted[amount % len(granted)], amount)
        elif what == "advance":
            now_s += amount / MIB
            for ticket in queue.advance(now_s):
                granted.append(waiting.pop(ticket.key.offset))
            assert all(now_s - ticket.submitted_s < 30.02 for ticket in waiting.values())
        elif what == "drop":
            queue.drop_disk("sda")
        elif what in ("busy", "idle"):
            queue.set_disk("sda", what == "busy", amount + 1.0, now_s)
        counts = queue.statistics().by_disk["sda"]
        assert len(queue) == counts.waiting_requests == len(waiting) <= RULE.waiting_requests
        assert counts.waiting_bytes == sum(ticket.size_bytes for ticket in waiting.values())
        assert (queue.next_due_s(now_s) is None) == (not waiting)
    queue.drop_disk("sda")
    assert len(queue.advance(now_s)) == len(waiting)
    assert queue.statistics().deadlines == 0


def test_smaller_bounds_refuse_only_further_misses() -> None:
    queue = busy_queue()
    tickets = [submit(queue, offset) for offset in range(5)]
    queue.set_rule(replace(RULE, waiting_requests=2, waiting_bytes=2 * MIB))
    assert queue.submit(key(9), "a", "sda", MIB, 0.0) == DelayRefused("requests")
    for second, ticket in enumerate(tickets, 1):
        assert queue.advance(second + 0.001) == [ticket]
    submit(queue, 10, now_s=5.002)
    submit(queue, 11, now_s=5.002)
    assert queue.submit(key(12), "a", "sda", MIB, 5.002) == DelayRefused("requests")


def test_a_shorter_longest_delay_holds_for_further_misses() -> None:
    queue = busy_queue(rate=1.0)
    early = submit(queue, 0)
    queue.set_rule(replace(RULE, max_delay_s=1.0))
    late = submit(queue, 1)
    assert queue.advance(1.5) == [late]
    assert not early.granted
    assert queue.advance(31.0) == [early]


def test_other_weights_share_by_them_from_the_next_round() -> None:
    queue = busy_queue(replace(RULE, waiting_requests=100, waiting_bytes=1000 * MIB))
    for offset in range(20):
        submit(queue, offset, "a")
        submit(queue, 100 + offset, "b")
    queue.set_rule(
        replace(RULE, waiting_requests=100, fair=FairRule(weights=(("a", 3.0), ("b", 1.0))))
    )
    granted = [one.client_id for second in range(1, 17) for one in queue.advance(second + 0.001)]
    assert len(granted) >= 15
    assert 10 <= granted.count("a") <= 13


def test_another_rate_needs_no_look() -> None:
    queue = busy_queue(rate=MIB / 8)
    ticket = submit(queue, 0)
    queue.set_rate("sda", MIB / 4, 0.0)
    assert queue.advance(3.9) == []
    assert queue.advance(4.001) == [ticket]
    queue.set_rate("sdz", 1.0, 5.0)
    assert list(queue.statistics().by_disk) == ["sda"]
