"""A request in a queue, for the tests of queues.

Owns a ticket that is nothing else. Must not know what a queue makes of it. Invariant: two of them are never equal.
"""

from dataclasses import dataclass
from typing import Any

from isolation.tickets import DONE, State, Waits


@dataclass(eq=False, slots=True)
class Item:
    """`name` is for the test alone, and so is `order_key`, unless it is handed to `offer`. `link`: its client."""

    name: Any = None
    queue: int = 0
    size_bytes: int = 10
    waits: Waits = Waits.NOTHING
    never_refused: bool = False
    is_measured: bool = True
    order_key: Any = None
    link: Any = None
    since_s: float = -1.0
    state: State = DONE
    holds_slot: bool = False
