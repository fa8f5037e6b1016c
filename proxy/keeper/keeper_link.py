"""A worker's end of the keeper: it is attached, or alone.

Owns the connection, and what the worker knows through it. Must not know clients' requests. Invariants:
* alone, the worker knows no partition: all its clients' requests go to the broker.
* it tries again as long as it runs.
* a partition is known by its slot: what comes late about another one of that place finds nothing.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from blockcache.arena_file import ArenaError
from proxy.keeper import messages
from proxy.keeper.messages import Messages
from proxy.keeper.seen import SeenPartition
from proxy.keeper.segment import OtherLayout, attach_segment
from proxy.keeper.shown import find_place
from proxy.partitions._rows import lib
from proxy.partitions.topics import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from proxy.keeper.segment import RowMemory
    from proxy.keeper.worker_broker import WorkerBroker
    from proxy.partitions.table import Partition, Waiter

UsageByKey = dict[str, tuple[int, int]]
"""Bytes fetched, and bytes in flight, by topic or client."""

log = logging.getLogger("forebay.keeper")

RETRY_S: Final = 0.1
USED_EVERY_S: Final = 1.0
UNCOVERED_S: Final = 0.2
"""How long requests go to the broker after the keeper could not ask, in seconds."""
UNHELD_S: Final = 5.0
"""How long a partition stays held at the keeper after the last Fetch that waited on it, in seconds."""
HELLO_BYTES: Final = 4096
HELLO_FDS: Final = 2


class KeeperLink:
    """The worker's link. `number`: of the worker. `on_scrape` returns its packed samples."""

    def __init__(
        self,
        broker: WorkerBroker,
        address: bytes,
        number: int,
        on_scrape: Callable[[], bytes],
    ) -> None:
        self._broker = broker
        self._address, self._number = address, number
        self._on_scrape = on_scrape
        self._messages: Messages | None = None
        self._segment: RowMemory | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._used_at = broker.now()
        self.attached = 0
        """How often it was attached."""
        self.missed = 0
        """Produces that the keeper was not told of, since it is behind or away."""
        self._actions: dict[int, Callable[..., object]] = {
            messages.TOPIC: self._learn_topic,
            messages.TOPIC_FORGOTTEN: self._forget_topic,
            messages.FOLLOWED: self._followed,
            messages.FORGOTTEN: self._forgotten,
            messages.NEWS: self._news,
            messages.UNCOVERED: self._uncovered,
            messages.SCRAPE: self._scrape,
            messages.GRANTED: lambda *ticket: broker.asked_throttle.grant(*ticket),
            messages.THROTTLED: self._throttled,
            messages.USAGE: self._learn_usage,
            messages.WORKER_ENDED: self._worker_ended,
        }

    @property
    def unsent_limit_bytes(self) -> int:
        """The bound of `unsent_bytes`."""
        return messages.UNSENT_BYTES

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the keeper has not taken."""
        return 0 if self._messages is None else self._messages.unsent_bytes

    @property
    def is_attached(self) -> bool:
        """Whether the keeper answers."""
        return self._messages is not None

    def start(self) -> None:
        """Attach as soon as the keeper is there."""
        self._task = asyncio.create_task(self._run(), name="keeper")

    async def stop(self) -> None:
        """Leave the keeper."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._messages is not None:
            self._messages.close()

    # -- the connection ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._attach()
                await self._lost.wait()
            except (OSError, OtherLayout, ArenaError, EOFError) as error:
                log.debug("the keeper is not there: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _attach(self) -> None:
        """Raises OSError, EOFError, OtherLayout and ArenaError."""
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        fds: list[int] = []
        try:
            await loop.sock_connect(sock, self._address)
            await loop.sock_sendall(sock, marshal.dumps((self._number, os.getpid())))
            await _until_readable(loop, sock)
            _, fds, _, _ = socket.recv_fds(sock, HELLO_BYTES, HELLO_FDS)
            if len(fds) != HELLO_FDS:
                raise EOFError("it has closed the connection")
            rows_fd, arena_fd = fds
            fds = []
            segment = attach_segment(rows_fd)
            self._broker.attach_cache(arena_fd, self._number)
        except BaseException:
            for fd in fds:
                os.close(fd)
            sock.close()
            raise
        self._segment = segment
        link = Messages(self._take, self._end)
        self._lost.clear()
        self._messages = link
        await loop.create_unix_connection(lambda: link, sock=sock)
        self.attached += 1
        log.info("attached to the keeper")

    def _end(self) -> None:
        if self._messages is None:
            return
        self._messages = None
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._lost.set()
        log.warning("the keeper is lost: requests go to the broker until there is another one")
        self._broker.lose_keeper()

    def send(self, *message: Any) -> bool:
        """Send a message. False where there is no keeper, or it is behind."""
        return self._messages is not None and self._messages.send(*message)

    # -- what the keeper says ----------------------------------------------------------------------

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, *fields = message
        action = self._actions.get(kind)
        if action is not None:
            self._broker.attempt(lambda: action(*fields), "the keeper's message")

    def _learn_topic(self, name: str, topic_id: bytes, indexes: list[int]) -> None:
        broker = self._broker
        replaced = broker.topics.learn(name, topic_id, dict.fromkeys(indexes, NO_LEADER))
        broker.routes.clear()
        if replaced is not None:
            broker.forget_topic(replaced.id)

    def _forget_topic(self, topic_id: bytes) -> None:
        self._broker.forget_topic(topic_id)

    def _followed(self, topic_id: bytes, index: int, slot: int) -> None:
        broker = self._broker
        broker.partitions.answered((topic_id, index))
        topic = broker.topics.find(topic_id)
        if slot < 0 or topic is None or self._segment is None:
            return
        partition = SeenPartition(self._segment, topic, index, slot, find_place(slot))
        broker.partitions.put(partition)
        broker.routes.clear()

    def _forgotten(self, slot: int) -> None:
        partition = self._broker.partitions.by_slot.get(slot)
        if partition is not None:
            self._broker.routes.clear()
            self._broker.partitions.drop(partition.topic, partition.index)

    def _news(self, changed: list[int], acknowledged: list[int]) -> None:
        by_slot, broker = self._broker.partitions.by_slot, self._broker
        for slot in acknowledged:
            partition = by_slot.get(slot)
            if partition is not None:
                for waiter in list(partition.parked):
                    waiter.note_acknowledged(partition)
        wakeups: dict[Waiter, Partition] = {}
        for slot in changed:
            partition = by_slot.get(slot)
            if partition is not None:
                wakeups.update(dict.fromkeys(partition.parked, partition))
        broker.wake_all(wakeups)

    def _uncovered(self, slot: int) -> None:
        partition = self._broker.partitions.by_slot.get(slot)
        if partition is not None:
            partition.open_polls = 0
            partition.is_held = False
            partition.uncovered_until = self._broker.now() + UNCOVERED_S
            partition.wake_parked()

    def _scrape(self, number: int) -> None:
        self.send(messages.SAMPLES, number, self._on_scrape())

    def _throttled(self, is_active: bool) -> None:
        self._broker.asked_throttle.is_active = is_active

    def _learn_usage(self, worker: int, topics: UsageByKey, clients: UsageByKey) -> None:
        self._broker.scheduler.quotas.learn_usage(worker, topics, clients, self._broker.now())

    def _worker_ended(self, worker: int) -> None:
        self._broker.scheduler.quotas.forget_process(worker)

    def _tell_usage(self) -> None:
        quotas = self._broker.scheduler.quotas
        if quotas.active and self.is_attached:
            topics, clients = quotas.take_usage()
            if topics or clients:
                self.send(messages.USAGE, topics, clients)

    # -- timed -------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Tell the keeper what was used of quotas, which partitions clients use, and of which nobody waits any more."""
        self._tell_usage()
        if now - self._used_at < USED_EVERY_S:
            return
        last, self._used_at = self._used_at, now
        used = []
        for partition in self._broker.partitions.by_slot.values():
            if partition.wanted_at >= last:
                used.append(partition.slot)
            elif (
                partition.is_held and not partition.parked and now - partition.wanted_at > UNHELD_S
            ):
                partition.is_held = False
                partition.open_polls = 0
                self.send(messages.UNCOVER, partition.slot)
        if used:
            self.send(messages.USED, used)


class AskedFetcher:
    """What asks about partitions, in a worker: the keeper does. `watched`: nothing is watched here."""

    watched = 0

    def __init__(self, broker: WorkerBroker) -> None:
        self._broker = broker
        self._asked: set[SeenPartition] = set()

    def cover(self, partition: SeenPartition, _link: object) -> bool:
        """As `ReplicaFetcher.cover`. Where the keeper could not ask, it is tried again after UNCOVERED_S."""
        if partition.open_polls and partition.is_held:
            return True
        if self._broker.now() < partition.uncovered_until:
            return False
        if not self._broker.link.send(messages.COVER, partition.slot):
            return False
        partition.is_held = True
        partition.open_polls = 1
        return True

    def follow(self, partition: SeenPartition, asked: Any) -> None:
        """As `ReplicaFetcher.follow`."""
        if asked is not None:
            self.ask(partition, None, asked)
        self.cover(partition, None)

    def ask(self, partition: SeenPartition, _link: object, asked: Any = None) -> bool:
        """As `ReplicaFetcher.ask`, once in a turn of the event loop."""
        if not partition.is_followed or self._broker.now() < partition.uncovered_until:
            return False
        if partition in self._asked:
            return True
        question = None if asked is None else tuple(asked[2:])
        if not self._broker.link.send(messages.ASK, partition.slot, question):
            return False
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._asked.clear)
        self._asked.add(partition)
        partition.is_held = True
        return True

    def doubt(self, partition: SeenPartition) -> None:
        """As `ReplicaFetcher.doubt`."""
        self._broker.link.send(messages.DOUBT, partition.slot)

    def produced(self, partition: SeenPartition, _now: float | None = None) -> None:
        """As `ReplicaFetcher.produced`."""
        self._broker.link.send(messages.PRODUCED, partition.slot)

    def changed(self, partition: Partition) -> None:
        """The keeper knows."""

    prove_next = forget = suggest = polled = drop_link = changed

    def pump(self) -> None:
        """Nothing is sent from here."""

    learn_node = pump

    def tick(self, now: float) -> None:
        """Timed."""
        self._broker.link.tick(now)


class AskedTopics:
    """What asks about topics, in a worker: the keeper does."""

    dropped = 0

    def __init__(self, broker: WorkerBroker) -> None:
        self._broker = broker
        self._asked: dict[str | bytes, float] = {}
        self.questions = {"own": 0, "client": 0}

    def __len__(self) -> int:
        return 0

    def want(self, topic: str | bytes, link: object = None) -> None:
        """As `TopicLookup.want`."""
        if self._broker.topics.find(topic) is None:
            self.ask(topic, link)

    def ask(self, topic: str | bytes, _link: object = None) -> None:
        """As `TopicLookup.ask`; a topic is asked about at most once between two ticks."""
        if topic not in self._asked and self._broker.link.send(messages.WANT, topic):
            self._asked[topic] = self._broker.now()

    def tick(self, _now: float) -> None:
        """Timed."""
        self._asked.clear()

    def pump(self) -> None:
        """Nothing is sent from here."""


async def _until_readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)


def list_slots(partitions: Iterable[Partition | None], numbers: Iterable[int]) -> list[int]:
    """The slots of the partitions with these numbers; -1: it has none."""
    found = list(partitions)
    return [-1 if (one := found[number]) is None else one.slot for number in numbers]


def is_current(partitions: Iterable[Partition | None]) -> bool:
    """Whether what the arena holds of these partitions is what their rows describe."""
    rows = [one.row for one in partitions if one is not None]
    return bool(lib.pt_is_current(rows, len(rows)))
