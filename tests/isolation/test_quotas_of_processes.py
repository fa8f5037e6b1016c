"""Quotas that several processes share: each has the whole rate, and pays for all."""

from __future__ import annotations

import pytest

from isolation.quotas import Quota, Quotas, QuotaUsage

RATE, PROCESSES, STEP_S = 1000.0, 4, 0.1


def build(quota: Quota) -> Quotas:
    return Quotas(lambda _key: quota)


def tell_all(processes: list[Quotas], now_s: float) -> None:
    """What `take_usage` and `learn_usage` do ten times a second."""
    told = [one.take_usage() for one in processes]
    for number, usage in enumerate(told):
        for other, each in enumerate(processes):
            if other != number:
                each.learn_usage(number, usage, now_s)


@pytest.mark.parametrize("busy", [1, 2, PROCESSES])
def test_the_rate_holds_for_all_together_whoever_asks(busy: int) -> None:
    processes = [build(Quota(fetch_bytes_per_s=RATE, burst_s=1.0)) for _ in range(PROCESSES)]
    fetched, now_s, seconds = 0, 0.0, 60.0
    while now_s < seconds:
        for one in processes[:busy]:
            for _ in range(3):
                if one.peek_delay_s(["c"], now_s) == 0:
                    one.charge("c", 50, now_s)
                    fetched += 50
        tell_all(processes, now_s)
        now_s += STEP_S
    assert fetched == pytest.approx(RATE * (seconds + 1), rel=0.05)


def test_bytes_in_flight_elsewhere_count_until_they_come_back_or_their_process_ends() -> None:
    one, other = (build(Quota(in_flight_bytes=100)) for _ in range(2))
    held = other.reserve(["c"], 80, 0.0)
    assert held is not None
    tell_all([one, other], 0.0)
    assert one.reserve(["c"], 30, 0.0) is None
    held.release()
    tell_all([one, other], 0.0)
    assert one.reserve(["c"], 30, 0.0) is not None
    one.learn_usage(7, {"c": QuotaUsage(0, 90)}, 0.0)
    assert one.reserve(["c"], 30, 0.0) is None
    one.forget_process(7)
    assert one.reserve(["c"], 30, 0.0) is not None


def test_what_was_told_is_told_once() -> None:
    one = build(Quota(fetch_bytes_per_s=RATE))
    one.charge("c", 10, 0.0)
    assert one.take_usage() == {"c": QuotaUsage(10, 0)}
    assert one.take_usage() == {}
