"""A response from memory to a stalled client: its heap bytes are charged and returned."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.header import RequestHeader
from proxy.app import Forebay
from proxy.config.load import load
from proxy.fetch.response import build_answer
from proxy.fetch.services import ClientFetch
from proxy.fetch.sessions.context import open_fetch
from proxy.net.client_connection import ClientConnection
from proxy.partitions.readable import PartitionStatus, ReadState
from tests.kit.cache_batches import build_batch, insert
from tests.proxy import session_messages
from tests.proxy.event_loop import until
from tests.proxy.followed_partition import LEADERS, known, stand_in

MIB = 1 << 20
BATCH_BYTES = 300_000
VERSION = 12


class Transport:
    """A socket whose peer reads when it is told to."""

    def __init__(self):
        self.sent = bytearray()
        self.protocol: Any = None
        self.reads = False

    def write(self, data):
        self.sent += data
        if not self.reads:
            self.protocol.pause_writing()

    def writelines(self, buffers):
        self.write(b"".join(buffers))

    def drain(self):
        """All is read, what follows too."""
        self.reads = True
        self.protocol.resume_writing()

    def set_write_buffer_limits(self, **_limits):
        pass

    def get_extra_info(self, _name):
        return ("played", 1)

    def pause_reading(self):
        pass

    resume_reading = close = abort = pause_reading


class Setting:
    """One slow client before 16 MiB of memory; `fetch` answers one more of its requests from there."""

    def __init__(self, directory):
        path = directory / "forebay.json"
        listener = {"listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}
        cache = {"size": "16MiB", "directory": ""}
        path.write_text(json.dumps({"listeners": [listener], "cache": cache}))
        self.forebay = Forebay(load(path, {}).config)
        self.broker = self.forebay.broker
        self.broker.topics.learn("orders", bytes(range(16)), LEADERS)
        self.partition = known(
            self.broker.partitions.follow(known(self.broker.topics.find("orders")), 0)
        )
        self.link = ClientConnection(self.forebay.listeners[0], 1)
        self.link.handlers.authorization = SimpleNamespace(used=lambda *_: None, close=lambda: None)
        self.transport = Transport()
        self.transport.protocol = self.link.framed
        self.link.framed.connection_made(stand_in(self.transport))
        self.end = 0
        self.write(1)

    def write(self, batches):
        for offset in range(self.end, self.end + batches):
            insert(self.broker.cache, self.partition.slot, build_batch(offset, size=BATCH_BYTES))
        self.end += batches
        self.partition.tail = self.end
        self.partition.leader_state.learn(0, self.end, self.end, 0, 1e9)

    def fetch(self, offset):
        one = session_messages.asked("orders", 0, offset, max_bytes=MIB)
        request = session_messages.fetch((0, -1), one)
        context = open_fetch(self.broker.sessions, request, VERSION, None, 0.0)
        head = RequestHeader(1, VERSION, 7, "slow", 0)
        fetch = ClientFetch(self.link, head, request, context, 0, 0.0)
        build_answer(
            fetch, [PartitionStatus(one, self.partition, ReadState.READABLE, "", self.end)]
        )

    @property
    def pinned_bytes(self):
        return self.broker.cache.statistics().pinned_bytes


@pytest.fixture
def setting(tmp_path):
    async def make():
        return Setting(tmp_path)

    with asyncio.Runner() as runner:
        setting = runner.run(make())
        setting.run = runner.run
        yield setting
        runner.run(setting.forebay.stop())


def test_waiting_response_is_free_until_eviction(setting):
    setting.fetch(0)
    setting.fetch(0)
    charged = setting.broker.responses
    assert setting.pinned_bytes > 0 == charged.in_flight_bytes
    setting.write(2 * 16 * MIB // BATCH_BYTES)
    copied = charged.in_flight_bytes
    assert copied == BATCH_BYTES, "the second; the kernel's writer has the first"
    setting.transport.drain()
    assert (charged.in_flight_bytes, setting.pinned_bytes) == (0, 0)
    assert setting.transport.sent.count(build_batch(0, size=BATCH_BYTES)) == 2


async def test_unpinnable_records_are_copied(setting):
    setting.write(40)
    for offset in range(40):
        setting.fetch(offset)
    assert setting.broker.responses.in_flight_bytes > 0
    setting.transport.drain()
    await until(lambda: not setting.link.framed.unsent_bytes)
    assert (setting.broker.responses.in_flight_bytes, setting.pinned_bytes) == (0, 0)


def test_a_client_that_goes_gives_its_copies_back(setting):
    setting.fetch(0)
    setting.fetch(0)
    setting.write(2 * 16 * MIB // BATCH_BYTES)
    assert setting.broker.responses.in_flight_bytes == BATCH_BYTES
    setting.link.framed.connection_lost(None)
    assert (setting.broker.responses.in_flight_bytes, setting.pinned_bytes) == (0, 0)


def test_full_budget_answers_little_at_a_time(setting):
    setting.write(10)
    charged = setting.broker.responses
    charged.in_flight_bytes = charged.limit_bytes
    setting.fetch(0)
    assert setting.link.framed.unsent_bytes < 2 * BATCH_BYTES, "one batch, whatever it weighs"
    charged.in_flight_bytes = 0
    before = setting.link.framed.unsent_bytes
    setting.fetch(0)
    assert setting.link.framed.unsent_bytes - before >= 3 * BATCH_BYTES
    setting.transport.drain()


def test_client_without_room_to_copy_is_closed(setting):
    setting.fetch(0)
    setting.fetch(0)
    charged = setting.broker.responses
    charged.in_flight_bytes += charged.limit_bytes

    async def overwrite():
        setting.write(2 * 16 * MIB // BATCH_BYTES)
        assert charged.in_flight_bytes == charged.limit_bytes, "nothing was copied"

    setting.run(overwrite())
    assert setting.broker.counters.clients.disconnects["response_memory"] == 1
    setting.link.framed.connection_lost(None)
    assert setting.pinned_bytes == 0
    charged.in_flight_bytes -= charged.limit_bytes
    assert charged.in_flight_bytes == 0


async def test_stalled_client_is_not_read(setting):
    setting.write(10)
    limit_bytes = setting.broker.config.limits.connection_response_memory_bytes
    answered = 0
    while not setting.link.framed.reading_held:
        setting.fetch(0)
        answered += 1
        assert answered < 2 * limit_bytes // BATCH_BYTES
    assert setting.link.framed.unsent_bytes >= limit_bytes
    setting.transport.drain()
    await until(lambda: not setting.link.framed.unsent_bytes)
    assert not setting.link.framed.reading_held
