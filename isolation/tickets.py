"""What stands in a queue: a request's ticket, and what of it the queue goes by.

Owns the values alone; what becomes of them is `isolation.queues`'. Must not know: what an item is. Invariants: what is
admitted holds a slot until it is done or has been released early.
"""

from collections.abc import Hashable
from enum import IntEnum, auto
from typing import Any, Final, NamedTuple, Protocol


class Waits(IntEnum):
    """What a request may do at the broker besides being served. Integers: plain enums hash in Python."""

    NOTHING = auto()
    POLL = auto()
    ACKS = auto()


class State(IntEnum):
    """Where a ticket is."""

    ADMITTED = auto()
    WAITING = auto()
    REFUSED = auto()
    EXPIRED = auto()
    DONE = auto()


ADMITTED: Final = State.ADMITTED
DONE: Final = State.DONE
POLL, ACKS = Waits.POLL, Waits.ACKS


class Ticket:
    """One request's place. The caller reads `item`, `queue` and `state`, and changes none."""

    __slots__ = (
        "holds_slot",
        "is_measured",
        "item",
        "never_refused",
        "order_key",
        "queue",
        "since_s",
        "size_bytes",
        "state",
        "wait_s",
        "waits",
    )

    def __init__(
        self,
        item: Any,
        queue: int,
        size_bytes: int,
        now_s: float,
        order_key: Hashable,
        waits: Waits,
        never: bool,
        is_measured: bool,
    ) -> None:
        self.item = item
        self.queue = queue
        self.size_bytes = size_bytes
        self.order_key = order_key
        self.waits = waits
        self.never_refused = never
        self.is_measured = is_measured
        self.since_s = now_s  # offered, then admitted
        self.state = State.WAITING
        self.wait_s = 0.0  # `QueueRule.max_wait_s` when it began to wait
        self.holds_slot = False


class Admitted(Protocol):
    """What has been let in: a `Ticket`, or what `take` let in, the caller's own. `waits` ACKS: it is measured."""

    queue: int
    waits: Waits
    since_s: float
    state: State
    holds_slot: bool

    @property
    def is_measured(self) -> bool:
        """Whether the limit learns from how long it takes."""
        ...


class Turn(NamedTuple):
    """What a turn has changed; `expired` are to be refused."""

    admitted: list[Ticket]
    expired: list[Ticket]
