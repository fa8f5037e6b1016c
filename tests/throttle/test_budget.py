"""Token bucket and deficit round-robin: conservation, shares, and the cost of a grant."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from throttle.budget import FairRule, FairShare, TokenBucket

MIB = 1 << 20


def test_full_at_first_and_earned_at_the_rate() -> None:
    bucket = TokenBucket(1000.0, 0.5, 1, now_s=10.0)
    assert bucket.refill(10.0) == 500
    bucket.charge(500)
    assert bucket.ready_at_s(200, 0.0, 10.0) == pytest.approx(10.2, abs=2e-3)
    assert bucket.refill(10.2) == pytest.approx(200)
    assert bucket.refill(99.0) == 500


def test_full_bucket_passes_a_larger_request() -> None:
    bucket = TokenBucket(1000.0, 0.5, 1, now_s=0.0)
    bucket.charge(10)
    assert bucket.ready_at_s(5000, 0.0, 0.0) == pytest.approx(0.009, abs=2e-3)
    bucket.charge(5000)
    assert bucket.refill(0.01) == pytest.approx(-4500)
    assert bucket.ready_at_s(1, 0.0, 0.01) == pytest.approx(4.51, abs=2e-3)


def test_no_rate_is_never() -> None:
    bucket = TokenBucket(0.0, 0.5, 100, now_s=0.0)
    assert bucket.ready_at_s(100, 0.0, 0.0) == 0.0
    bucket.charge(100)
    assert bucket.ready_at_s(100, 0.0, 0.0) == float("inf")


def test_giving_back_fills_at_most() -> None:
    bucket = TokenBucket(1000.0, 0.5, 1, now_s=0.0)
    bucket.charge(-1e9)
    assert bucket.refill(0.0) == 500


def test_slower_rate_keeps_its_own_burst() -> None:
    bucket = TokenBucket(1000.0, 0.5, 1, now_s=0.0)
    bucket.set_rate(100.0, 1.0)
    assert bucket.refill(1.0) == 50


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e3, 1e8),
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 50 * MIB)), min_size=1, max_size=60),
)
def test_granted_bytes_are_charged(rate: float, requests: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(rate, 0.1, 4096, now_s=0.0)
    now_s, granted, excess = 0.0, 0, 0.0
    for pause_s, size in requests:
        now_s = max(now_s + pause_s, bucket.ready_at_s(size, 0.0, now_s + pause_s))
        assert bucket.ready_at_s(size, 0.0, now_s) == now_s
        bucket.charge(size)
        granted += size
        excess = max(0.0, size - bucket.capacity_bytes)
        allowed = bucket.capacity_bytes + rate * now_s + excess
        assert granted <= allowed * (1 + 1e-9) + 1.0 * len(requests)


def serve(share: FairShare[tuple[str, int]], grants: int) -> Counter[str]:
    """Clients with one request at a time, each asking again as soon as it is served."""
    got: Counter[str] = Counter()
    for _ in range(grants):
        request = share.peek()
        assert request is not None
        assert share.peek() == request
        share.take(request)
        got[request[0]] += request[1]
        share.add(request[0], request, request[1])
    return got


def test_equal_clients_get_equal_bytes_whatever_they_ask() -> None:
    share: FairShare[tuple[str, int]] = FairShare(FairRule())
    sizes = {"small": 200_000, "odd": 700_001, "usual": MIB, "large": 5 * MIB}
    for client, size in sizes.items():
        for copy in range(8):
            share.add(client, (client, size - copy), size)
    got = serve(share, 4000)
    assert max(got.values()) < 1.05 * min(got.values())


def test_weights_hold_with_one_request_in_flight() -> None:
    rule = FairRule(weights=(("gold-*", 4.0), ("*-batch", 0.5)))
    share: FairShare[tuple[str, int]] = FairShare(rule)
    clients = {"gold-a": 4.0, "gold-batch": 4.0, "night-batch": 0.5, "x": 1.0, "y": 1.0}
    for client in clients:
        share.add(client, (client, MIB), MIB)
    got = serve(share, 4200)
    fair = sum(got.values()) / sum(clients.values())
    for client, weight in clients.items():
        assert got[client] == pytest.approx(fair * weight, rel=0.05)


def test_lone_client_gets_all() -> None:
    share: FairShare[tuple[str, int]] = FairShare(FairRule(weights=(("a", 0.01),)))
    share.add("a", ("a", 50 * MIB), 50 * MIB)
    assert serve(share, 20) == {"a": 1000 * MIB}


def test_absent_client_saves_nothing() -> None:
    share: FairShare[tuple[str, int]] = FairShare(FairRule())
    for client in ("a", "b"):
        share.add(client, (client, MIB), MIB)
    served = serve(share, 2)
    assert served == {"a": MIB, "b": MIB}
    share.remove(("b", MIB))
    serve(share, 500)
    share.add("b", ("b", MIB), MIB)
    got = serve(share, 20)
    assert abs(got["a"] - got["b"]) <= 2 * MIB


def test_debt_is_kept_while_away() -> None:
    share: FairShare[str] = FairShare(FairRule(quantum_bytes=100))
    share.add("a", "a1", 100)
    assert share.peek() == "a1"
    share.take("a1")
    share.charge("a", 300)
    for number in range(8):
        share.add("b", f"b{number}", 100)
    share.add("a", "a2", 100)
    order = []
    while (request := share.peek()) is not None:
        share.take(request)
        order.append(request)
    assert order.index("a2") == 4  # rounds until -300 is 100


def test_taken_out_of_turn_is_paid() -> None:
    share: FairShare[str] = FairShare(FairRule(quantum_bytes=100))
    for number in range(3):
        share.add("a", f"a{number}", 100)
        share.add("b", f"b{number}", 100)
    assert share.peek() == "a0"
    share.take("a2")
    order = []
    while (request := share.peek()) is not None:
        share.take(request)
        order.append(request)
    assert order == ["b0", "a0", "b1", "a1", "b2"]


def test_removed_and_added_again() -> None:
    share: FairShare[str] = FairShare(FairRule())
    share.add("a", "x", 10)
    with pytest.raises(ValueError, match="waits already"):
        share.add("a", "x", 10)
    assert share.remove("x")
    assert not share.remove("x")
    assert share.peek() is None
    share.add("a", "x", 10)
    assert share.peek() == "x"
    assert len(share) == 1


def test_clients_that_gave_up_leave_nothing_behind() -> None:
    share: FairShare[int] = FairShare(FairRule(idle_clients=2))
    for number in range(100):
        share.add(str(number), number, 1 << 30)
        share.add(f"other-{number}", -number - 1, 5)
        assert share.remove(number)
        assert share.remove(-number - 1)
    assert (len(share._active), len(share._now), len(share._next), len(share._idle)) == (0, 0, 0, 2)


def test_idle_clients_are_bounded() -> None:
    share: FairShare[str] = FairShare(FairRule(idle_clients=3))
    for number in range(10):
        share.charge(str(number), 5)
    assert len(share._idle) == 3


@pytest.mark.parametrize("weight", [0.0, 0.009, 100.1])
def test_weights_out_of_range(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        FairRule(weights=(("a", weight),))
    assert FairRule(weights=(("a", 0.01), ("b", 100.0))).weight_of("b") == 100.0


def test_grant_takes_few_turns() -> None:
    share: FairShare[tuple[str, int]] = FairShare(FairRule())
    for client in range(1000):
        for copy in range(20):
            share.add(str(client), (str(client), MIB - copy), MIB - copy)
    grants = 0
    while (request := share.peek()) is not None:
        share.take(request)
        grants += 1
    assert grants == 20_000
    assert share.turns <= 3 * grants
