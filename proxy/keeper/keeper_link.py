"""A worker's end of the keeper: it is attached, or alone.

Owns the connection, and what the worker knows through it. Must not know clients' requests. Invariants:
* alone, the worker knows no partition: all its clients' requests go to the broker.
* it tries again as long as it runs.
* a partition is known by its slot: what comes late about another one of that place finds nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import marshal
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from blockcache.arena_file import ArenaError, ArenaMemory
from blockcache.errors import ArenaTorn
from proxy.keeper import messages
from proxy.keeper.messages import HELLO, Messages
from proxy.keeper.seen import SeenPartition
from proxy.keeper.segment import OtherLayout, attach_segment
from proxy.keeper.shown import find_place
from proxy.keeper.told import RING_BYTES, Ring
from proxy.partitions._rows import ffi, lib
from proxy.partitions.topics import NO_LEADER
from proxy.partitions.update import wake_waiters
from proxy.sockets import handing_over, until_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocol.primitives import Frame
    from proxy.keeper.segment import RowMemory
    from proxy.keeper.worker_broker import WorkerBroker
    from proxy.partitions.forwarded import ForwardedBatches
    from proxy.partitions.table import Partition

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
HELLO_FDS: Final = 4
HEARD: Final = 1024
"""Places that one call of C writes to PLACES."""
PLACES: Final = ffi.new("int64_t[]", HEARD)


class KeeperLink:
    """The worker's link. `number`: of the worker. `answer` returns what it adds to a path of the admin port."""

    def __init__(
        self,
        broker: WorkerBroker,
        address: bytes,
        number: int,
        answer: Callable[[str], bytes],
    ) -> None:
        self._broker = broker
        self._address, self._number = address, number
        self._answer = answer
        self._messages: Messages | None = None
        self._segment: RowMemory | None = None
        self._ring: Ring | None = None
        self._heard: Any = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._used_at = broker.now()
        self.attached = 0
        """How often it was attached."""
        self._missed = 0
        self._actions: dict[int, Callable[..., object]] = {
            messages.TOPIC: self._learn_topic,
            messages.TOPIC_FORGOTTEN: self._forget_topic,
            messages.FOLLOWED: self._followed,
            messages.FORGOTTEN: self._forgotten,
            messages.NEWS: self._news,
            messages.UNCOVERED: self._uncovered,
            messages.SCRAPE: self._view,
            messages.GRANTED: lambda *ticket: broker.asked_throttle.grant(*ticket),
            messages.THROTTLED: self._throttled,
            messages.USAGE: self._learn_usage,
            messages.WORKER_ENDED: self._worker_ended,
        }

    @property
    def unsent_limit_bytes(self) -> int:
        """The bound of `unsent_bytes`."""
        return messages.UNSENT_BYTES + RING_BYTES

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the keeper has not taken."""
        told_bytes = 0 if self._ring is None else self._ring.untaken_bytes
        return told_bytes + (0 if self._messages is None else self._messages.unsent_bytes)

    @property
    def missed(self) -> int:
        """Produces that the keeper was not told of, since it is behind or away."""
        return self._missed + (0 if self._ring is None else self._ring.missed)

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
            except (OSError, OtherLayout, ArenaError, ArenaTorn, EOFError) as error:
                log.debug("the keeper is not there: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _attach(self) -> None:
        """Raises OSError, EOFError, OtherLayout, ArenaError and ArenaTorn."""
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        fds: list[int] = []
        arena_fd = -1
        segment: RowMemory | None = None
        try:
            await loop.sock_connect(sock, self._address)
            await loop.sock_sendall(sock, marshal.dumps((self._number, os.getpid())))
            await until_readable(sock)
            hello, fds, _, _ = socket.recv_fds(sock, HELLO_BYTES, HELLO_FDS)
            if len(fds) != HELLO_FDS:
                raise EOFError("it has closed the connection")
            rows_fd, arena_fd, ring_fd, wake_fd = fds
            fds = [ring_fd, wake_fd]
            segment = attach_segment(rows_fd)
            boot = hello.removeprefix(HELLO).decode("ascii", "replace")
            owned_fd, arena_fd = arena_fd, -1
            self._broker.attach_cache(owned_fd, self._number, boot)
            fds = []
            ring = Ring(ring_fd, wake_fd, segment.leases)
        except BaseException:
            for fd in fds:
                os.close(fd)
            if arena_fd >= 0:
                self._broker.cache.decline(ArenaMemory(arena_fd), self._number)
            if segment is not None:
                segment.close()
            sock.close()
            raise
        self._segment, self._ring = segment, ring
        self._heard = segment.open_heard(self._number)
        link = Messages(self._take, self._end)
        self._lost.clear()
        self._messages = link
        try:
            with handing_over(sock):
                await loop.create_unix_connection(lambda: link, sock=sock)
        except OSError:
            self._end()
            raise
        gc.collect()  # what connections knew of former keepers' memory dies in cycles, and it stays mapped until then
        self.attached += 1
        log.info("attached to the keeper")

    def _end(self) -> None:
        if self._messages is None:
            return
        self._messages = None
        if self._segment is not None:
            self._segment.close()
            self._segment = self._heard = None
        if self._ring is not None:
            self._missed += self._ring.missed
            self._ring.close()
            self._ring = None
        self._lost.set()
        log.warning("the keeper is lost: requests go to the broker until there is another one")
        self._broker.lose_keeper()

    def send(self, *message: Any) -> bool:
        """Send a message. False where there is no keeper, or it is behind."""
        return self._messages is not None and self._messages.send(*message)

    def show_acknowledged(self, forwarded: Any, count: int) -> None:
        """Show all workers which of these batches (`pt_forwarded *`) the broker has acknowledged."""
        if self._heard is not None:
            lib.pt_show_acknowledged(forwarded, count, self._heard)

    def hear(self) -> list[SeenPartition]:
        """The partitions with records that other workers saw acknowledged since the last call."""
        if self._heard is None:
            return []
        found: list[SeenPartition] = []
        by_place = self._broker.partitions.by_place
        while count := lib.pt_hear(self._heard, PLACES, HEARD):
            found += filter(None, map(by_place.get, PLACES[0:count]))
        return found

    def tell_produced(self, forwarded: ForwardedBatches, frame: Frame) -> None:
        """Tell of the batches of the request `frame` that the broker has acknowledged."""
        if self._ring is None:
            self._missed += 1
        else:
            self._ring.tell(forwarded, frame)

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
        partition = self._broker.partitions.find_slot(slot)
        if partition is not None:
            self._broker.routes.clear()
            self._broker.partitions.drop(partition.topic, partition.index)

    def _news(self, changed: list[int]) -> None:
        found = map(self._broker.partitions.find_slot, changed)
        wake_waiters(self._broker, filter(None, found))

    def _uncovered(self, slot: int) -> None:
        partition = self._broker.partitions.find_slot(slot)
        if partition is not None:
            partition.open_polls = 0
            partition.is_held = False
            partition.uncovered_until = self._broker.now() + UNCOVERED_S
            partition.wake_parked()

    def _view(self, number: int, path: str) -> None:
        self.send(messages.SAMPLES, number, self._answer(path))

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
        for partition in self._broker.partitions.by_place.values():
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

    def count_leases(self, _now: float) -> int:
        """As `ReplicaFetcher.count_leases`."""
        return 0

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


def is_current(partitions: Iterable[Partition | None]) -> bool:
    """Whether what the arena holds of these partitions is what their rows describe."""
    rows = [one.row for one in partitions if one is not None]
    return bool(lib.pt_is_current(rows, len(rows)))
