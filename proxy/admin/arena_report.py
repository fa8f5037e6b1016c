"""Report of `forebay arena inspect`: an arena's state as text. Pure.

Owns words and columns. Must not know how an arena is read (`blockcache.inspect`). Invariants:
* the largest partitions come first.
* a topic is named by its id as Kafka's tools print it, since the arena has no names.
* a partition or arena that changed while it was read is marked.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockcache.inspect import ArenaPicture, PartitionPicture

SPANS_SHOWN = 4
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def describe(picture: ArenaPicture, held: bool, most: int) -> str:
    """The report, with a final line break. `held`: a process has the arena open. `most`: number of
    partitions to list, largest first.
    """
    return "\n".join(
        [*_head(picture, held), "", *_room(picture), "", *_partitions(picture, most), ""]
    )


def _size(size_bytes: int) -> str:
    """Size for people: one decimal, binary units."""
    for unit, factor in UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def _share(size_bytes: int, of_bytes: int) -> str:
    return f"{_size(size_bytes)} ({size_bytes / of_bytes:.1%})" if of_bytes else _size(size_bytes)


def _head(picture: ArenaPicture, held: bool) -> Iterator[str]:
    yield "in use by a running process" if held else "left behind: no process has it open"
    if picture.observe:
        yield "observing: it holds an index and no data"
    if picture.torn and held:
        yield "busy: it changed at every look, sums may be off by a batch"
    elif picture.torn:
        yield "its process ended in the middle of a change"


def _room(picture: ArenaPicture) -> Iterator[str]:
    now = picture.statistics
    arena = now.arena_bytes
    yield f"arena           {_size(arena)}"
    yield f"live records    {_share(now.live_record_bytes, arena)} in {now.entries} batches"
    yield f"index           {_share(now.index_bytes_used, now.index_bytes)} of {_size(now.index_bytes)} used"
    yield f"partitions      {now.partitions} of at most {now.partitions_max}"
    for total in picture.blocks:
        text = f"{total.blocks} blocks, {_share(total.size_bytes, arena)}"
        yield f"{total.kind:<8}blocks  {text}, live {_share(total.live_bytes, total.size_bytes)}"
    extents = f"{picture.free_extents} extents, the largest {_size(picture.free_largest_bytes)}"
    yield f"free            {_share(now.block_bytes_free, arena)} in {extents}"
    yield f"pinned          {now.pins} pins on {_size(now.pinned_bytes)}"
    yield f"admitted        {_size(now.admitted_bytes)}, the oldest {_age(picture)} ago"
    yield f"evicted         {_size(now.evicted_bytes)}"


def _age(picture: ArenaPicture) -> str:
    now = picture.statistics
    return f"{_size(now.admitted_bytes - now.oldest_admitted_bytes)} of admissions"


def _partitions(picture: ArenaPicture, most: int) -> Iterator[str]:
    ordered = sorted(picture.partitions, key=lambda one: -one.live_bytes)
    yield "topic id               partition   batches       live  blocks      runs and holes"
    for one in ordered[:most]:
        yield _row(one)
    if len(ordered) > most:
        yield f"and {len(ordered) - most} smaller ones"


def _row(one: PartitionPicture) -> str:
    topic = base64.urlsafe_b64encode(one.topic_id).decode().rstrip("=")
    size_class = "shared" if one.block_bytes == 0 else _size(one.block_bytes)
    columns = (
        f"{topic} {one.partition:>9} {one.batches:>9} {_size(one.live_bytes):>10}  {size_class:<10}"
    )
    return f"{columns}  {'changing at every look' if one.torn else _describe_runs(one)}"


def _describe_runs(one: PartitionPicture) -> str:
    """Runs as [start, end) with the holes between them. Only the newest SPANS_SHOWN runs are shown,
    older ones counted.
    """
    if not one.runs:
        return "nothing stored" + (
            f"; evicted below {one.evicted_end}" if one.evicted_end >= 0 else ""
        )
    shown = one.runs[-SPANS_SHOWN:]
    parts = [f"[{shown[0].start}, {shown[0].end})"]
    for hole, run in zip(one.holes[len(one.holes) - len(shown) + 1 :], shown[1:], strict=True):
        parts.append(f"hole of {hole.end - hole.start} [{run.start}, {run.end})")
    hidden = len(one.runs) - len(shown)
    return (f"{hidden} older runs, then " if hidden else "") + " ".join(parts)
