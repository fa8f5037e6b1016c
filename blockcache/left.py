"""What an earlier process left in the arena's memory: looked at before anybody serves from it.

Owns the walk's result. Must not know who decides about it. Invariant: nothing of it is trusted before C has checked it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blockcache._pyfastcache import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockcache.arena import Arena

BROKEN: Final = {
    getattr(lib, name): name.removeprefix("FC_BROKEN_").lower()
    for name in dir(lib)
    if "BROKEN" in name
}
"""What C's check finds broken, by its result."""

TORN: Final = "unfinished", "its process died in the middle of a change"
REFUSALS: Final = {
    lib.FC_OTHER: ("layout", "another build or other sections"),
    lib.FC_TORN: TORN,
}
"""Reason and detail, by what C says."""


class Left(NamedTuple):
    """Arena of an earlier process, as it was left. `identity` and `alive_at`: as that process noted them last.

    `slots`: of each open partition (topic id, index). `refusal`: why it cannot be taken over: "size", "layout"
    (another build's, or other sections), "unfinished" (that process died in the middle of a change) or "damaged";
    "" where it can. `detail` says more.
    """

    refusal: str
    detail: str = ""
    identity: bytes = b""
    alive_at: int = 0
    slots: Mapping[tuple[bytes, int], int] = MappingProxyType({})


def inspect_left(arena: Arena, sections: Any) -> Left:
    """Walks and checks what was left in `arena`, and lets go of what processes that are dead had pinned there.
    `sections`: as configured (`fc_config *`). This process has the writer's lock.
    """
    keep, left = arena.view, arena.mapped
    if left.layout == 0:
        return Left("unfinished", "its process died while it made an empty one")
    lib.fc_close(left)
    rc = lib.fc_take_over(left, sections, arena.memory.find_living())
    if rc in REFUSALS:
        return Left(*REFUSALS[rc])
    if rc < 0:
        return Left("damaged", BROKEN.get(rc, str(rc)))
    slots, topic_id, index = {}, ffi.new("uint8_t[16]"), ffi.new("int32_t *")
    for place in range(left.partitions_touched):
        slot = lib.fc_slot_at(left, place, topic_id, index)
        if slot >= 0:
            slots[bytes(ffi.buffer(topic_id)), index[0]] = slot
    if len(slots) != left.partitions_open:
        return Left("damaged", "a partition has two slots")
    del keep  # until here the mapping could not go
    return Left("", "", bytes(ffi.buffer(left.identity)), left.alive_at, slots)
