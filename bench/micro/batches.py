"""Record batches for the benches: one buffer, stamped again and again, so that making them costs next to nothing.

Must not know the cache. Invariant: only the base offset and the batch length change; what follows stays as it is.
"""

import struct

OFFSET = struct.Struct(">q")
LENGTH = struct.Struct(">i")


def restamp(batch: bytearray, base_offset: int, size: int | None = None) -> None:
    """Gives a batch another base offset, and another size (bytes of the buffer that count)."""
    OFFSET.pack_into(batch, 0, base_offset)
    if size is not None:
        LENGTH.pack_into(batch, 8, size - 12)
