"""Periodic work: transactions below the stored records are forgotten, and begun frames are tended."""

import asyncio

from proxy.janitor import Janitor
from tests.proxy.event_loop import until
from tests.proxy.followed_partition import QuietBroker, learn, stand_in, store
from tests.proxy.transactional_log import log_of
from tests.proxy.uncached_forebay import front

ENDS_AT = 1000
FRAME = b"\0\0\0\x10" + b"\0\x12\0\0" + b"\0\0\0\x07" + b"\xff\xff" + bytes(6)
"""Passed on as it is (ApiVersions)."""


def test_aborted_transactions_below_what_is_stored_are_forgotten():
    broker = QuietBroker(64 * 1024)
    partition = broker.follow()
    log = log_of(*(("data", 1), ("abort", 1)) * 40)
    partition.transactions.shown(0, 0, 0, 0.0)
    partition.transactions.observed(*log.read(0, len(log.entries)))
    learn(partition, ENDS_AT)
    janitor = Janitor(stand_in(broker), ())
    janitor.forget_transactions(0.0)
    assert partition.transactions.known_from == 0  # nothing was evicted
    for first in range(0, ENDS_AT, 10):
        store(broker, partition, first, first + 10)
    assert broker.cache.edges(partition.slot, 0).evicted_end >= 80
    partition.transactions.observed(b"", (), 80, ENDS_AT)
    janitor.forget_transactions(0.0)
    assert partition.transactions.known_from == broker.cache.edges(partition.slot, 0).evicted_end
    assert not partition.transactions.holds_any


def test_only_begun_frames_are_tended():
    async def scenario():
        async with front() as stand:
            listener = stand.forebay.listeners[0]
            janitor, loop = Janitor(stand.forebay.broker, [listener]), asyncio.get_running_loop()
            await until(lambda: len(listener.links) == 1)
            assert not listener.tended

            await loop.sock_sendall(stand.client, FRAME[:9])
            await until(lambda: listener.tended)
            janitor.tend_links(0.0)
            assert list(listener.tended) == [stand.link]
            await stand.send(FRAME[9:])
            janitor.tend_links(1.0)
            assert not listener.tended

    asyncio.run(scenario())


def test_begun_frame_must_end_in_time():
    async def scenario():
        async with front() as stand:
            listener, broker = stand.forebay.listeners[0], stand.forebay.broker
            timeout_s = broker.config.limits.frame_timeout_s
            janitor, loop = Janitor(broker, [listener]), asyncio.get_running_loop()

            await loop.sock_sendall(stand.client, FRAME[:2])
            await until(lambda: listener.tended)
            janitor.tend_links(0.0)
            await stand.send(FRAME[2:] + FRAME[:5])  # that one has ended, and another has begun
            janitor.tend_links(timeout_s + 1)
            janitor.tend_links(2 * timeout_s + 1)
            assert len(listener.links) == 1, "at its bound"
            janitor.tend_links(2 * timeout_s + 1.1)
            assert not listener.links
            assert not listener.tended
            assert broker.counters.clients.connection_errors == 1

    asyncio.run(scenario())
