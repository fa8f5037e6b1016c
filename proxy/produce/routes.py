"""What the pipelines of a process share: the routes that they know, and the counts that C keeps.

Owns both. Must not know requests in flight. Invariant: no route is older than the last change of the
targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol import api
from proxy.accounting.counters import WAIT_BOUNDS_S
from proxy.produce._pipeline import ffi

if TYPE_CHECKING:
    from isolation.queues import Queue
    from isolation.tickets import Waits
    from proxy.accounting.counters import Counters
    from proxy.produce.targets import Target
    from proxy.scheduling.queued_request import QueuedRequest

HOPS = ("requests_in", "requests_out", "responses_in", "responses_out")
ROUTES_LIMIT = 4096
"""Limit of remembered routes, of at most 1 KiB each. At the limit all are forgotten."""


@dataclass(frozen=True, slots=True)
class Route:
    """Meaning of the header bytes from client id to partition, which a client repeats.

    `queue`: that of the topic if isolation is enabled, else None. `native`: the bytes for C
    (fl_route of native/pipeline.h); it points into `bytes`.
    """

    client_id: str | None
    target: Target
    waits: Waits
    queue: Queue[QueuedRequest] | None
    bytes: Any
    native: Any


class PipelineCounts:
    """Counts that C keeps of all pipelines of a process, until the scrape reads them; and the routes
    that they know.
    """

    __slots__ = ("clears", "native", "routes")

    def __init__(self) -> None:
        self.routes: dict[tuple[int, bytes], Route] = {}
        self.clears = -1
        """`Targets.clears` when the first of these routes was found."""
        self.native = ffi.new("fl_counts *")
        self.native.bounds_s = WAIT_BOUNDS_S

    def find_routes(self, clears: int) -> dict[tuple[int, bytes], Route]:
        """Return the known routes, of which none is older than the last of so many `clears`."""
        if clears != self.clears or len(self.routes) >= ROUTES_LIMIT:
            self.routes.clear()
            self.clears = clears
        return self.routes

    def settle(self, counters: Counters) -> None:
        """Move the counts into `counters`, and reset them."""
        native = self.native
        for name in HOPS:
            counted = getattr(native, name)
            getattr(counters.traffic, name)[api.PRODUCE].add(counted.frames, counted.size_bytes)
            setattr(native, name, (0, 0))
        counters.produce.took_s.add(list(native.took), native.took_s[0])
        native.took = [0] * len(native.took)
        native.took_s[0] = 0.0
