"""Whether the broker may take a batch for a duplicate.

Owns the names of the answers; native/producers.c finds them. Per partition it knows the sequences
that each producer id has sent through this process in the current leader epoch. A broker acknowledges
a duplicate like a success, with the old offset (UnifiedLog.append). The broker recognises a duplicate
by producer epoch and sequence among the last five batches (ProducerStateEntry.NUM_BATCHES_TO_RETAIN),
including batches that another process forwarded. Invariants:
* a `NOT_DUPLICATE` batch directly follows the last forwarded sequence, and at least five batches of
  its producer id and epoch were forwarded before.
* a batch without producer id (-1) is `NOT_DUPLICATE`: the broker checks only producers with an id.
* a sequence less than 2^30 behind the expected one is `RESENT`. A jump ahead, a new producer or a new
  producer epoch starts again with `UNDECIDED`. A new leader epoch forgets all producers.
* at most 1,000 producers of a partition are known; one that is evicted starts again.
"""

from __future__ import annotations

from enum import Enum

from proxy.partitions._rows import lib


class DuplicateCheck(Enum):
    """Whether the broker may take a batch for a duplicate. `store.explain_not_stored` returns the value
    as its reason.
    """

    NOT_DUPLICATE = "fresh"
    UNDECIDED = "warm-up"
    RESENT = "resent"


CHECKS = tuple(DuplicateCheck)
"""The answers by their numbers in C."""
assert (lib.PT_NOT_DUPLICATE, lib.PT_UNDECIDED, lib.PT_RESENT) == (0, 1, 2)
