"""A broker that is slow for some topics: a forwarder with a broker's few handler threads, before a real broker.

Owns what a broker does with its threads, in small: one request of a connection at a time, `handlers` of them at
work at once, and an append to a slow topic holds its handler while it waits for the topic's log, one after the
other (UnifiedLog's lock around append and flush). It must not know Forebay beyond its client id. Invariants: bytes
pass unchanged; what the real broker waits for (long polls) holds no handler; topics are known by name, so slow
ones are produced to below version 13, or all are slow alike (`ALL`). Answers to Forebay's own Fetches can be late
by `watch_delay_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Self

from protocol import api, header
from tests.kit import produce_messages
from tests.kit.broker.settings import HOST
from tests.kit.sidecar import CLIENT, Sidecar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

    from tests.kit.broker.kafka import KafkaCluster
    from tests.kit.sidecar import ProxiedBroker

ALL = "*"
FOREVER_S = 3600.0
OWN_CLIENT_ID = "forebay"


class Asked(NamedTuple):
    """What of a request matters here."""

    topics: tuple[str | bytes, ...] = ()  # of a Produce
    is_answered: bool = True
    is_watch: bool = False
    is_client_fetch: bool = False


def peek(frame: bytes) -> Asked:
    head = header.peek_request(frame)
    if head.api_key != api.PRODUCE:
        is_fetch, is_own = (
            head.api_key == api.FETCH,
            (head.client_id or "").startswith(OWN_CLIENT_ID),
        )
        return Asked(is_watch=is_fetch and is_own, is_client_fetch=is_fetch and not is_own)
    request = produce_messages.scan_request(frame, head.api_version, head.body_start)
    return Asked(tuple({one.topic for one in request.partitions}), request.acks != 0)


class SlowBroker:
    """Listens at `address`, forwards to `target`. Its loop runs in a thread of its own."""

    def __init__(self, target: tuple[str, int], handlers: int = 8) -> None:
        self._target = target
        self._slots = handlers
        self._delays: dict[str | bytes, float] = {}
        self._changed: asyncio.Event
        self.watch_delay_s = 0.0
        self._ready = threading.Event()
        self._port = 0
        self.produced: defaultdict[str | bytes, int] = defaultdict(int)
        self.client_fetches = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._run(),), daemon=True
        )
        self._thread.start()
        self._ready.wait()

    @property
    def address(self) -> str:
        """ "host:port" to connect to."""
        return f"{HOST}:{self._port}"

    def delay(self, topic: str, delay_s: float) -> None:
        """Each append to `topic` (or to ALL, which then do not wait for each other) takes so long."""
        self._loop.call_soon_threadsafe(self._change, topic, delay_s)

    def hang(self, topic: str) -> None:
        """Appends to `topic` are not answered until `heal`."""
        self.delay(topic, FOREVER_S)

    def heal(self) -> None:
        """Everything is fast again, what waited goes on."""
        self._loop.call_soon_threadsafe(self._change, None, 0.0)

    def _change(self, topic: str | None, delay_s: float) -> None:
        if topic is None:
            self._delays.clear()
        else:
            self._delays[topic] = delay_s
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _run(self) -> None:
        self._changed = asyncio.Event()
        self._handlers = asyncio.Semaphore(self._slots)
        self._logs: defaultdict[str | bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        server = await asyncio.start_server(self._serve, HOST, 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve_forever()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        broker, requests = await asyncio.open_connection(*self._target)
        try:
            while True:
                frame = await _read(client)
                asked = peek(frame)
                self.client_fetches += asked.is_client_fetch
                async with self._handlers:
                    for topic in asked.topics:
                        self.produced[topic] += 1
                        await self._append(topic)
                requests.write(frame)
                if asked.is_answered:
                    answer = await _read(broker)
                    if asked.is_watch and self.watch_delay_s:
                        await asyncio.sleep(self.watch_delay_s)
                    answers.write(answer)
                    await answers.drain()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            answers.close()
            requests.close()

    async def _append(self, topic: str | bytes) -> None:
        if ALL in self._delays:
            await asyncio.sleep(self._delays[ALL])
            return
        if topic in self._delays:
            async with self._logs[topic]:
                if topic in self._delays:  # else it was healed meanwhile
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), self._delays[topic])

    def stop(self) -> None:
        """End it; connections break."""
        self._loop.call_soon_threadsafe(
            lambda: [task.cancel() for task in asyncio.all_tasks(self._loop)]
        )
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


async def _read(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


class SlowPair:
    """The broker `proxied`, the slow forwarder before it, and a Forebay before that, which the broker advertises."""

    def __init__(self, proxied: ProxiedBroker, settings: Mapping[str, Any] | None = None) -> None:
        self._proxied = proxied
        self._given = settings
        self._stack = contextlib.ExitStack()
        self.slow: SlowBroker
        self.sidecar: Sidecar

    @property
    def broker(self) -> KafkaCluster:
        """The broker behind Forebay and the forwarder."""
        return self._proxied.cluster

    @property
    def direct(self) -> str:
        """Bootstrap servers past Forebay and the forwarder."""
        return self.broker.direct

    @property
    def through(self) -> str:
        """Bootstrap servers through Forebay."""
        return self._proxied.advertised

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.slow = stack.enter_context(SlowBroker(self.broker.address(CLIENT)))
            entry = {"listen": self.through, "upstream": self.slow.address}
            self.sidecar = stack.enter_context(Sidecar([entry], self._given))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
