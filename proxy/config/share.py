"""One worker's share of the bounds of a configuration that several workers serve.

Owns which bounds are of the whole group. Must not know who keeps them. Invariants: all shares together are
within the bound, but for bounds below the number of workers, of which each has one; what several workers
count together (quotas, the disk throttle) is not shared out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

    from proxy.config.isolation import Slots
    from proxy.config.model import Config

M = TypeVar("M", bound="BaseModel")

SHARED_LIMITS: Final = (
    "request_memory_bytes",
    "response_memory_bytes",
    "max_connections",
    "connections_per_address",
    "connection_rate_per_address",
    "parked_fetches",
    "fetch_sessions",
    "fetch_session_partitions",
)
OF_A_CONNECTION: Final = {
    "connection_request_memory_bytes": "request_memory_bytes",
    "connection_response_memory_bytes": "response_memory_bytes",
}
"""Bounds of one connection, and the bound of all that each is within."""
SHARED_QUEUES: Final = ("queue_requests", "queue_size_bytes")
SHARED_SLOTS: Final = ("floor", "ceiling")


def share_config(config: Config, workers: int) -> Config:
    """The configuration of one of `workers` workers."""
    limits, isolation = config.limits, config.isolation
    shared_limits = _share(limits, SHARED_LIMITS, workers)
    of_connections = {
        name: min(getattr(limits, name), getattr(shared_limits, whole))
        for name, whole in OF_A_CONNECTION.items()
    }
    shared_limits = shared_limits.model_copy(update=of_connections)
    slots: dict[str, Slots] = {
        name: _share_slots(getattr(isolation, name), workers)
        for name in ("data_slots", "control_slots")
    }
    queues = _share(isolation, SHARED_QUEUES, workers).model_copy(update=slots)
    return config.model_copy(update={"limits": shared_limits, "isolation": queues})


def _share_slots(slots: Slots, workers: int) -> Slots:
    """Each begins with the whole `initial`, where its share of the ceiling allows it: that is a guess, which each
    corrects by what it measures. With a part of it, a busy client of one worker would wait while others are idle.
    """
    shared = _share(slots, SHARED_SLOTS, workers)
    return shared.model_copy(update={"initial": min(slots.initial, shared.ceiling)})


def _share(model: M, names: tuple[str, ...], workers: int) -> M:
    """`model` with a share of each of its bounds `names`; 0, which is no bound, stays."""
    update = {}
    for name in names:
        whole = getattr(model, name)
        update[name] = min(max(whole // workers, 1), whole)
    return model.model_copy(update=update)
