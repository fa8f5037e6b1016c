"""The disk throttle of a worker: misses of history wait at the keeper, which alone looks at the disks.

Owns the tickets that wait there. Must not know how they are granted. Invariants: without a keeper
nothing waits; a worker has its share of the misses that may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.keeper import messages
from proxy.scheduling.disk_throttle import DiskThrottle
from throttle.tickets import DelayRefused, DelayTicket, TicketKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.config.throttle import ThrottleConfig
    from proxy.keeper.worker_broker import WorkerBroker
    from proxy.partitions.table import Partition


class AskedThrottle(DiskThrottle):
    """As its base, by the keeper."""

    def __init__(self, broker: WorkerBroker) -> None:
        super().__init__(broker)
        self._link = broker.link
        self._tickets: dict[int, tuple[DelayTicket, Callable[[], None]]] = {}
        self._numbers: dict[DelayTicket, int] = {}
        self._last = 0
        self._waiting_bytes = 0
        self.is_active = False
        """Whether the keeper may let misses wait."""

    def start(self) -> None:
        """Nothing is sampled here."""

    @property
    def active(self) -> bool:
        """As its base."""
        return self.is_active

    def set_rules(self, config: ThrottleConfig) -> None:
        """Take other rules, of which the keeper has its own."""
        self._config = config

    def delay(
        self,
        key: TicketKey,
        client_id: str,
        partition: Partition | None,
        size_bytes: int,
        on_granted: Callable[[], None],
    ) -> DelayTicket | DelayRefused:
        """As its base: granted at once where the keeper cannot be asked."""
        now, config = self._broker.now(), self._config
        if partition is None or not self.is_active:
            return DelayTicket.build_free(key, client_id, size_bytes, now)
        ticket = DelayTicket(key, client_id, None, size_bytes, now)
        workers = self._broker.config.workers
        if len(self._tickets) >= max(config.waiting_requests // workers, 1):
            return DelayRefused("requests")
        if (
            self._tickets
            and self._waiting_bytes + size_bytes > config.waiting_size_bytes // workers
        ):
            return DelayRefused("bytes")
        self._last += 1
        number = self._last
        asked = number, id(key.connection), client_id, partition.slot, key.offset, size_bytes
        if not self._link.send(messages.DELAY, *asked):
            return DelayTicket.build_free(key, client_id, size_bytes, now)
        self._tickets[number] = ticket, on_granted
        self._numbers[ticket] = number
        self._waiting_bytes += size_bytes
        return ticket

    def grant(self, number: int, is_overdue: bool) -> None:
        """Let a miss go that has waited."""
        waiting = self._tickets.pop(number, None)
        if waiting is None:
            return
        ticket, on_granted = waiting
        self._waiting_bytes -= ticket.size_bytes
        ticket.granted_s, ticket.overdue = self._broker.now(), is_overdue
        self._broker.attempt(on_granted, "letting a delayed miss go")

    def done(self, ticket: DelayTicket, size_bytes: int) -> None:
        """As its base."""
        number = self._numbers.pop(ticket, None)
        if number is not None:
            self._link.send(messages.DONE, number, size_bytes)

    def cancel(self, ticket: DelayTicket) -> None:
        """As its base."""
        number = self._numbers.pop(ticket, None)
        if number is not None:
            if self._tickets.pop(number, None) is not None:
                self._waiting_bytes -= ticket.size_bytes
            ticket.cancelled = True
            self._link.send(messages.DROP, number)

    def lose_keeper(self) -> None:
        """Let all go that wait."""
        self.is_active = False
        for number in list(self._tickets):
            self.grant(number, False)
        self._numbers.clear()
