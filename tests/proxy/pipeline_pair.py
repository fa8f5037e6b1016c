"""Two Forebays between sockets, with one clock: the first has a pipeline, the second has none.

Owns both, and what can be seen of each from outside and in its books. Must not know what a test does. Invariants: what
is done to one is done to the other; nothing sleeps; times stand still unless a test moves them.
"""

import json
import socket
import struct
from contextlib import contextmanager
from typing import Any

import crc32c

from protocol import header
from protocol.api import PRODUCE
from protocol.produce_rows import scan_single
from proxy import app
from proxy.config.load import load
from proxy.net.client_connection import ClientConnection
from proxy.scheduling.processor_wait import ProcessorWait
from tests.kit import produce_messages
from tests.kit.frames import build_batch, build_produce
from tests.kit.played import PlayedDial
from tests.proxy.counter_values import read_counters
from tests.proxy.followed_partition import LEADERS, known, stand_in
from tests.proxy.produce_link import build_answer, build_many, build_many_answer

TOPICS = {"orders": bytes(range(16)), "other": bytes(range(16, 32))}
BATCH = build_batch(100)
START_S = 1000.0
SIP_BYTES = 50_000


class Ended:
    """One end of a real connection as a transport; bytes that the kernel does not take wait here."""

    def __init__(self):
        self.ours, self.theirs = socket.socketpair()
        for one in (self.ours, self.theirs):
            one.setblocking(False)
        self.backlog = bytearray()
        self.framed: Any = None
        self.closed = False

    def get_extra_info(self, name):
        return {"socket": self.ours, "peername": ("played", 1)}.get(name)

    def set_write_buffer_limits(self, **_limits):
        """The limits are fixed: one waiting byte pauses the writer."""

    def write(self, data):
        self.backlog += data
        self.flush()
        if self.backlog:
            self.framed.pause_writing()

    def writelines(self, buffers):
        self.write(b"".join(buffers))

    def flush(self):
        while self.backlog and not self.closed:
            try:
                del self.backlog[: self.ours.send(self.backlog)]
            except BlockingIOError:
                return

    def fill(self):
        """Write until the kernel takes nothing more; return the number of bytes."""
        filled = 0
        while True:
            try:
                filled += self.ours.send(b"." * 1000)
            except BlockingIOError:
                break
        while True:
            try:
                filled += self.ours.send(b".")
            except BlockingIOError:
                return filled

    def read(self):
        """Return all bytes that the other end can read."""
        got = bytearray()
        while True:
            stuck = bool(self.backlog)
            try:
                got += self.theirs.recv(1 << 20)
            except BlockingIOError:
                if not self.backlog:
                    return bytes(got)
            self.flush()
            if stuck and not self.backlog:
                self.framed.resume_writing()

    def pause_reading(self):
        """Nothing: tests feed the frames."""

    resume_reading = pause_reading

    def close(self):
        self.closed = True

    abort = close


class World:
    """One Forebay with one client."""

    def __init__(self, directory, clock, settings, flies):
        path = directory / f"forebay-{flies}.json"
        entry = {"listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}
        path.write_text(
            json.dumps({"listeners": [entry], "admin": {"listen": "127.0.0.1:0"}, **settings})
        )
        self.forebay = app.Forebay(load(path, {}).config, has_pipeline=flies)
        self.broker = self.forebay.broker
        self.broker.now = lambda: clock[0]
        self.broker.scheduler.processor_wait = ProcessorWait(path)  # which has no figures in it
        self.flies = flies
        self.front, self.back = Ended(), Ended()
        (listener,) = self.forebay.listeners
        listener.dial = stand_in(PlayedDial(transport=self.back))
        self.link = ClientConnection(listener, 1)
        self.front.framed = self.link.framed
        self.link.framed.connection_made(stand_in(self.front))
        self.to_broker, self.to_client = bytearray(), bytearray()
        self.parked = []
        self.flown = 0
        self.filled = {self.front: 0, self.back: 0}
        self.partitions = [self._believe(name, index) for name in TOPICS for index in range(2)]

    def _believe(self, name, index):
        broker = self.broker
        broker.topics.learn(name, TOPICS[name], LEADERS)
        topic = known(broker.topics.find(name))
        topic.fidelity.learn(False)
        topic.fidelity.trust(0)
        partition = known(broker.partitions.follow(topic, index))
        partition.leader_state.learn(0, 0, 0, 0, broker.now() + 3600.0)
        partition.tail = 0
        partition.transactions.shown(0, 0, 0, broker.now())
        return partition

    def feed(self, chunk):
        """The client sends `chunk`."""
        self.link.framed.data_received(chunk)
        self.flown += self.in_flight

    def answer(self, chunk):
        """The broker sends `chunk`."""
        if self.link.upstream.is_connected:
            self.back.framed = self.link.upstream.framed
            self.back.framed.data_received(chunk)

    def read(self):
        """Broker and client read all bytes."""
        if self.link.upstream.is_connected:
            self.back.framed = self.link.upstream.framed
        for end, got in ((self.back, self.to_broker), (self.front, self.to_client)):
            got += end.read()[self.filled[end] :]
            self.filled[end] = 0

    def sip(self, name):
        """One side reads at most SIP_BYTES; the transport is not told."""
        end = getattr(self, name)
        try:
            got = end.theirs.recv(SIP_BYTES)
        except BlockingIOError:
            return
        left = max(self.filled[end] - len(got), 0)
        (self.to_broker if end is self.back else self.to_client).extend(
            got[self.filled[end] - left :]
        )
        self.filled[end] = left

    def fill(self, name):
        """Fill one side's socket; the kernel takes no more until that side reads."""
        self.read()
        end = getattr(self, name)
        self.filled[end] = end.fill()

    def pass_time(self):
        """Run the scheduler's turns that are due."""
        scheduler, now = self.broker.scheduler, self.broker.now()
        if scheduler.due_at <= now:
            scheduler._turn()
        scheduler.tick(now)

    def learn(self, number, *offsets):
        """The broker's response shows offsets of one partition."""
        self.partitions[number].leader_state.learn(*offsets, self.broker.now() + 3600.0)

    def park(self):
        """A delayed Fetch takes a place in the response order; the broker does not see it."""
        self.link._materialize()  # as with each frame
        self.parked.append(self.link.replies.reserve())

    def wake(self):
        """The oldest delayed Fetch is answered."""
        if self.parked:
            self.parked.pop(0).complete((b"parked",))

    def end(self):
        """The client has finished sending."""
        return self.link.framed.eof_received()

    @property
    def in_flight(self):
        return len(self.link.pipeline) if self.link.pipeline is not None else 0

    def seen(self):
        """State that is equal with and without a pipeline, whatever is in flight."""
        broker, link = self.broker, self.link
        broker.pipeline_counts.settle(broker.counters)
        return {
            "to broker": bytes(self.to_broker),
            "to client": bytes(self.to_client),
            **read_counters(broker),
            "held": (
                broker.requests.in_flight_bytes,
                link.request_bytes,
                broker.responses.in_flight_bytes,
            ),
            "unanswered": link.upstream.unanswered,
            "line": len(link.replies) + self.in_flight,
            "ordinals": (link.last_ordinal, link.answered_ordinal),
            "client": link.client_id,
            "closed": (self.front.closed, self.back.closed),
            "partitions": [
                (
                    one.tail,
                    one.probe_offset,
                    one.acknowledged_end,
                    one.produced_from,
                    one.transactions.end,
                )
                for one in self.partitions
            ],
            "producers": [one.row.ledger.count for one in self.partitions],
            "arena": self.broker.cache.peek_admitted_bytes(),
            "queues": [
                (one.in_use, one.admitted, one.limit.statistics())
                for one in broker.scheduler.queues._queues.values()
            ],
        }

    def status(self):
        """Statistics of the scheduler; reading them turns pipelined requests into queued ones."""
        queues, health = self.broker.scheduler.statistics()
        return queues, health, len(self.broker.scheduler.lines.get(self.link, ()))

    def close(self):
        self.forebay.broker.cache.close()
        for one in (self.front, self.back):
            one.ours.close()
            one.theirs.close()


class Twins:
    """Runs each step on both Forebays; their visible state must be the same."""

    def __init__(self, worlds, clock):
        self.worlds, self.clock = worlds, clock
        self.flying, self.other = worlds
        self.offsets = dict.fromkeys(((name, index) for name in TOPICS for index in range(2)), 0)
        self.correlation_id = self.read_to = 0
        self.waiting = []

    def do(self, name, *args):
        got = [getattr(world, name)(*args) for world in self.worlds]
        assert got[0] == got[1], (name, got)
        return got[0]

    def check(self):
        seen, other = (world.seen() for world in self.worlds)
        unlike = {key: (seen[key], other[key]) for key in seen if seen[key] != other[key]}
        assert not unlike, unlike
        return seen

    def owed(self):
        """Correlation id, topic and partition (a tuple of several) of what the broker got and did not answer; no topic
        for what is no Produce.
        """
        frames, at = [], self.read_to
        while at < len(self.other.to_broker):
            size = 4 + int.from_bytes(self.other.to_broker[at : at + 4], "big")
            frames.append(bytes(self.other.to_broker[at : at + size]))
            at += size
        self.read_to = at
        for frame in frames:
            head = header.peek_request(frame)
            if head.api_key == PRODUCE:
                asked = produce_messages.scan_request(frame, head.api_version, head.body_start)
                if asked.acks != 0:
                    topic, indexes = (
                        asked.partitions[0].topic,
                        [one.partition for one in asked.partitions],
                    )
                    index = indexes[0] if len(indexes) == 1 else tuple(indexes)
                    self.waiting.append((head.correlation_id, topic, index))
            else:
                self.waiting.append((head.correlation_id, None, 0))
        return self.waiting

    def request(self, topic="orders", partition=0, producer=None, acks=-1):
        """Return the frame of another Produce. `producer`: id, epoch and sequence; None: no id."""
        self.correlation_id += 1
        batch = bytearray(BATCH)
        if producer is not None:
            struct.pack_into(">qhi", batch, 43, *producer)
            struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))
        frame = bytearray(build_produce(topic, bytes(batch), acks))
        frame[8:12] = self.correlation_id.to_bytes(4, "big")
        like = build_produce(topic, bytes(batch))  # acks=0 is not single
        index_at = known(scan_single(like, len(like)))[0].route_end - 4
        frame[index_at : index_at + 4] = partition.to_bytes(4, "big")
        return bytes(frame)

    def request_several(self):
        """Return the frame of another Produce, to two partitions."""
        self.correlation_id += 1
        frame = bytearray(build_many((0, 1)))
        frame[8:12] = self.correlation_id.to_bytes(4, "big")
        return bytes(frame)

    def control(self):
        """Return the frame of another Heartbeat."""
        self.correlation_id += 1
        body = (
            struct.pack(">hhi", 12, 0, self.correlation_id)
            + b"\0\1c"
            + b"\0\1g"
            + b"\0\0\0\1"
            + b"\0\1m"
        )
        return struct.pack(">i", len(body)) + body

    def build_answer(self, owed, error_code=0):
        """Return the broker's response to an entry of `owed`."""
        correlation_id, topic, partition = owed
        if topic is None:
            body = struct.pack(">ih", correlation_id, error_code)
            return struct.pack(">i", len(body)) + body
        indexes = partition if isinstance(partition, tuple) else (partition,)
        offsets = [-1 if error_code else self.offsets[topic, index] for index in indexes]
        for index in indexes:
            self.offsets[topic, index] += 0 if error_code else 1 if len(indexes) == 1 else 3
        if len(indexes) > 1:
            answer = bytearray(build_many_answer(indexes, offsets, (error_code,) * len(indexes)))
        else:
            name = topic.encode()
            answer = bytearray(
                build_answer(offsets[0], error_code=error_code, index=partition, topic=name)
            )
        answer[4:8] = correlation_id.to_bytes(4, "big")
        return bytes(answer)


@contextmanager
def twins(directory, settings):
    clock = [START_S]
    worlds = [World(directory, clock, settings, flies) for flies in (True, False)]
    try:
        yield Twins(worlds, clock)
    finally:
        for world in worlds:
            world.close()
