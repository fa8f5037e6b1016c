"""Quotas at their limits: bytes in flight, fetched bytes per second, the table of keys."""

import pytest

from isolation.quotas import OVERFLOW, Quota, Quotas

IN_FLIGHT = Quota(in_flight_bytes=100)
RATE = Quota(fetch_bytes_per_s=1000.0, burst_s=2.0)


def make(quota, max_keys=10):
    return Quotas(lambda _key: quota, max_keys)


def test_bytes_in_flight_up_to_the_bound():
    quotas = make(IN_FLIGHT)
    held = quotas.reserve(["a"], 60, 0.0)
    assert quotas.reserve(["a"], 41, 0.0) is None
    assert quotas.reserve(["a"], 40, 0.0) is not None
    assert quotas.reserve(["b"], 100, 0.0) is not None, "another key's are its own"
    held.release()
    held.release()
    assert quotas.reserve(["a"], 60, 0.0) is not None
    assert quotas.reserve(["a"], 1, 0.0) is None


def test_a_request_larger_than_the_quota_passes_alone():
    quotas = make(IN_FLIGHT)
    large = quotas.reserve(["a"], 1000, 0.0)
    assert large is not None
    assert quotas.reserve(["a"], 1, 0.0) is None
    large.release()
    assert quotas.reserve(["a"], 1, 0.0) is not None


def test_several_keys_are_reserved_all_or_none():
    quotas = make(IN_FLIGHT)
    quotas.reserve(["full"], 100, 0.0)
    assert quotas.reserve(["free", "full"], 50, 0.0) is None
    assert quotas.reserve(["free"], 100, 0.0) is not None


def test_fetch_is_charged_and_waits_for_debt():
    quotas = make(RATE)
    assert quotas.peek_delay_s(["a"], 0.0) == 0
    quotas.charge("a", 2000, 0.0)
    assert quotas.peek_delay_s(["a"], 0.0) == 0, "the burst"
    quotas.charge("a", 5000, 0.0)
    assert quotas.peek_delay_s(["a"], 0.0) == 5
    assert quotas.peek_delay_s(["b", "a"], 4.0) == pytest.approx(1)
    assert quotas.peek_delay_s(["a"], 5.0) == 0


def test_debt_of_any_key_is_known():
    quotas = make(RATE, max_keys=20)
    for number in range(20):
        quotas.charge(f"paid-{number}", 2000, 0.0)
    assert not quotas.owes(0.0), "the burst"
    quotas.charge("a", 3000, 0.0)
    quotas.charge("paid-0", 5000, 0.0)
    assert quotas.owes(0.0)
    assert quotas.owes(4.9), "paid-0 has still to pay, a has paid"
    assert not quotas.owes(5.0)
    quotas.charge("paid-0", 7001, 5.0)
    assert quotas.owes(10.0)


def test_debt_of_the_common_account_counts():
    quotas = make(RATE, max_keys=1)
    quotas.charge("a", 1000, 0.0)
    for number in range(5):
        quotas.charge(f"flood-{number}", 1000, 0.0)
    assert quotas.owes(2.9)
    assert not quotas.owes(3.0)


def test_the_rate_is_met_in_the_long_run():
    quotas, now_s, fetched = make(RATE), 0.0, 0
    while now_s < 100:
        delay_s = quotas.peek_delay_s(["a"], now_s)
        if delay_s:
            now_s += delay_s
            continue
        quotas.charge("a", 700, now_s)
        fetched += 700
        now_s += 0.01
    assert fetched == pytest.approx(100 * 1000, rel=0.05)


def test_bucket_holds_its_burst_at_most():
    quotas = make(RATE)
    quotas.charge("a", 0, 0.0)
    quotas.charge("a", 2001, 1e6)
    assert quotas.peek_delay_s(["a"], 1e6) == pytest.approx(0.001)
    assert quotas.peek_delay_s(["a"], 1e6 - 5) == pytest.approx(0.001)


def test_a_key_without_a_quota_has_no_account():
    quotas = make(Quota())
    quotas.charge("a", 10**9, 0.0)
    assert quotas.peek_delay_s(["a"], 0.0) == 0
    assert quotas.reserve(["a"], 10**9, 0.0) is not None
    assert quotas.statistics() == {"keys": 0, "overflows": 0, "refused": 0, "delayed": 0}


def test_idle_keys_make_room_for_newcomers():
    quotas = make(RATE, max_keys=2)
    quotas.charge("a", 1000, 0.0)
    quotas.charge("b", 1000, 0.0)
    quotas.charge("c", 1000, 1.0)
    assert quotas.statistics()["overflows"] == 0
    assert quotas.statistics()["keys"] <= 2


def test_new_keys_beyond_the_limit_share_an_account():
    asked = []

    def quota_of(key):
        asked.append(key)
        return RATE

    quotas = Quotas(quota_of, max_keys=1)
    quotas.charge("a", 10_000, 0.0)
    for number in range(10):
        quotas.charge(f"flood-{number}", 300, 0.0)
    assert quotas.peek_delay_s(["flood-99"], 0.0) == pytest.approx(1)
    assert quotas.statistics()["keys"] == 1
    assert asked.count(OVERFLOW) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"in_flight_bytes": 0},
        {"fetch_bytes_per_s": 0.0},
        {"fetch_bytes_per_s": 1.0, "burst_s": 0.0},
    ],
)
def test_quotas_that_let_nothing_through_are_refused(wrong):
    with pytest.raises(ValueError, match="positive"):
        Quota(**wrong)


def test_a_smaller_quota_keeps_what_is_reserved():
    quotas = make(IN_FLIGHT)
    held = quotas.reserve(["a"], 90, 0.0)
    quotas.set_quotas(lambda _key: Quota(in_flight_bytes=50), 0.0)
    assert quotas.reserve(["a"], 1, 0.0) is None, "new work waits"
    held.release()
    assert quotas.reserve(["a"], 50, 0.0) is not None
    assert quotas.reserve(["a"], 1, 0.0) is None


def test_another_rate_keeps_the_debt():
    quotas = make(RATE)
    quotas.charge("a", 4000, 0.0)  # 2000 of the burst, 2000 owed
    quotas.set_quotas(lambda _key: Quota(fetch_bytes_per_s=500.0), 0.0)
    assert quotas.peek_delay_s(["a"], 0.0) == 4
    assert quotas.owes(0.0)


def test_without_a_quota_nothing_waits_and_nothing_is_lost():
    quotas = make(Quota(in_flight_bytes=100, fetch_bytes_per_s=10.0))
    held = quotas.reserve(["a"], 100, 0.0)
    quotas.charge("a", 1000, 0.0)
    quotas.set_quotas(lambda _key: Quota(), 0.0)
    assert quotas.peek_delay_s(["a"], 0.0) == 0
    assert not quotas.owes(0.0)
    assert quotas.reserve(["a"], 1000, 0.0) is not None
    quotas.set_quotas(lambda _key: IN_FLIGHT, 0.0)
    assert quotas.reserve(["a"], 1, 0.0) is None, "what is in flight still counts"
    held.release()


def test_the_shared_account_of_newcomers_gets_the_new_quota():
    quotas = make(IN_FLIGHT, max_keys=1)
    quotas.reserve(["a"], 10, 0.0)
    quotas.reserve(["b"], 10, 0.0)
    quotas.set_quotas(lambda _key: Quota(in_flight_bytes=15), 0.0)
    assert quotas.reserve(["c"], 6, 0.0) is None
    assert quotas.reserve(["c"], 5, 0.0) is not None
