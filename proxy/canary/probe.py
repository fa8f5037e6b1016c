"""A producer and a consumer of one side, open: the latencies of one record. [socket]

Owns the two aiokafka clients and the way that they take to the broker. Must not know the other side, nor what becomes
of a latency. Invariants:
* every connection goes to the side's own address, whatever Metadata advertises: the broker's listener behind Forebay
  names Forebay, and a client that believed it would measure Forebay on both sides.
* one record is in flight; the consumer reads all the time, as a consumer at the tail does.
* each step ends within the time it is given; clients that do not close in time are not joined by others.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from proxy.broker_client import explain
from proxy.canary.outcome import Latency, StepFailed
from proxy.config.check import read_secret

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from proxy.broker_client import Endpoint
    from proxy.canary.outcome import Step
    from proxy.config.model import UpstreamCredentials

CLIENT_ID = "forebay-canary"
FETCH_BYTES = 65_536
PARTITION = 0


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The token of a file, read at each authentication."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def token(self) -> str:
        return await asyncio.to_thread(read_secret, self._path)


class Probe:
    """The clients of one side. Call open(), then measure() each time, then close(). Not used by two tasks."""

    def __init__(self, endpoint: Endpoint, topic: str, timeout_s: float) -> None:
        """Raises OSError or ValueError if a secret cannot be read."""
        options = build_options(endpoint, timeout_s)
        self._timeout_s = timeout_s
        self._place = TopicPartition(topic, PARTITION)
        self._producer = AIOKafkaProducer(acks="all", linger_ms=0, **options)
        self._consumer = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_bytes=FETCH_BYTES,
            **options,
        )
        pin(self._producer.client, endpoint)
        pin(self._consumer._client, endpoint)  # aiokafka gives no other way to it
        self._awaited = b""
        self._arrival: asyncio.Future[float] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self, first: bytes) -> None:
        """Connect both clients, and pass the record `first` unmeasured. Raises StepFailed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._producer.start()
                await self._consumer.start()
                self._consumer.assign([self._place])
                written = await self._producer.send_and_wait(
                    self._place.topic, first, partition=PARTITION
                )
                self._consumer.seek(self._place, written.offset)
                self._reading = asyncio.create_task(self._read())
                await self._wait_for(first)
        except (KafkaError, OSError, TimeoutError) as error:
            raise StepFailed("connect", explain(error, self._timeout_s)) from error

    async def measure(self, value: bytes) -> Latency:
        """Write a record and wait for its acknowledgement and its receipt. Raises StepFailed."""
        arrival = self._expect(value)
        started = perf_counter()
        sending = self._producer.send_and_wait(self._place.topic, value, partition=PARTITION)
        try:
            await self._step("produce", sending)
            acknowledged = perf_counter()
            received = await self._step("consume", arrival)
        finally:
            arrival.cancel()
        return Latency(acknowledged - started, received - started)

    async def close(self) -> None:
        """Close both clients. Waits for requests in flight, at most aiokafka's own time."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        closing = (self._producer.stop(), self._consumer.stop())
        await asyncio.gather(*closing, return_exceptions=True)

    async def _step(self, step: Step, waiting: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await waiting
        except (KafkaError, OSError, TimeoutError) as error:
            raise StepFailed(step, explain(error, self._timeout_s)) from error

    def _expect(self, value: bytes) -> asyncio.Future[float]:
        """The time at which the record `value` will have been read (perf_counter)."""
        self._awaited, self._arrival = value, asyncio.get_running_loop().create_future()
        if self._reading is not None and self._reading.done():
            error = self._reading.exception() or ConnectionError("the consumer has ended")
            self._arrival.set_exception(error)
        return self._arrival

    async def _wait_for(self, value: bytes) -> None:
        await self._expect(value)

    async def _read(self) -> None:
        """Read whatever comes, until cancelled. Records of the other side, and late ones, are passed over."""
        try:
            while True:
                record = await self._consumer.getone()
                if record.value == self._awaited and self._arrival and not self._arrival.done():
                    self._arrival.set_result(perf_counter())
        except (KafkaError, OSError) as error:
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_exception(error)
            raise


class Closing:
    """Closes probes aside, one at a time: a hanging broker may hold a client for a while, and never more than one."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, probe: Probe) -> None:
        """Close `probe`. The one before it must be closed."""
        assert self._task is None or self._task.done()
        self._task = asyncio.create_task(probe.close())

    async def wait(self, timeout_s: float) -> bool:
        """Whether all is closed, now or within `timeout_s`."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_s)
            return self._task.done()
        return True

    async def end(self, timeout_s: float) -> None:
        """Wait for as long, then give up what is left."""
        if not await self.wait(timeout_s) and self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def pin(client: Any, endpoint: Endpoint) -> None:
    """Have an aiokafka client reach every node at the side's own address: `AIOKafkaClient._get_conn` looks nodes up
    there, and nowhere else.
    """
    find = client.cluster.broker_metadata

    def find_pinned(node_id: object) -> object:
        found = find(node_id)
        host, port = endpoint.address
        return None if found is None else found._replace(host=host, port=port)

    client.cluster.broker_metadata = find_pinned


def build_options(endpoint: Endpoint, timeout_s: float) -> dict[str, Any]:
    """What aiokafka's clients are made by. Raises OSError or ValueError if a secret cannot be read."""
    credentials = endpoint.credentials
    secure = "SSL" if endpoint.context is not None else "PLAINTEXT"
    if endpoint.context is not None and endpoint.server_name is not None:
        expect_name(endpoint.context, endpoint.server_name)
    return {
        "bootstrap_servers": str(endpoint.address),
        "client_id": CLIENT_ID,
        "request_timeout_ms": max(1, round(timeout_s * 1000)),
        "security_protocol": secure if credentials is None else f"SASL_{secure}",
        "ssl_context": endpoint.context,
        **(_build_sasl(credentials) if credentials is not None else {}),
    }


def _build_sasl(credentials: UpstreamCredentials) -> dict[str, Any]:
    sasl: dict[str, Any] = {"sasl_mechanism": credentials.mechanism}
    if credentials.token_file is not None:
        return sasl | {"sasl_oauth_token_provider": _Token(credentials.token_file)}
    if credentials.password_file is not None:
        sasl |= {
            "sasl_plain_username": credentials.username,
            "sasl_plain_password": read_secret(credentials.password_file),
        }
    return sasl


def expect_name(context: Any, name: str) -> None:
    """Have connections made by `context` expect the server to be called `name`: aiokafka expects its address."""
    wrap = context.wrap_bio

    def wrap_named(*buffers: object, **options: object) -> object:
        return wrap(*buffers, **{**options, "server_hostname": name})

    context.wrap_bio = wrap_named
