"""Detection of batches that the broker may treat as duplicates. Pure.

Owns, per partition, the sequences that each producer id has sent through this process in the
current leader epoch. Must not know responses. A broker acknowledges a duplicate like a success,
with the old offset (UnifiedLog.append). The broker recognises a duplicate by producer epoch and
sequence among the last five batches (ProducerStateEntry.NUM_BATCHES_TO_RETAIN), including batches
that another process forwarded. Invariants:
* a `NOT_DUPLICATE` batch directly follows the last forwarded sequence, and at least five batches of
  its producer id and epoch were forwarded before.
* the table is bounded; a producer that is evicted from it starts again.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

NUM_BATCHES_TO_RETAIN = 5
SEQUENCES = 1 << 31
NO_PRODUCER_ID = -1


class DuplicateCheck(Enum):
    """Whether the broker may take a batch for a duplicate. `store.explain_not_stored` returns the value
    as its reason.
    """

    NOT_DUPLICATE = "fresh"
    UNDECIDED = "warm-up"
    RESENT = "resent"


class _Producer:
    __slots__ = ("epoch", "forwarded", "next_sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.forwarded = 0
        self.next_sequence = -1


class ProducerLedger:
    """The producers of one partition. `limit` bounds the number of producer ids remembered."""

    __slots__ = ("_leader_epoch", "_newest", "_producers", "limit")

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self._leader_epoch = -1
        # the last producer id noted; already at the end of `_producers`
        self._newest = NO_PRODUCER_ID
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def note(
        self,
        leader_epoch: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        count: int,
    ) -> DuplicateCheck:
        """Note that a batch of `count` records is about to be forwarded while `leader_epoch` is
        proven; return whether the batch may be a duplicate.

        A batch without producer id (-1) is `NOT_DUPLICATE`: the broker checks only producers with
        an id. A sequence less than 2^30 behind the expected one is `RESENT`. A jump ahead, a new
        producer or a new producer epoch starts again with `UNDECIDED`. A new leader epoch forgets
        all producers.
        """
        if producer_id == NO_PRODUCER_ID:
            return DuplicateCheck.NOT_DUPLICATE
        if leader_epoch != self._leader_epoch:
            self._producers.clear()
            self._leader_epoch = leader_epoch
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != producer_epoch:
            producer = self._producers[producer_id] = _Producer(producer_epoch)
            if len(self._producers) > self.limit:
                self._producers.popitem(last=False)
        if producer_id != self._newest:
            self._producers.move_to_end(producer_id)
            self._newest = producer_id
        following = (base_sequence + count) % SEQUENCES
        if producer.next_sequence >= 0 and base_sequence != producer.next_sequence:
            # sequences wrap around at 2^31, so the shorter distance tells behind from ahead
            behind = (producer.next_sequence - base_sequence) % SEQUENCES
            if behind < SEQUENCES // 2:
                return DuplicateCheck.RESENT
            producer.forwarded = 0
        producer.next_sequence = following
        producer.forwarded += 1
        return (
            DuplicateCheck.NOT_DUPLICATE
            if producer.forwarded > NUM_BATCHES_TO_RETAIN
            else DuplicateCheck.UNDECIDED
        )
