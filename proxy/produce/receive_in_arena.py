"""Where a large Produce is received: in the arena, where its batch may then stay, or on the heap.

Owns that decision, made once, from a request's first bytes. Must not know sockets, or how the arena lends memory.
Invariants: nothing but where the bytes lie depends on it: whether they are stored is decided when the broker has
answered (`proxy.partitions.store`), and what is not stored where it lies is copied as ever; what may be lent at once is
bounded (`BlockCache.reserve`). Why: docs/decisions/0015.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import ordinary
from proxy.partitions.producer_state import DuplicateCheck
from proxy.partitions.store import is_stored_as_sent

if TYPE_CHECKING:
    from protocol.framing import Lend
    from proxy.broker import Broker


def find_lender(broker: Broker, stores: bool) -> Lend | None:
    """For a client whose batches are stored, bytes and all (`stores`, and not only observed); None for others."""
    return partial(lend_to_produce, broker) if stores and not broker.cache.observes else None


def lend_to_produce(broker: Broker, begun: bytes, frame_bytes: int) -> memoryview | None:
    """Memory of the arena for a frame of `frame_bytes` that begins so, if it is an ordinary Produce to a partition
    whose batches are stored as they come; None for any other.
    """
    scanned = ordinary.scan_begun(begun, frame_bytes)
    if scanned is None:
        return None
    version, _, _, route_end, _, _, attributes, *_ = scanned
    route = broker.routes.known.get((version, begun[ordinary.ROUTE_START : route_end]))
    partition = None if route is None else route.partition
    if partition is None:
        return None
    leader_state = partition.leader_state
    above = max(0, leader_state.log_start_offset)
    generation = partition.topic.fidelity.generation
    if not is_stored_as_sent(
        partition, DuplicateCheck.NOT_DUPLICATE, leader_state.epoch, -1, generation, attributes, above
    ):
        return None
    try:
        return broker.cache.reserve(frame_bytes)
    except Exception:
        broker.failed("lending memory to a Produce")
        return None
