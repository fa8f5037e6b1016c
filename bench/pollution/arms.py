"""What is compared: the arms, their memory and their Forebay, as values.

Owns the table of arms and that all but one have the same memory. Must not know processes. Invariants: an arm
with a cache takes the arena from the broker's share; an arm without one leaves the broker the whole; the arm
`twice` is the only one with more. Clients of an arm differ in their address alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN, SECOND, TWICE, FOREBAY = "plain", "second-listener", "twice-ram", "forebay"
NO_CACHE, NO_THROTTLE, NO_LANE = "no-cache", "no-throttle", "no-lane"
MIB = 1 << 20


class Arm(NamedTuple):
    """`lane`: lagging consumers come by the broker's second listener: by hand where there is no Forebay, else
    through it. `memory`: the broker's and Forebay's together, in units of the run's. `meaning`: for the table.
    """

    name: str
    meaning: str
    forebay: bool = False
    cache: bool = False
    throttle: bool = False
    lane: bool = False
    memory: int = 1


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm(PLAIN, "the broker alone"),
        Arm(SECOND, "lagging consumers sent to a second listener by hand", lane=True),
        Arm(TWICE, "the broker alone with twice the memory", memory=2),
        Arm(FOREBAY, "Forebay: cache, throttle and catch-up lane", True, True, True, True),
        Arm(NO_CACHE, "Forebay without its cache", True, False, True, True),
        Arm(NO_THROTTLE, "Forebay without its throttle", True, True, False, True),
        Arm(NO_LANE, "Forebay without the catch-up lane", True, True, True, False),
    )
}


class Sizes(NamedTuple):
    """One run's measures. `memory_bytes`: the broker's group and the arena together."""

    memory_bytes: int = 1 << 30
    arena_bytes: int = 256 * MIB
    heap_mb: int = 400
    read_limit: int = 60 * 1000 * 1000  # bytes/s
    partitions: int = 8
    rate: int = 5000  # records a second
    record_bytes: int = 1024
    groups: int = 4
    laggards: int = 8
    quiet_s: float = 30.0
    polluted_s: float = 60.0
    paused_s: float = 25.0  # how long one tailing consumer pauses
    recover_s: float = 12.0  # for how long its catching up is watched
    target: float = 0.6
    limited: bool = False  # the disk has the kernel's read limit
    limit_named: bool = False  # Forebay is told of it, and need not recognise it

    @property
    def backlog_bytes(self) -> int:
        """What eight laggards cannot read to the end in one arm, and at least four times the page cache."""
        longest_s = self.polluted_s + self.paused_s + self.recover_s + 10
        return max(int(self.read_limit * longest_s * 1.1), 4 * 500 * MIB)


def broker_memory(arm: Arm, sizes: Sizes) -> int:
    """The group's limit in bytes."""
    return arm.memory * sizes.memory_bytes - (sizes.arena_bytes if arm.cache else 0)


def build_settings(arm: Arm, sizes: Sizes, device: str) -> dict[str, Any]:
    """Forebay's configuration without its listeners; `device` as in /proc/diskstats."""
    settings: dict[str, Any] = {
        "cache": {"size": f"{sizes.arena_bytes}B"} if arm.cache else {"mode": "off"},
        "accessLog": {"directory": None},
    }
    named = {"throughput": sizes.read_limit} if sizes.limit_named else {}
    on = {"target": sizes.target, "disks": [{"device": device, **named}]} if arm.throttle else {}
    settings["throttle"] = {"enabled": arm.throttle, **on}
    return settings


def build_listener(arm: Arm, listen: str, upstream: str, catch_up: str) -> dict[str, Any]:
    """Forebay's one listener; each "host:port"."""
    entry = {"listen": listen, "upstream": upstream}
    if arm.lane:
        entry["catchUpUpstream"] = catch_up
    return entry
