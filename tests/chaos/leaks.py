"""Does a Forebay whose clients are gone hold anything of them?

Owns which numbers must be zero and the count of descriptors. Must not know what the clients did. Of a client that has
closed Forebay holds what the broker still owes an answer, as the broker does: it leaves a JoinGroup unanswered for
ever whose member has joined again by another connection (ClassicGroup.updateMember puts one future in the other's
place). That the broker owes it is seen behind Forebay, on a link that Forebay has not closed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.cluster import Sidecars
    from tests.kit.sidecar import Sidecar

ZERO = (
    "forebay_parked_fetches",
    "forebay_in_flight_bytes",
    "forebay_reads_paused",
    "forebay_cache_pinned_bytes",
    "forebay_cache_limbo_bytes",
    "forebay_cache_lent_bytes",
    "forebay_isolation_waiting",
    "forebay_isolation_waiting_bytes",
    "forebay_isolation_in_use",
    "forebay_throttle_waiting_requests",
    "forebay_internal_errors_total",
)
IN_FLIGHT = ("forebay_in_flight_bytes", "request")
PAUSE_S = 0.5


def find_leaks(sidecars: Sidecars, patience_s: float) -> list[str]:
    """What is still held after `patience_s`: "" for a Forebay that is as if nobody had come."""
    deadline = time.monotonic() + patience_s
    while True:
        found = [
            f"Forebay {node} {what}" for node in sidecars.nodes for what in held_by(sidecars, node)
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(PAUSE_S)


def held_by(sidecars: Sidecars, node: int) -> list[str]:
    sidecar, front, back = sidecars.sidecars[node], sidecars.front[node], sidecars.back[node]
    try:
        clients = front.open_lines
        owed = find_owed(front.unanswered(near_closed=True), back.unanswered(near_closed=False))
        found, own_links = read(sidecar, clients, owed)
    except OSError as failed:
        return [f"does not answer: {failed}"]
    descriptors, idle = sidecars.descriptors(node), sidecars.idle[node].descriptors
    if descriptors > idle + own_links + clients + len(owed):
        found.append(
            f"has {descriptors} descriptors, {idle} when it began, {own_links} links, {clients} clients"
        )
    if found:
        for name, wire in (("before", front), ("behind", back)):
            found += [
                f"has half a connection {name} it: {what}" for what in wire.describe_half_open()
            ]
    return found


def find_owed(asked: list[bytes], handed_on: list[bytes]) -> list[int]:
    """Sizes of the requests of clients that have closed (`asked`: their last words) which the broker has and has not
    answered (`handed_on`).
    """
    left, owed = list(handed_on), []
    for words in asked:
        same = next((one for one in left if one.endswith(words) or words.endswith(one)), None)
        if same is not None:
            left.remove(same)
            owed.append(min(len(words), len(same)))
    return owed


def read(sidecar: Sidecar, clients: int, owed: list[int]) -> tuple[list[str], int]:
    """What ought to be zero and is not, and the number of links to the broker. `clients` of the run's own are still
    connected: the library may let go of one late.
    """
    metrics = sidecar.metrics()
    allowed: dict[tuple[str, ...], float] = {IN_FLIGHT: sum(owed)}
    found = [
        f"{' '.join(key)} {value}"
        for key, value in metrics.items()
        if key[0] in ZERO and value > allowed.get(key, 0)
    ]
    if (connections := metrics["forebay_active_connections",]) > clients + len(owed):
        found.append(
            f"has {connections:.0f} connections, of clients that are still there {clients}"
        )
    return found, int(metrics["forebay_upstream_connections",])
