"""One client of one Forebay whose memory holds a partition.

Owns the scene: batches of three sizes (offsets 0 to 29), a transport that the test fills and drains, a clock
that it moves, a broker that never answers. It must not know what a test expects. `World.sent` is what has left
toward the client; `World.state` is all that two worlds of the same script must agree on.
"""

import asyncio
import contextlib
import dataclasses
import socket
from random import Random
from types import SimpleNamespace

from blockcache.cache import BlockCache
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy import dispatch
from proxy.broker import Broker
from proxy.config.model import Config
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.net.client_connection import ClientConnection
from proxy.net.listener import Listener
from proxy.partitions.leader_state import Lease
from proxy.partitions.transactions import Aborted
from proxy.replica_fetcher.verifier import Verifier
from tests.kit.cache_batches import build_batch, insert
from tests.proxy.counter_values import read_counters
from tests.proxy.followed_partition import EPOCH, LEADERS, TOPIC_ID, known, stand_in
from tests.proxy.memory_log import MemoryLog
from tests.proxy.net.test_framed_transport import PlayedTransport

CONFIG = Config.model_validate(
    {
        "listeners": [{"listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}],
        "cache": {"size": "64MiB"},
    }
)
SIZES = (1_000, 6_000, 25_000)
END = 10 * len(SIZES)
ARENA_BYTES = 4 << 20
IDS = 13
OF_LEADER_STATE = {
    "high_watermark",
    "last_stable_offset",
    "log_start_offset",
    "epoch",
    "led_epoch",
    "frozen",
}


class SilentDial:
    """A broker that neither accepts nor refuses a connection."""

    host, port, max_frame_bytes = "broker", 9092, 1 << 20

    async def connect(self, _wire):
        await asyncio.Event().wait()


class Clear(PlayedTransport):
    """In the clear: with a descriptor, by which bytes may leave past it. While `full`, the kernel takes none of them; a
    socket's `room_bytes` are about what it takes at once, and nobody reads until somebody looks.
    """

    def __init__(self, room_bytes=1 << 20):
        self._stream, self._full, self._junk_bytes = [], False, 0
        self.ours, self.theirs = socket.socketpair()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room_bytes)
        for one in (self.ours, self.theirs):
            one.setblocking(False)
        super().__init__()

    def get_extra_info(self, name):
        return {"peername": ("peer", 9092), "ssl_object": None, "socket": self.ours}[name]

    @property
    def full(self):
        return self._full

    @full.setter
    def full(self, is_full):
        self._read()
        self._full = is_full
        self._read()
        with contextlib.suppress(BlockingIOError):
            while is_full:
                self._junk_bytes += self.ours.send(b"-" * 4096)

    def stick(self):
        """Later writes wait until `full` is False; the kernel takes bytes while it has room."""
        self._read()
        self._full = True

    @property
    def pieces(self):
        self._read()
        return self._stream

    @pieces.setter
    def pieces(self, pieces):
        self._stream = pieces

    def _read(self):
        with contextlib.suppress(BlockingIOError):
            while not self._full:
                got = self.theirs.recv(1 << 20)
                junk_bytes = min(len(got), self._junk_bytes)
                self._junk_bytes -= junk_bytes
                if got[junk_bytes:]:
                    self._stream.append(got[junk_bytes:])
                if not got:
                    return


class World:
    """With `room_bytes` above 0 the client's socket has a descriptor, and responses bypass the transport."""

    def __init__(self, verify_ratio=0.5, sizes=SIZES, arena_bytes=ARENA_BYTES, room_bytes=0):
        self.clock_s = 100.0
        self.log, self._correlation_id = MemoryLog(), 0
        self.cache = BlockCache(arena_bytes)
        self.broker = broker = Broker(
            CONFIG, self.cache, stand_in(self.log), "0", lambda: self.clock_s
        )
        known(broker.accounts.lines).empty = self.log.empty
        broker.own_connections = stand_in(SimpleNamespace(usable=False))
        broker.sessions = SessionCache(SessionLimits(10, 100, 120.0), Random(1))
        broker.verifier = Verifier(broker, verify_ratio, Random(2).random)
        broker.topics.learn("orders", TOPIC_ID, LEADERS)
        self.topic = known(broker.topics.find(TOPIC_ID))
        self.topic.learn_policy(False)
        self.partition = known(broker.partitions.follow(self.topic, 0))
        self.store(sizes)
        self.listener = Listener(broker, CONFIG.listeners[0], dispatch.Dispatch)
        self.listener.dial = stand_in(SilentDial())
        self.transport = Clear(room_bytes) if room_bytes else PlayedTransport()
        self.link = self.connect(self.transport)
        self.other = self.connect(PlayedTransport())

    def connect(self, transport):
        link = ClientConnection(self.listener, 1)
        transport.protocol = link.framed
        link.framed.connection_made(transport)
        for topic in ("orders", TOPIC_ID):
            link.handlers.authorization.learn(topic, 0, self.clock_s)
        return link

    def store_others(self, partitions):
        """Ten small batches enter each of the first `partitions` but the first."""
        for index in range(1, partitions):
            self.store((1_000,), index)

    def store(self, sizes, index=0):
        """Ten batches of each size enter a partition, readable under a lease, without transactions."""
        partition, end = known(self.broker.partitions.follow(self.topic, index)), 10 * len(sizes)
        for offset in range(end):
            insert(
                self.cache,
                partition.slot,
                build_batch(offset, epoch=EPOCH, size=sizes[offset // 10]),
            )
        partition.leader_state.learn(EPOCH, end, end, 0, self.clock_s + 3600)
        partition.leader_state.frozen = False
        partition.leader_state.suggest(EPOCH, True)
        partition.transactions.shown(0, 0, 0, self.clock_s)
        partition.transactions.observed(b"", (), 0, end)
        partition.tail = end

    def arrive(self, size, aborted=None, index=0):
        """Store and show another batch, and wake the delayed Fetches of the partition."""
        partition = known(self.broker.partitions.follow(self.topic, index))
        end = partition.tail + 1
        insert(self.cache, partition.slot, build_batch(end - 1, epoch=EPOCH, size=size))
        partition.leader_state.learn(EPOCH, end, end, 0, self.clock_s + 3600)
        partition.row.observed_end = end  # as C notes what is stored
        partition.row.tail = end
        if aborted is not None:
            self.change("aborted", aborted)
        for waiting in list(partition.parked):
            waiting.wake(partition)

    # -- steps of a script --------------------------------------------------------------------------------

    def receive(self, frame):
        self.link.framed.data_received(frame)
        assert self.sent is not None  # a client that reads has it before the next arrives

    def change(self, what, value):
        """Set one of the values that a Fetch depends on."""
        leader_state, partition, link = self.partition.leader_state, self.partition, self.link
        if what in OF_LEADER_STATE:
            setattr(leader_state, what, value)
        elif what == "lease":
            leader_state.hold(Lease(value))
        elif what in ("tail", "old_format", "zstd"):
            setattr(partition, what, value)
        elif what == "compacted":
            self.topic.learn_policy(value)
        elif what == "truncate":
            if self.broker.partitions.find(self.topic, 0) is partition:
                self.cache.truncate(partition.slot, value)
        elif what == "aborted":
            partition.transactions._aborted = [Aborted(value, max(value - 2, 0), 9, value + 1)]
        elif what == "later":
            self.clock_s += value
        elif what == "full":
            self.fill(value)
        elif what == "preferred":
            link.preferred_replicas = value
        elif what == "forget":
            self.broker.forget(partition, "idle")
        elif what == "limit":
            self.broker.requests.limit_bytes = value
        elif what == "quotas":
            self.broker.scheduler.quotas.active = value
        else:
            assert what == "client"
            link.client_id = value

    def fill(self, is_full):
        """Fill the client's socket, or drain it."""
        self.transport.full = is_full
        if not is_full and self.link.framed.unsent_bytes:
            self.transport.drain()

    def stick(self):
        """The socket takes what it has room for, and the rest waits. There is a descriptor."""
        assert isinstance(self.transport, Clear)
        self.transport.stick()

    def leave(self):
        """Answer the delayed Fetches with the bytes at hand; return whether none is left."""
        self.broker.purgatory.leave(self.link)
        return not self.link.replies.places

    def end(self):
        """The client closes its connection."""
        self.link.framed.connection_lost(None)

    # -- visible state -------------------------------------------------------------------------------------

    @property
    def sent(self):
        return self.transport.pieces

    @property
    def lines(self):
        return self.log.fetches

    def state(self):
        broker, link = self.broker, self.link
        arena = dataclasses.asdict(self.cache.statistics())
        for how_often in (
            "lookups",
            "copied_lookups",
            "gathered_lookups",
        ):  # a delayed Fetch is evaluated twice
            del arena[how_often]
        return {
            "sent": list(self.sent),
            "counters": read_counters(broker),
            "lines": [line._replace(response=line.response._replace(ts=0)) for line in self.lines],
            "empty": self.log.count_empty(),
            "sessions": {
                number: read_session(one) for number, one in broker.sessions._sessions.items()
            },
            "table": broker.sessions.statistics(),
            "arena": arena,
            "samples": [sample[1:] for sample in broker.verifier._waiting],
            "memory": [
                (bound.in_flight_bytes, bound.pauses)
                for bound in (broker.requests, broker.responses)
            ],
            "wire": (
                link.framed.unsent_bytes,
                link.framed.reading_held,
                link.upstream.unsent_bytes,
            ),
            "replies": len(link.replies),
            "rights": (
                link.handlers.authorization.rights.until,
                list(link.handlers.authorization._used),
                link.handlers.authorization.version,
            ),
            "client": link.client_id,
            "wanted_at": self.partition.wanted_at,
        }


def read_session(session):
    """State of a fetch session, without turns, since only their order matters."""
    kept = [
        (key, one.asked, one.high_watermark, one.log_start_offset)
        for key, one in session.partitions.by_key.items()
    ]
    return session.epoch, session.last_used_s, kept


def build_fetch(
    offset,
    *,
    correlation_id=1,
    version=IDS,
    session=(0, -1),
    index=0,
    partitions=1,
    client_id="c",
    isolation_level=0,
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=1 << 20,
    partition_max_bytes=1 << 20,
    epoch=-1,
    last_epoch=-1,
    rack_id="",
    forgotten=(),
):
    """Return the frame of a Fetch of `partitions` partitions from `index` on."""
    topic = TOPIC_ID if version >= IDS else "orders"
    asked = [
        FetchPartition(topic, number, epoch, offset, last_epoch, -1, partition_max_bytes)
        for number in range(index, index + partitions)
    ]
    return build_request(
        version,
        correlation_id,
        client_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        partitions=asked,
        forgotten=forgotten,
        rack_id=rack_id,
    )
