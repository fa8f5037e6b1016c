"""Starts of Forebay by the broker that each stood before.

Owns how a broker is named. Must not know Spark. Invariant: every boot belongs to exactly one broker: the one of its
node id; else, of a worker, its keeper's; else the one whose address its listeners lead to; else UNKNOWN_BROKER.
"""

from typing import Any, Final

UNKNOWN_BROKER: Final = "(unknown)"
_SUMS: Final = (
    "bytes",
    "partitions",
    "emptyPartitions",
    "observedBytes",
    "wouldHitBytes",
    *(
        f"{result}{measure}"
        for result in ("hit", "miss", "pass")
        for measure in ("Bytes", "Partitions")
    ),
)

BootRow = dict[str, Any]


def name_broker(boot: BootRow) -> str:
    """`3` for node id 3; `10.0.0.1:19092` for an address behind the listeners."""
    if boot["nodeId"] is not None:
        return str(boot["nodeId"])
    upstreams = sorted({one["upstream"] for one in boot["listeners"] or ()})
    return ", ".join(upstreams) or UNKNOWN_BROKER


def join_brokers(boots: list[BootRow], by_boot: list[BootRow]) -> list[BootRow]:
    """Sums of the rows of `by_boot` for each broker, with `broker`, `boots`, `listeners` (their client addresses) and
    the hit ratios, most bytes first. A worker is no boot of its own.
    """
    sums = {row["boot"]: row for row in by_boot}
    named = {boot["boot"]: boot for boot in boots}
    brokers: dict[str, BootRow] = {}
    for boot in boots:
        if boot["keeper"] == "" and boot["boot"] not in sums:
            continue  # a worker that has done nothing
        is_unnamed = boot["nodeId"] is None
        name = name_broker(named.get(boot["keeper"], boot) if is_unnamed else boot)
        row = brokers.setdefault(
            name, {"broker": name, "boots": 0, "listeners": "", **dict.fromkeys(_SUMS, 0)}
        )
        row["boots"] += boot["keeper"] is None
        addresses = [f"{one['name']} {one['address']}" for one in boot["listeners"] or ()]
        row["listeners"] = ", ".join(addresses) or row["listeners"]
        for measure in _SUMS:
            row[measure] += sums.get(boot["boot"], {}).get(measure) or 0
    for row in brokers.values():
        for measure in ("Bytes", "Partitions"):
            whole = row[measure.lower()]
            row[f"hitRatio{measure}"] = row[f"hit{measure}"] / whole if whole else None
    return sorted(brokers.values(), key=lambda row: (-row["bytes"], row["broker"]))
