"""The live view's screen: a document of `/top` as tables for a terminal. Pure.

Owns what stands where. Must not know how the document was had. Invariants: no text is taken as markup, none holds a
control character; the number of lines is bounded by `rows`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from proxy.top.words import count, line, plain, share, size, time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Order = Literal["bytes", "misses", "delay"]
ORDERS: Final[dict[Order, str]] = {"bytes": "bytes", "misses": "misses", "delay": "delayS"}
"""What tables are sorted by -> the key in the document."""
TOPS: Final = (
    ("topics", "no topic"),
    ("clients", "without a client id"),
    ("groups", "group not known"),
)
MEMORY_ENDS: Final = {
    "left": ("not in memory", "yellow"),
    "unknown": ("?", ""),
    "never": ("no: keeps up", "green"),
}
RETENTION_ENDS: Final = {
    "forever": ("never", "green"),
    "unknown": ("?", ""),
    "never": ("no: catches up", "green"),
    "due": ("may be deleted now", "red"),
}
Cell = str | tuple[str, str]
"""A text, or a text and its style."""


def build_screen(said: Mapping[str, Any], order: Order, rows: int) -> Group:
    """All of it. `rows`: of a table, at most."""
    return Group(
        *build_head(said),
        Text(),
        build_readers_behind(said, rows),
        build_warnings(said, rows),
        build_disks(said),
        build_slots(said, rows),
        *(build_top(said, name, none, order, rows) for name, none in TOPS),
        build_reasons(said, rows),
    )


def build_head(said: Mapping[str, Any]) -> list[Text]:
    """The first lines: what this is, and the figures of all clients together."""
    forebay, fetch, memory, leases = (said[key] for key in ("forebay", "fetch", "memory", "leases"))
    upstreams = ", ".join(plain(one["upstream"]) for one in forebay["listeners"])
    clients = sum(one["connections"] for one in forebay["listeners"])
    ready = (
        ("ready", "bold green")
        if forebay["ready"]
        else (f"not ready: {line('; '.join(forebay['reasons']))}", "bold red")
    )
    of_workers = ""
    if workers := forebay.get("workers"):
        of_workers = f" {workers['answered']} of {workers['of']} workers,"
    commit = f" {plain(forebay['commit'])[:12]}" if forebay["commit"] else ""
    return [
        Text.assemble(
            ("Forebay ", "bold"),
            ready,
            f"  {plain(forebay['version'])}{commit}, node {forebay['node']} at {upstreams},"
            f" cache.mode {forebay['cacheMode']},{of_workers} sums of the last {time(said['windowS'])}",
        ),
        Text.assemble(
            "hit ratio ",
            (share(fetch["hitRatio"]), "bold"),
            f" (since start {share(fetch['hitRatioSinceStart'])}), clients read ",
            (f"{size(fetch['bytes'] / max(said['windowS'], 0.001))}/s", "bold"),
            f", {count(clients)} clients, {count(said['delayedFetches'])} Fetches wait for records",
        ),
        Text.assemble(
            "memory reaches ",
            (time(memory["reachS"]), "bold"),
            f" back ({'full' if memory['full'] else 'not full yet'}), {size(memory['liveBytes'])} of"
            f" {size(memory['capacityBytes'])}, {size(memory['admittedBytesPerS'])}/s come; leases"
            f" {count(leases['held'])} of {count(leases['watched'])}, {count(leases['lapses'])} lapsed",
        ),
    ]


def build_readers_behind(said: Mapping[str, Any], rows: int) -> Group:
    """Readers behind, the furthest behind first."""
    behind = said["readersBehind"]
    title = (
        f"Readers behind: {count(behind['readers'])} in {count(behind['partitions'])} partitions"
    )
    heads = (
        *("client", "group", "topic", ">partitions", ">furthest", ">offset", ">records behind"),
        *(">behind", "leaves memory", "leaves the broker (retention.ms)"),
    )
    lines: list[list[Cell]] = [
        [
            name_or(one["client"], "–"),
            name_or(one["group"], "?"),
            plain(one["topic"]),
            count(one["partitions"]),
            str(one["partition"]),
            count(one["offset"]),
            count(one["behind"]),
            time(one["behindS"]),
            end(one["memory"], MEMORY_ENDS),
            end(one["retention"], RETENTION_ENDS),
        ]
        for one in behind["rows"][:rows]
    ]
    return build_table(title, heads, lines)


def build_top(said: Mapping[str, Any], name: str, none: str, order: Order, rows: int) -> Group:
    """The largest topics, clients or groups. `none`: stands for a name that is not known."""
    key = ORDERS[order]
    ranked = sorted(said[name], key=lambda row: -float(row[key]))[:rows]
    heads = (
        "name",
        ">bytes/s",
        ">from memory",
        ">missed",
        ">passed",
        ">answers",
        ">misses",
        ">delay",
    )
    lines: list[list[Cell]] = [
        [
            name_or(one["name"], none),
            size(one["bytes"] / max(said["windowS"], 0.001)),
            size(one["hitBytes"]),
            size(one["missBytes"]),
            size(one["passBytes"]),
            count(one["answers"]),
            count(one["misses"]),
            time(one["delayS"]),
        ]
        for one in ranked
    ]
    return build_table(f"Top {name} by {order}", heads, lines)


def build_reasons(said: Mapping[str, Any], rows: int) -> Group:
    """How record bytes were answered."""
    fetch = said["fetch"]
    lines: list[list[Cell]] = [
        [one["result"], one["reason"], size(one["bytes"]), share(one["bytes"] / fetch["bytes"])]
        for one in fetch["reasons"][:rows]
    ]
    return build_table("Answers by reason", ("result", "reason", ">bytes", ">share"), lines)


def build_disks(said: Mapping[str, Any]) -> Group:
    """Disks of the throttle: all that the configuration names."""
    heads = (
        "disk",
        ">load",
        ">target",
        ">await",
        ">history may read",
        ">waiting",
        ">delayed since start",
    )
    lines: list[list[Cell]] = [
        [
            plain(one["name"]),
            (share(one["load"]), "yellow" if one["busy"] else "")
            if one["counters"]
            else ("no counters", "red"),
            share(one["target"]),
            "?" if one["awaitMs"] is None else f"{one['awaitMs']:.1f} ms",
            f"{size(one['rateBytesPerS'])}/s" if one["busy"] else "all",
            count(one["waiting"]),
            f"{count(one['delayedSinceStart'])}, {time(one['delaySSinceStart'])}",
        ]
        for one in said["disks"]
    ]
    return build_table("Disks", heads, lines)


def build_slots(said: Mapping[str, Any], rows: int) -> Group:
    """Queues toward the broker that are in use."""
    heads = ("queue", ">in use", ">of", ">waiting", ">refused since start")
    lines: list[list[Cell]] = [
        [
            one["queue"],
            count(one["inUse"]),
            count(one["slots"]),
            (count(one["waiting"]), "yellow" if one["waiting"] else ""),
            (count(one["refusedSinceStart"]), "red" if one["refusedSinceStart"] else ""),
        ]
        for one in said["slots"][:rows]
    ]
    return build_table("Slots toward the broker", heads, lines)


def build_warnings(said: Mapping[str, Any], rows: int) -> Group:
    """The last warnings, the newest first."""
    lines: list[list[Cell]] = [
        [
            datetime.fromtimestamp(one["at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            (one["level"], "yellow" if one["level"] == "WARNING" else "red"),
            plain(one["logger"]),
            line(one["text"]),
        ]
        for one in said["warnings"][:rows]
    ]
    return build_table("Last warnings", ("at", "level", "by", "text"), lines)


def build_table(title: str, heads: Sequence[str], lines: Iterable[Sequence[Cell]]) -> Group:
    """A table; a head that begins with `>` stands over numbers. Without lines it says so."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head.removeprefix(">"), justify="right" if head[0] == ">" else "left")
    for one in lines:
        table.add_row(*(Text(*cell) if isinstance(cell, tuple) else Text(cell) for cell in one))
    return Group(Text(title, "bold"), table if table.row_count else Text("none", "dim"))


def name_or(name: str | None, none: str) -> Cell:
    """A name, or what stands for one that is not known."""
    return (none, "dim") if name is None else plain(name)


def end(said: Mapping[str, Any], words: Mapping[str, tuple[str, str]]) -> Cell:
    """When something ends: in a time, or as `words` say of its state."""
    if said["state"] in words:
        return words[said["state"]]
    return f"in {time(said['inS'])}", "yellow"
