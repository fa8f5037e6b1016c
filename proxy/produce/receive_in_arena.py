"""Decides where a large Produce is received: in the arena, where its batch may stay, or on the
heap.

Owns that decision, made once, from the first bytes of a request. Must not know sockets, or how the
arena lends memory. Invariants:
* the decision affects only the place of the bytes. `proxy.partitions.store` decides after the
  broker's response whether they are stored, and copies a batch that cannot stay where it lies.
* the memory lent at a time is bounded (`BlockCache.reserve`).

Why: docs/decisions/0015.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol.produce_rows import scan_single
from proxy.partitions.forwarded import AS_SENT, Forwarded, judge
from proxy.partitions.producer_state import DuplicateCheck

if TYPE_CHECKING:
    from protocol.framing import Lend
    from proxy.produce.services import ProduceServices


def find_lender(broker: ProduceServices, stores: bool) -> Lend | None:
    """Return the function that lends arena memory to a client's Produces; None for a client whose
    batches are not stored (`stores` False), or only observed.
    """
    return (
        partial(lend_to_produce, broker)
        if stores and broker.keeps and not broker.cache.observes
        else None
    )


def lend_to_produce(broker: ProduceServices, begun: bytes, frame_bytes: int) -> memoryview | None:
    """Return arena memory for a frame of `frame_bytes` that begins with `begun`; None for the heap.

    Only a single-batch Produce to a partition that stores such batches unchanged gets arena memory.
    """
    scanned = scan_single(begun, frame_bytes)
    if scanned is None:
        return None
    head, row = scanned
    target = broker.routes.peek(begun, head.version, row, stores=True)
    if target is None or target.partition is None:
        return None
    partition, leader_state = target.partition, target.partition.leader_state
    fresh, generation = DuplicateCheck.NOT_DUPLICATE, partition.topic.fidelity.generation
    expected = Forwarded(partition, row, fresh, leader_state.epoch, -1, generation)
    if judge(expected, max(0, leader_state.log_start_offset)) != AS_SENT:
        return None
    try:
        return broker.cache.reserve(frame_bytes)
    except Exception:
        broker.failed("lending memory to a Produce")
        return None
