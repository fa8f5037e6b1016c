"""What stands in a queue: a request that is its own ticket, and what of it the queue goes by.

Owns the values alone; what becomes of them is `isolation.queues`'. Must not know: what else a request is. Invariants:
what is admitted holds a slot until it is done or has been released early.
"""

from collections.abc import Hashable
from enum import IntEnum, auto
from typing import Final, Generic, NamedTuple, Protocol, TypeVar


class Waits(IntEnum):
    """What a request may do at the broker besides being served. Integers: plain enums hash in Python."""

    NOTHING = auto()
    POLL = auto()
    ACKS = auto()


class State(IntEnum):
    """Where a ticket is. DONE: in no queue, not yet or not any more."""

    ADMITTED = auto()
    WAITING = auto()
    REFUSED = auto()
    EXPIRED = auto()
    DONE = auto()


ADMITTED: Final = State.ADMITTED
WAITING: Final = State.WAITING
REFUSED: Final = State.REFUSED
DONE: Final = State.DONE
POLL, ACKS = Waits.POLL, Waits.ACKS


class Ticket(Protocol):
    """A request in a queue: the caller's own object, whose state the queue changes. `waits` ACKS: it is measured."""

    queue: int
    since_s: float
    """When it was offered, then when it was admitted."""
    state: State
    holds_slot: bool

    @property
    def link(self) -> Hashable:
        """The client whose request it is."""
        ...

    @property
    def waits(self) -> Waits:
        """What it may do at the broker besides being served."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its share of a queue's `max_waiting_bytes`."""
        ...

    @property
    def is_measured(self) -> bool:
        """Whether the limit learns from how long it takes."""
        ...

    @property
    def never_refused(self) -> bool:
        """Whether it waits however full its queue is. Asked once, where no slot is free."""
        ...


T = TypeVar("T", bound=Ticket)


class Turn(NamedTuple, Generic[T]):
    """What a turn has changed; `expired` are to be refused."""

    admitted: list[T]
    expired: list[T]
