"""Limits by address: counts, tokens and what is remembered, at their bounds."""

import ipaddress

import pytest

from proxy.config.model import HELD_CONNECTIONS
from proxy.net import host_limits
from proxy.net.host_limits import BURST_S, LONGEST_DELAY_S, HostLimits

ONE, OTHER = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("192.0.2.2")
NET6 = ipaddress.ip_network("2001:db8::/32")


def open_at(limits, address, now):
    """Open and close a connection, unless it is too fast."""
    delay_s = limits.take_token(address, now)
    if not delay_s:
        limits.enter(address, now)
        limits.leave(address)
    return delay_s


def test_connections_are_counted_by_address():
    limits = HostLimits(2, 0)
    assert limits.is_active
    for _ in range(2):
        assert limits.has_room(ONE)
        limits.enter(ONE, 0.0)
    assert not limits.has_room(ONE) and limits.has_room(OTHER)
    limits.leave(ONE)
    assert limits.has_room(ONE)
    limits.leave(ONE)
    assert len(limits) == 0
    limits.set_limits(0, 0)
    assert not limits.is_active and limits.has_room(ONE)


def test_network_of_a_host_counts_as_one_address():
    limits = HostLimits(1, 0)
    limits.enter(NET6[1], 0.0)
    assert not limits.has_room(NET6[(1 << 64) - 1]) and limits.has_room(NET6[1 << 64])
    assert limits.has_room(ipaddress.ip_address("0.0.0.1"))


def test_rate_gives_a_burst_and_then_its_pace():
    limits = HostLimits(0, 2)
    burst = round(2 * BURST_S)
    assert [open_at(limits, ONE, 0.0) for _ in range(burst)] == [0.0] * burst
    assert open_at(limits, ONE, 0.0) == 0.5
    assert open_at(limits, OTHER, 0.0) == 0.0, "another address"
    assert open_at(limits, ONE, 0.25) == 0.25
    assert open_at(limits, ONE, 0.5) == 0.0
    assert 0 < open_at(limits, ONE, 0.5) <= LONGEST_DELAY_S
    assert [open_at(limits, ONE, 1000.0) for _ in range(burst + 1)].count(0.0) == burst


@pytest.mark.parametrize("keeps_one", [False, True])
def test_idle_addresses_are_forgotten_at_their_limit(monkeypatch, keeps_one):
    monkeypatch.setattr(host_limits, "IDLE_LIMIT", 3)
    limits = HostLimits(0, 1)
    limits.enter(ONE, 0.0)
    while not limits.take_token(ONE, 0.0):
        pass
    if not keeps_one:
        limits.leave(ONE)
    for number in range(50):
        assert open_at(limits, NET6[number << 64], 0.0) == 0.0
        assert len(limits) <= 3 + keeps_one
    assert (limits.take_token(ONE, 0.0) > 0) is keeps_one, "its connection is open"


def test_held_connections_have_a_limit():
    limits = HostLimits(0, 1)
    assert all(limits.begin_delay() for _ in range(HELD_CONNECTIONS))
    assert not limits.begin_delay() and limits.delayed == HELD_CONNECTIONS
    limits.end_delay()
    assert limits.begin_delay()
