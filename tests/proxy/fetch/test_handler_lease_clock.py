"""A lease that ends while a request is read serves nothing: the clock is read afterwards."""

from protocol import fetch_rows
from proxy.fetch import handler
from tests.proxy.cached_partition import World, build_fetch

LEASE_S = 1.0


async def test_lease_ended_during_reading_serves_nothing(monkeypatch):
    world = World()
    world.change("lease", world.clock_s + LEASE_S)
    read_s = 0.0

    def read_slowly(frame, most, ring):
        world.clock_s += read_s
        return fetch_rows.scan_request(frame, most, ring)

    monkeypatch.setattr(handler, "scan_request", read_slowly)
    world.receive(build_fetch(0))
    assert len(world.sent) == 1
    read_s = LEASE_S
    world.receive(build_fetch(3))
    assert len(world.sent) == 1
    assert world.broker.counters.fetch.record_bytes["hit", ""] > 0
    world.end()
