"""The keeper's end of one worker: what the worker asks for, and what it is told.

Owns the worker's place among the waiters of partitions, and what it must be told next. Must not know sockets, or
clients. Invariants:
* a row is shown before the worker is told of its news.
* a worker that is gone waits for nothing.
* nothing that a worker sends is believed about a partition's state: it asks, and it tells of acknowledged Produces,
  which are judged here.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from protocol.fetch import FetchPartition
from proxy.keeper import messages
from proxy.keeper.messages import Messages
from proxy.keeper.told import RingReader
from throttle.tickets import DelayTicket, TicketKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.keeper.broker import KeeperBroker
    from proxy.partitions.table import Partition
    from proxy.partitions.topics import Topic

log = logging.getLogger("forebay.keeper")


class WorkerLink:
    """A worker that is attached. It is a waiter of the partitions that its Fetches wait on. `number`: the
    holder of its pins.
    """

    def __init__(
        self, broker: KeeperBroker, number: int, on_end: Callable[[WorkerLink], object]
    ) -> None:
        self.number = number
        self._broker = broker
        self._on_end = on_end
        self.messages = Messages(self._take, self._end)
        self.told = RingReader(broker.rings, self._close_broken)
        self._known: dict[int, Partition] = {}
        self._changed: dict[int, None] = {}
        self._answers: dict[int, Callable[[bytes], object]] = {}
        self._asked = 0
        self._tickets: dict[int, DelayTicket] = {}
        self._is_throttled = False
        self._actions: dict[int, Callable[..., object]] = {
            messages.WANT: self._want,
            messages.FOLLOW: self._follow,
            messages.COVER: self._cover,
            messages.UNCOVER: self._uncover,
            messages.ASK: self._ask,
            messages.USED: self._use,
            messages.DOUBT: self._doubt,
            messages.PRODUCED: self._produced,
            messages.MISMATCH: self._mismatch,
            messages.SAMPLES: self._answer,
            messages.DELAY: self._delay,
            messages.DONE: self._done,
            messages.DROP: self._drop,
            messages.USAGE: self._usage,
        }

    # -- what it is told ---------------------------------------------------------------------------

    def wake(self, *partitions: Partition) -> None:
        """Of a waiter: tell the worker that they have changed, once that is shown."""
        for partition in partitions:
            self._changed[partition.slot] = None
            self._broker.shown.mark(partition)

    def note_acknowledged(self, _partition: Partition) -> None:
        """Of a waiter: workers tell each other (`pt_heard`)."""

    def tell_news(self) -> None:
        """Send what has been noted; the rows have been shown."""
        if self._changed:
            changed, self._changed = self._changed, {}
            self._send(messages.NEWS, list(changed))

    def tell_topic(self, topic: Topic) -> None:
        """Pair its name with its id, and name its partitions."""
        self._send(messages.TOPIC, topic.name, topic.id, list(topic.leaders))

    def tell_topic_forgotten(self, topic_id: bytes) -> None:
        """The broker does not know it."""
        self._send(messages.TOPIC_FORGOTTEN, topic_id)

    def tell_throttle(self) -> None:
        """Say whether misses may have to wait, if that has changed."""
        is_throttled = self._broker.disk_throttle.active
        if is_throttled != self._is_throttled:
            self._is_throttled = is_throttled
            self._send(messages.THROTTLED, is_throttled)

    def tell(self, *message: Any) -> None:
        """Pass on what another worker says."""
        self._send(*message)

    def tell_forgotten(self, partition: Partition) -> None:
        """It is followed no more."""
        partition.parked.pop(self, None)
        if self._known.pop(partition.slot, None) is not None:
            self._send(messages.FORGOTTEN, partition.slot)

    def view(self, path: str, then: Callable[[bytes], object]) -> None:
        """Ask for what it adds to a path of the admin port: `then` gets that, or b"" if it ends before."""
        self._asked += 1
        self._answers[self._asked] = then
        self._send(messages.SCRAPE, self._asked, path)

    def _send(self, *message: Any) -> None:
        if not self.messages.send(*message) and not self.messages.is_over:
            log.error("closing a worker that does not read what it is told")
            self.messages.close()

    # -- what it asks for --------------------------------------------------------------------------

    def _take(self, message: tuple[Any, ...]) -> None:
        self._broker.catch_up()  # what is asked may be about it
        kind, *fields = message
        action = self._actions.get(kind)
        if action is not None:
            self._broker.attempt(lambda: action(*fields), "a worker's message")

    def _want(self, key: str | bytes) -> None:
        topic = self._broker.topics.find(key)
        if topic is not None:
            self.tell_topic(topic)
        self._broker.topic_lookup.ask(key)

    def _follow(self, topic_id: bytes, index: int) -> None:
        broker = self._broker
        slot = -1
        try:
            topic = broker.topics.find(topic_id)
            partition = None if topic is None else broker.partitions.follow(topic, index)
            if partition is not None:
                partition.wanted_at = broker.now()
                broker.replica_fetcher.ask(partition, None)
                broker.shown.show(partition)
                self._known[partition.slot] = partition
                slot = partition.slot
        finally:  # the worker asks no second time before it is answered
            self._send(messages.FOLLOWED, topic_id, index, slot)

    def _cover(self, slot: int) -> None:
        partition, broker = self._known.get(slot), self._broker
        if partition is None:
            return
        now = broker.now()
        may_ask = broker.own_connections.usable and not partition.is_refused(now)
        partition.wanted_at = now
        if may_ask and broker.replica_fetcher.cover(partition, None):
            partition.parked[self] = None
            broker.replica_fetcher.pump()
            self.wake(partition)  # what has changed since the worker looked, nobody has told it
        else:
            self._send(messages.UNCOVERED, slot)

    def _uncover(self, slot: int) -> None:
        partition = self._known.get(slot)
        if partition is not None:
            partition.parked.pop(self, None)

    def _ask(self, slot: int, question: tuple[Any, ...] | None) -> None:
        partition, broker = self._known.get(slot), self._broker
        if partition is None:
            return
        partition.wanted_at = broker.now()
        asked = None
        if question is not None:
            asked = FetchPartition(partition.topic.id, partition.index, *question)
        partition.parked.setdefault(self, None)  # until its answer wakes the worker, and longer
        if not broker.replica_fetcher.ask(partition, None, asked):
            self._send(messages.UNCOVERED, slot)

    def _use(self, slots: list[int]) -> None:
        now = self._broker.now()
        for slot in slots:
            partition = self._known.get(slot)
            if partition is not None:
                partition.wanted_at = now

    def _doubt(self, slot: int) -> None:
        partition = self._known.get(slot)
        if partition is not None:
            self._broker.replica_fetcher.doubt(partition)

    def _produced(self, slot: int) -> None:
        partition = self._known.get(slot)
        if partition is not None:
            self._broker.replica_fetcher.produced(partition)

    def _mismatch(self, slots: list[int], slot: int) -> None:
        partition = self._known.get(slot)
        if partition is not None:
            self._broker.distrust(partition.topic, "verify")
            for one in slots:
                found = self._known.get(one)
                if found is not None:
                    self._broker.invalidate(found, 0, "verify")

    def _delay(
        self, number: int, connection: int, client_id: str, slot: int, offset: int, size_bytes: int
    ) -> None:
        partition, throttle = self._known.get(slot), self._broker.disk_throttle
        key = TicketKey((self.number, connection), slot, offset)
        ticket = throttle.delay(key, client_id, partition, size_bytes, partial(self._grant, number))
        if not isinstance(ticket, DelayTicket):  # more than the share of each worker
            self._send(messages.GRANTED, number, True)
            return
        self._tickets[number] = ticket
        if ticket.granted:
            self._grant(number)

    def _grant(self, number: int) -> None:
        self._send(messages.GRANTED, number, self._tickets[number].overdue)

    def _done(self, number: int, size_bytes: int) -> None:
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            self._broker.disk_throttle.done(ticket, size_bytes)

    def _drop(self, number: int) -> None:
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            self._broker.disk_throttle.cancel(ticket)

    def _usage(self, topics: dict[str, Any], clients: dict[str, Any]) -> None:
        for link in list(self._broker.links.values()):
            if link is not self:
                link.tell(messages.USAGE, self.number, topics, clients)

    def _answer(self, number: int, samples: bytes) -> None:
        then = self._answers.pop(number, None)
        if then is not None:
            then(samples)

    def _close_broken(self) -> None:
        log.error(
            "closing a worker that has told what cannot be read", extra={"worker": self.number}
        )
        self.messages.close()

    # -- its end -----------------------------------------------------------------------------------

    def _end(self) -> None:
        self.told.close()
        for partition in self._known.values():
            partition.parked.pop(self, None)
        self._known.clear()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            self._broker.disk_throttle.cancel(ticket)
        answers, self._answers = self._answers, {}
        for then in answers.values():
            then(b"")
        self._on_end(self)
