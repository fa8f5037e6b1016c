"""How C stores batches as a broker does: by a function of the cache that other C calls without knowing arena or places.

Owns the names and order of its words. Must not know who calls it. Invariant: they are those of native/pyfastcache.h.
"""

from __future__ import annotations

from typing import Any, Final

from blockcache._pyfastcache import ffi, lib

PLACED_FIELDS = tuple(name for name, _ in ffi.typeof("fc_placed").fields)
PLACED_WORDS: Final = len(PLACED_FIELDS)
assert ffi.sizeof("fc_placed") == 8 * PLACED_WORDS
RUN_END: Final = PLACED_FIELDS.index("run_end")
CLOCK: Final = PLACED_FIELDS.index("clock")
APPENDER: Final = tuple((name, field.offset) for name, field in ffi.typeof("fc_appender").fields)
"""Fields of an appender, and their places in bytes."""


def make_appender(arena: Any, used_max: int) -> Any:
    """An `fc_appender *`: `append` takes the arena (NULL: nothing may be stored now), a buffer and its size, places,
    how many of them are done and how many there are, and `used_max`.

    Each place has PLACED_WORDS integers: slot, start and end in the buffer, the base offset and leader epoch that
    the batch is stored with, RUN_END, which becomes where its run ends now, and CLOCK, which becomes what
    `BlockCache.peek_admitted_bytes` was before it. RUN_END is negative where nothing was stored: something of it is
    there, it may not enter, it is no such batch, `eliminate` is due, or the arena is torn. The buffer stays as it is,
    or is memory of `reserve`, where the batch lies then and stays. Where fewer are done than there are, or `arena` is
    NULL, `make_room` must come first.
    """
    return ffi.new("fc_appender *", (ffi.addressof(lib, "fc_append_to"), arena, used_max))
