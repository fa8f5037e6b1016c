"""The whole throttle: disks that delay, samples, stale disks, counts."""

from dataclasses import replace

import pytest

from tests.kit.model_disk import NAME
from throttle.controller import ControllerRule
from throttle.disks import BusyRule, DiskCounters, DiskLimit
from throttle.throttle import Throttle, ThrottleRules
from throttle.tickets import DelayRule, DelayTicket, TicketKey

MIB = 1 << 20
RULES = ThrottleRules(busy=BusyRule(await_ms=0), queue=DelayRule(max_delay_s=60), stale_s=10.0)


def counters(ticks_ms: int) -> DiskCounters:
    return DiskCounters._make([8, 0, NAME, *[0] * 9, ticks_ms, 0])


def submit(
    throttle: Throttle, offset: int, now_s: float, disk: str | None = NAME, size: int = MIB
) -> DelayTicket:
    ticket = throttle.submit(TicketKey("c", "p", offset), "client", disk, size, now_s)
    assert isinstance(ticket, DelayTicket)
    return ticket


def saturated() -> Throttle:
    """The disk has been at full load for five seconds."""
    throttle = Throttle(RULES, [NAME], 0.0)
    for second in range(6):
        throttle.observe(NAME, counters(1000 * second), None, float(second))
        throttle.advance(float(second))
    return throttle


def fill(throttle: Throttle, now_s: float) -> DelayTicket:
    """Misses until one waits."""
    for offset in range(1000):
        ticket = submit(throttle, offset, now_s)
        if not ticket.granted:
            return ticket
    raise AssertionError("nothing waits")


def test_never_looked_at_never_delays() -> None:
    throttle = Throttle(RULES, [NAME], 0.0)
    assert all(submit(throttle, offset, 0.0, size=99 * MIB).granted for offset in range(50))
    found = throttle.statistics()
    assert (found.ungated, found.disks[NAME].sampled, found.disks[NAME].looks) == (50, False, 0)
    rule = RULES.controller
    assert (found.disks[NAME].target, found.disks[NAME].floor_bytes_s) == (
        rule.target,
        rule.floor_bytes_s,
    )
    assert throttle.next_due_s(0.0) is None


@pytest.mark.parametrize("disk", [None, "sdz"])
def test_other_disks_never_delay(disk: str | None) -> None:
    throttle = saturated()
    assert all(submit(throttle, offset, 5.0, disk).granted for offset in range(500))
    assert disk not in throttle.statistics().disks
    with pytest.raises(KeyError):
        throttle.observe("sdz", None, None, 5.0)


def test_busy_disk_delays() -> None:
    throttle = saturated()
    assert throttle.statistics().disks[NAME].queue.busy
    ticket = fill(throttle, 5.0)
    assert throttle.find(ticket.key) is ticket
    due_s = throttle.next_due_s(5.0)
    assert due_s is not None
    assert throttle.advance(due_s) == [ticket]
    throttle.done(ticket, 5)
    found = throttle.statistics()
    assert (found.waiting_requests, found.disks[NAME].queue.delayed) == (0, 1)


@pytest.mark.parametrize("how", ["vanished", "stale"])
def test_disk_that_is_not_seen_lets_go(how: str) -> None:
    throttle = saturated()
    for _ in range(200):
        fill_ticket = fill(throttle, 5.0)
        if how == "vanished":
            assert throttle.observe(NAME, None, None, 5.0) is None
            break
    now_s = 5.0 if how == "vanished" else 15.0
    assert throttle.next_due_s(5.0) is not None
    assert fill_ticket in throttle.advance(now_s)
    assert not throttle.statistics().disks[NAME].queue.busy
    assert not fill_ticket.overdue
    assert submit(throttle, 5000, now_s).disk is None
    found = throttle.statistics().disks[NAME]
    assert (found.sampled, found.missed_looks, found.stale) == (
        False,
        how == "vanished",
        how == "stale",
    )


def test_stale_disk_is_dropped_when_due() -> None:
    rules = ThrottleRules(busy=BusyRule(await_ms=0), stale_s=0.5)
    throttle = Throttle(rules, [NAME], 0.0)
    throttle.observe(NAME, counters(0), None, 0.0)
    throttle.observe(NAME, counters(1000), None, 1.0)
    submit(throttle, 1, 1.0, size=999 * MIB)
    waits = submit(throttle, 2, 1.0)
    assert not waits.granted
    assert throttle.advance(1.499) == []
    assert throttle.next_due_s(1.499) == 1.5
    assert throttle.advance(1.5) == [waits]


def test_seen_again_it_delays_again() -> None:
    throttle = saturated()
    throttle.observe(NAME, None, None, 6.0)
    for second in range(7, 10):
        throttle.observe(NAME, counters(1000 * second), None, float(second))
        throttle.advance(float(second))
    assert throttle.statistics().disks[NAME].queue.busy
    fill(throttle, 9.0)
    assert throttle.statistics().disks[NAME].sampled


def test_cancelled_and_closed() -> None:
    throttle = saturated()
    ticket = fill(throttle, 5.0)
    assert throttle.of_connection("c") == (ticket,)
    assert throttle.cancel(ticket)
    submit(throttle, 2000, 5.0, size=50 * MIB)
    assert throttle.cancel_connection("c") == 1
    assert throttle.statistics().waiting_bytes == 0


def test_other_rules_hold_at_once_and_lose_nothing() -> None:
    throttle = saturated()
    ticket = fill(throttle, 5.0)
    floor, ceiling = 64.0 * MIB, 64.0 * MIB
    controller = ControllerRule(0.3, floor, ceiling, floor)
    throttle.set_rules(replace(RULES, controller=controller), 5.0)
    found = throttle.statistics().disks[NAME]
    assert (found.target, found.controller.rate_bytes_s) == (0.3, floor)
    assert throttle.find(ticket.key) is ticket
    granted = throttle.advance(5.5)
    assert ticket in granted


def test_disks_that_are_looked_at_no_more_delay_nothing() -> None:
    throttle = saturated()
    ticket = fill(throttle, 5.0)
    throttle.forget_samples()
    assert throttle.advance(5.0) == [ticket]
    assert submit(throttle, 5000, 5.0, size=99 * MIB).granted
    assert not throttle.statistics().disks[NAME].sampled


def test_a_disk_that_is_added_delays_as_the_others() -> None:
    throttle = Throttle(RULES, [], 0.0)
    assert submit(throttle, 0, 0.0).granted
    throttle.add_disk(NAME, DiskLimit(0.0, 5000.0, "named"), 0.0)
    for second in range(6):
        throttle.observe(NAME, counters(1000 * second), None, float(second))
        throttle.advance(float(second))
    assert not fill(throttle, 5.0).granted
    throttle.add_disk(NAME, DiskLimit(), 5.0)
    statistics = throttle.statistics().disks[NAME]
    assert statistics.sampled and statistics.limit.requests_s == 5000.0, "it stays as it is"
