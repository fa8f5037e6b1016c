"""The demo's clients: a backlog, a producer on a schedule, tailing groups, a reader from the beginning.

Owns the clients (aiokafka, as an application would use it) and their latencies, counted from when a record
was *due*, so that a stall counts for every record it delays. Must not know Forebay: the two ways differ in
their bootstrap address and topic alone. Invariants: the groups stand at the end of their topic before the
first record is due; every record sent is received by every group of its way, else LoadFailed.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from struct import Struct

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.demo.plan import DIRECT, MIB, REPLAY, THROUGH, Sizes, Slice
from bench.demo.progress import Progress
from bench.demo.result import percentile

STAMP = Struct(">qB")  # when the record was due, ns of time.monotonic; the slice's number
DRAIN_S = 20.0
SHOW_S = 0.5
POLL_MS = 500
REPLAY_CLIENT = "replay"
TAIL_CLIENT = "tail-"


class LoadFailed(RuntimeError):
    """A client did not get what it should have got."""


class Way:
    """One way to the broker: its clients, and how many records went in and came out."""

    def __init__(self, name: str, bootstrap: str, topic: str, sizes: Sizes) -> None:
        self.name = name
        self.topic = topic
        self.sent = 0
        self.received = [0] * sizes.groups
        self.producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, client_id="producer", acks="all"
        )
        self.tails = [
            AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                client_id=f"{TAIL_CLIENT}{number}",
                group_id=f"tail-{number}-{topic}",
                auto_offset_reset="latest",
            )
            for number in range(1, sizes.groups + 1)
        ]


class Load:
    """One run of the clients. `latencies_ms`: a slice's label -> one number for each record and group."""

    def __init__(self, sizes: Sizes, slices: list[Slice], progress: Progress) -> None:
        self.sizes = sizes
        self.slices = slices
        self.latencies_ms: dict[str, list[float]] = {part.label: [] for part in slices}
        self.replayed_bytes = 0
        self._progress = progress
        self._payload = os.urandom(sizes.record_bytes - STAMP.size)
        self._ways: dict[str, Way] = {}

    async def run(self, addresses: dict[str, tuple[str, str]]) -> None:
        """`addresses`: a way's name -> bootstrap servers, topic. LoadFailed: records went missing."""
        self._ways = {name: Way(name, *where, self.sizes) for name, where in addresses.items()}
        bootstrap, topic = addresses[THROUGH]
        await self._fill(addresses[DIRECT][0], topic)  # from a time before Forebay
        async with contextlib.AsyncExitStack() as stack:
            self._progress.step(f"{self.sizes.groups} tailing groups join, on either way")
            for way in self._ways.values():
                await stack.enter_async_context(_started(way.producer))
            await asyncio.gather(*(self._join(stack, way) for way in self._ways.values()))
            readers = [
                asyncio.create_task(self._tail(way, number))
                for way in self._ways.values()
                for number in range(self.sizes.groups)
            ]
            stack.push_async_callback(_cancel, readers)
            shown = asyncio.create_task(self._show())
            stack.push_async_callback(_cancel, [shown])
            await asyncio.gather(self._produce(), self._replay(bootstrap, topic))
            await self._drain(readers)
            self._progress.clear()

    async def _fill(self, bootstrap: str, topic: str) -> None:
        """Produce the backlog, which is larger than the cache."""
        count = self.sizes.backlog_bytes // self.sizes.record_bytes
        self._progress.step(f"producing a backlog of {self.sizes.backlog_bytes // MIB} MiB")
        filler = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id="backlog",
            acks="all",
            linger_ms=5,
            max_batch_size=32 * self.sizes.record_bytes,
        )
        value = STAMP.pack(0, 0) + self._payload
        async with _started(filler):
            for number in range(count):
                await filler.send(topic, value, partition=number % self.sizes.partitions)
            await filler.flush()

    async def _join(self, stack: contextlib.AsyncExitStack, way: Way) -> None:
        """All groups of a way stand at the end."""
        for tail in await asyncio.gather(*(_join_one(tail) for tail in way.tails)):
            stack.push_async_callback(tail.stop)

    async def _produce(self) -> None:
        """Send each record when it is due, on the way of its slice."""
        self._progress.step(
            f"{self.sizes.rate} records of {self.sizes.record_bytes} bytes a second, "
            "with and without Forebay by turns"
        )
        interval_ns = 1_000_000_000 // self.sizes.rate
        start_ns = time.monotonic_ns()
        number = 0
        for index, part in enumerate(self.slices):
            way, end_ns = self._ways[part.way], start_ns + round(part.end_s * 1e9)
            while (due_ns := start_ns + number * interval_ns) < end_ns:
                delay_s = (due_ns - time.monotonic_ns()) / 1e9
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                value = STAMP.pack(due_ns, index) + self._payload
                await way.producer.send(way.topic, value, partition=number % self.sizes.partitions)
                way.sent += 1
                number += 1
        for way in self._ways.values():
            await way.producer.flush()

    async def _tail(self, way: Way, number: int) -> None:
        consumer = way.tails[number]
        while True:
            fetched = await consumer.getmany(timeout_ms=POLL_MS)
            now_ns = time.monotonic_ns()
            for messages in fetched.values():
                way.received[number] += len(messages)
                for message in messages:
                    due_ns, index = STAMP.unpack_from(message.value)
                    self.latencies_ms[self.slices[index].label].append((now_ns - due_ns) / 1e6)

    async def _replay(self, bootstrap: str, topic: str) -> None:
        """In its slice, read everything from the beginning up to what was the end then."""
        await asyncio.sleep(next(part.start_s for part in self.slices if part.label == REPLAY))
        self._progress.step("one more consumer reads from the beginning")
        reader = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=REPLAY_CLIENT,
            group_id=None,
            max_partition_fetch_bytes=self.sizes.replay_bytes,
        )
        async with _started(reader):
            partitions = [TopicPartition(topic, index) for index in range(self.sizes.partitions)]
            reader.assign(partitions)
            ends = await reader.end_offsets(partitions)
            await reader.seek_to_beginning(*partitions)
            while any([await reader.position(one) < ends[one] for one in partitions]):
                fetched = await reader.getmany(timeout_ms=POLL_MS)
                self.replayed_bytes += sum(
                    len(m.value) for batch in fetched.values() for m in batch
                )

    async def _drain(self, readers: list[asyncio.Task[None]]) -> None:
        """Until every group has every record of its way."""
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            for reader in readers:
                if reader.done():
                    reader.result()
            ways = self._ways.values()
            if all(count == way.sent for way in ways for count in way.received):
                return
            await asyncio.sleep(0.05)
        said = "; ".join(f"{way.name}: {way.sent} sent, {way.received} received" for way in ways)
        raise LoadFailed(f"the tailing groups did not receive what was sent: {said}")

    async def _show(self) -> None:
        whole_s, start = self.slices[-1].end_s, time.monotonic()
        while True:
            elapsed_s = min(time.monotonic() - start, whole_s)
            part = next(one for one in self.slices if elapsed_s <= one.end_s)
            recent = self.latencies_ms[part.label][-1000:]
            got = sum(sum(way.received) for way in self._ways.values())
            self._progress.show(
                f"{elapsed_s:3.0f} of {whole_s:.0f} s, {part.label}: {got} records received, lately "
                f"p50 {percentile(recent, 50):.1f} ms, p99 {percentile(recent, 99):.1f} ms"
            )
            await asyncio.sleep(SHOW_S)


async def _join_one(consumer: AIOKafkaConsumer) -> AIOKafkaConsumer:
    await consumer.start()
    while not consumer.assignment():
        await consumer.getmany(timeout_ms=50)
    for partition in consumer.assignment():
        await consumer.seek_to_end(partition)
        await consumer.position(partition)
    return consumer


@contextlib.asynccontextmanager
async def _started(client: AIOKafkaProducer | AIOKafkaConsumer) -> AsyncIterator[None]:
    try:
        await client.start()
        yield
    finally:
        await client.stop()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
