"""The demo's clients: a backlog, a producer on a schedule, tailing groups, a reader from the beginning, loaders.

Owns the clients (aiokafka, as an application would use it) and their latencies, counted from when a record
was *due*, so that a stall counts for every record it delays. Must not know Forebay: the two ways differ in
their bootstrap address and topic alone. Invariants: the groups stand at the end of their topic before the
first record is due; every record sent is received by every group of its way, loaders included, else LoadFailed.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from struct import Struct

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.demo.plan import DIRECT, LOADERS, MIB, REPLAY, THROUGH, Sizes, Slice, plan_periods_s
from bench.demo.progress import Progress
from bench.demo.result import percentile

STAMP = Struct(">qB")  # when the record was due, ns of time.monotonic; the slice's number
DRAIN_S = 20.0
SHOW_S = 0.5
POLL_MS = 500
REPLAY_CLIENT = "replay"
TAIL_CLIENT = "tail-"
LOADER_CLIENT = "loader-"


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


class Loader:
    """A group that reads all there is, rests for `period_s`, and reads again, as a warehouse's loader does."""

    def __init__(self, number: int, period_s: float, bootstrap: str, topic: str) -> None:
        self.period_s = period_s
        self.received = 0
        self.consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            client_id=f"{LOADER_CLIENT}{number}",
            group_id=f"loader-{number}-{topic}",
            auto_offset_reset="latest",
        )

    async def run(self, ended: asyncio.Event) -> None:
        """Batches until `ended`, and a last one that reads what was sent before it."""
        while True:
            is_last = ended.is_set()
            await self._read_batch()
            if is_last:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), self.period_s)

    async def _read_batch(self) -> None:
        """Up to what is the end when it begins."""
        consumer, partitions = self.consumer, list(self.consumer.assignment())
        ends = await consumer.end_offsets(partitions)
        consumer.resume(*partitions)
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            fetched = await consumer.getmany(timeout_ms=POLL_MS)
            self.received += sum(map(len, fetched.values()))
        consumer.pause(*partitions)


class Load:
    """One run of the clients. `latencies_ms`: a slice's label -> one number for each record and group."""

    def __init__(self, sizes: Sizes, slices: list[Slice], progress: Progress) -> None:
        self.sizes = sizes
        self.slices = slices
        self.latencies_ms: dict[str, list[float]] = {part.label: [] for part in slices}
        self.replayed_bytes = 0
        self._progress = progress
        self._payload = os.urandom(max(sizes.record_bytes, sizes.load_record_bytes) - STAMP.size)
        self._ways: dict[str, Way] = {}
        self._loaders: list[Loader] = []
        self._ended = asyncio.Event()

    async def run(self, addresses: dict[str, tuple[str, str]]) -> None:
        """`addresses`: a way's name -> bootstrap servers, topic. LoadFailed: records went missing."""
        self._ways = {name: Way(name, *where, self.sizes) for name, where in addresses.items()}
        bootstrap, topic = addresses[THROUGH]
        self._loaders = [
            Loader(number, period_s, bootstrap, topic)
            for number, period_s in enumerate(plan_periods_s(self.slices), 1)
        ]
        await self._fill(addresses[DIRECT][0], topic)  # from a time before Forebay
        async with contextlib.AsyncExitStack() as stack:
            self._progress.step(f"{self.sizes.groups} tailing groups join, on either way")
            for way in self._ways.values():
                await stack.enter_async_context(_started(way.producer))
            groups = [tail for way in self._ways.values() for tail in way.tails]
            groups += [loader.consumer for loader in self._loaders]
            for consumer in await asyncio.gather(*map(_join_one, groups)):
                stack.push_async_callback(consumer.stop)
            for loader in self._loaders:
                loader.consumer.pause(*loader.consumer.assignment())
            readers = [
                asyncio.create_task(self._tail(way, number))
                for way in self._ways.values()
                for number in range(self.sizes.groups)
            ]
            stack.push_async_callback(_cancel, readers)
            shown = asyncio.create_task(self._show())
            stack.push_async_callback(_cancel, [shown])
            await asyncio.gather(
                self._produce(),
                self._replay(bootstrap, topic),
                *(self._load(loader) for loader in self._loaders),
            )
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
        value = STAMP.pack(0, 0) + self._payload[: self.sizes.record_bytes - STAMP.size]
        async with _started(filler):
            for number in range(count):
                await filler.send(topic, value, partition=number % self.sizes.partitions)
            await filler.flush()

    async def _produce(self) -> None:
        """Send each record when it is due, on the way of its slice."""
        self._progress.step(
            f"{self.sizes.rate} records of {self.sizes.record_bytes} bytes a second, "
            "with and without Forebay by turns"
        )
        start_ns = time.monotonic_ns()
        for index, part in enumerate(self.slices):
            if part.label == LOADERS:
                self._progress.step(f"{len(self._loaders)} loaders read in batches")
            await self._produce_slice(index, part, start_ns)
        for way in self._ways.values():
            await way.producer.flush()
        self._ended.set()

    async def _produce_slice(self, index: int, part: Slice, start_ns: int) -> None:
        """The records that are due in one slice; `start_ns`: when the first slice began."""
        way, sizes = self._ways[part.way], self.sizes
        is_load = part.label == LOADERS
        interval_ns = 1_000_000_000 // (sizes.load_rate if is_load else sizes.rate)
        size_bytes = sizes.load_record_bytes if is_load else sizes.record_bytes
        payload = self._payload[: size_bytes - STAMP.size]
        due_ns, end_ns = (start_ns + round(at_s * 1e9) for at_s in (part.start_s, part.end_s))
        while due_ns < end_ns:
            delay_s = (due_ns - time.monotonic_ns()) / 1e9
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            value = STAMP.pack(due_ns, index) + payload
            await way.producer.send(way.topic, value, partition=way.sent % sizes.partitions)
            way.sent += 1
            due_ns += interval_ns

    async def _load(self, loader: Loader) -> None:
        """One loader, in the slice of the loaders."""
        await asyncio.sleep(next(part.start_s for part in self.slices if part.label == LOADERS))
        await loader.run(self._ended)

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
                break
            await asyncio.sleep(0.05)
        else:
            said = "; ".join(
                f"{way.name}: {way.sent} sent, {way.received} received" for way in ways
            )
            raise LoadFailed(f"the tailing groups did not receive what was sent: {said}")
        loaded, sent = [loader.received for loader in self._loaders], self._ways[THROUGH].sent
        if any(count != sent for count in loaded):
            raise LoadFailed(f"the loaders received {loaded} records of {sent}")

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
