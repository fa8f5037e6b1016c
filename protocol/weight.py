"""How much a Produce or Fetch request names, counted by C before anybody reads it (native/weight.c).

Owns: handing frames to C. Must not know: what is too much, and what follows. Invariants: the time to read and
handle a request grows with what is counted; counting stops at the limit, and takes no longer for a larger frame.
"""

from protocol._ordinary import ffi, lib
from protocol.header import RequestHeader
from protocol.primitives import Frame

LEAST_BYTES = 2
"""Of what is counted, nothing takes less: a tagged field has a tag and a size."""

_weigh, _from_buffer = lib.po_weigh, ffi.from_buffer


def weigh_request(head: RequestHeader, frame: Frame, most: int) -> int:
    """Topics, partitions, forgotten partitions and tagged fields of a request that `protocol.produce_rows` or
    `protocol.fetch` reads, and one for each 256 bytes of a text; some number above `most` where there are more. 0 for
    one too small to have more; -1 where it is garbled.
    """
    if len(frame) <= LEAST_BYTES * most:
        return 0
    source = frame if type(frame) is bytes else _from_buffer(frame)
    return int(_weigh(source, len(frame), head.body_start, head.api_key, head.api_version, most))
