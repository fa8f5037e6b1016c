"""A lease that ends while a request is read serves nothing: the clock is read afterwards."""

from tests.proxy.cached_partition import World, build_fetch

LEASE_S = 1.0


async def test_lease_ended_during_reading_serves_nothing(monkeypatch):
    world = World()
    world.change("lease", world.clock_s + LEASE_S)
    fetches = type(world.link.handlers.fetches)
    read_again, read_s = fetches.read_again, 0.0

    def read_slowly(self, frame):
        world.clock_s += read_s
        return read_again(self, frame)

    monkeypatch.setattr(fetches, "read_again", read_slowly)
    world.receive(build_fetch(0))
    assert len(world.sent) == 1
    read_s = LEASE_S
    world.receive(build_fetch(3))
    assert len(world.sent) == 1
    assert world.broker.counters.fetch.record_bytes["hit", ""] > 0
    world.end()
