"""Which batches of a Produce are refused, and what a refusal means for those after it on that connection.

Owns: per connection, the sequences that must return first. Must not know: bytes, replies, why
something is refused. Invariants: a refused request left no trace at the broker, so a retry is safe; acks=0 is never
refused, nor is anything but Produce and Fetch; a transactional Produce passes or fails whole (KIP-890).

Order (a broker accepts any first sequence of a producer it has no state for: ProducerAppendInfo.checkSequence). After
a refused batch, later ones of that producer id and partition are refused until the refused sequence or a higher
producer epoch returns, and so on with each. Earlier sequences (retries of what was forwarded) pass. A client has at
most MOST_IN_FLIGHT Produces of a partition in flight (the broker remembers no more batches:
ProducerStateEntry.NUM_BATCHES_TO_RETAIN). Where as many others as can be beside the awaited one were refused since it
last came, it may have been acknowledged elsewhere, by another leader in between: from then on the earliest of those is
awaited. So nobody waits for ever, and what passes is the first of what the client has in flight. Without a producer
id, all of the partition's Produces are refused that were received before the refusal's reply left. The rule needs the
queues' order: a batch is never forwarded before an earlier one of its order key is decided.
"""

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Final, NamedTuple

NOT_ENOUGH_REPLICAS: Final = 19
NO_PRODUCER_ID: Final = -1
MOST_IN_FLIGHT: Final = 5
SEQUENCES: Final = 1 << 31  # 0 follows on 2**31 - 1 (DefaultRecordBatch.incrementSequence)


class PartitionVerdict(Enum):
    """What becomes of one partition of a Produce."""

    PASS = "pass"
    REFUSE = "refuse"


class SequencedBatch(NamedTuple):
    """One partition of a Produce; `records`: their number (last offset delta + 1). Where the batch is missing
    or unreadable: the defaults.
    """

    topic: Hashable
    partition: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1
    records: int = 1


class Plan(NamedTuple):
    """`verdicts`: one a batch, in order. `must_wait`: something would have to be refused that may not be (or
    whose refusal could not be remembered): the whole request waits, as one that is never refused, and is
    planned again when admitted, with nothing refused by then but what order demands. One that has left its
    queue already (expired) cannot wait, so its connection is closed; offering what `has_room_for` denies as
    never refused avoids that. `must_close`: order demands a refusal that cannot be remembered: the connection
    is closed, as if it had broken; its client repeats what is unanswered, in order.
    """

    verdicts: tuple[PartitionVerdict, ...]
    must_wait: bool = False
    must_close: bool = False

    @property
    def refuses(self) -> bool:
        """Whether any partition is refused."""
        return PartitionVerdict.REFUSE in self.verdicts

    @property
    def passes(self) -> bool:
        """Whether any partition goes to the broker."""
        return PartitionVerdict.PASS in self.verdicts


class _RefusedRun:
    """`awaited`: the sequence that must return next; `end`: the one after the last refused; `passed_over`: batches
    beyond `awaited` that were refused since it last came, and `earliest`: the first sequence of theirs. Without a
    producer id: `until`, the last ordinal received before the refusal's reply left; None while it has not.
    """

    __slots__ = ("awaited", "earliest", "end", "passed_over", "producer_epoch", "since_s", "until")

    def __init__(self, batch: SequencedBatch, now_s: float) -> None:
        self.producer_epoch = batch.producer_epoch
        self.awaited = batch.base_sequence
        self.end = _end_of(batch)
        self.passed_over = 0
        self.earliest = batch.base_sequence
        self.since_s = now_s
        self.until: int | None = None

    def extend(self, batch: SequencedBatch) -> None:
        """One more of the run is refused."""
        if not self.passed_over or _is_earlier(batch.base_sequence, self.earliest):
            self.earliest = batch.base_sequence
        self.passed_over += 1
        if self.passed_over == MOST_IN_FLIGHT - 1:
            self.awaited, self.passed_over = self.earliest, 0
        if _is_earlier(self.end, _end_of(batch)):
            self.end = _end_of(batch)

    def extend_to(self, end: int) -> None:
        """Await all batches up to the sequence `end`."""
        self.end = end

    def returned(self, batch: SequencedBatch) -> None:
        """Note that the awaited batch has come back, and passes: the one behind it is awaited."""
        self.awaited = _end_of(batch)
        self.passed_over = 0

    def replied(self, last_received: int) -> None:
        """Note that the refusal was sent when `last_received` was the newest request received."""
        self.until = last_received


def _end_of(batch: SequencedBatch) -> int:
    return (batch.base_sequence + batch.records) % SEQUENCES


def _is_earlier(sequence: int, than: int) -> bool:
    return 0 < (than - sequence) % SEQUENCES < SEQUENCES // 2


def _must_refuse(batch: SequencedBatch, refused: _RefusedRun, ordinal: int) -> bool:
    if batch.producer_id == NO_PRODUCER_ID:
        return refused.until is None or ordinal <= refused.until
    if batch.producer_epoch != refused.producer_epoch:
        return batch.producer_epoch < refused.producer_epoch
    return _is_earlier(refused.awaited, batch.base_sequence)


class RefusedSequences:
    """What must return first, on one connection. `limit` bounds the partitions and producers remembered; at
    it, what is not remembered yet is not refused but waits: backpressure, which loses and reorders nothing.
    Only at it, refusals of more than `forget_after_s` ago are forgotten: clients retry within seconds, and one
    that gave a batch up goes on with a higher epoch or another id (the default is five delivery.timeout.ms).
    """

    __slots__ = ("_unseen", "at_limit", "by_order", "entries", "forget_after_s", "limit")

    def __init__(self, limit: int = 1000, forget_after_s: float = 600.0) -> None:
        self.limit = limit
        self.forget_after_s = forget_after_s
        self.entries: dict[tuple[Hashable, int, int], _RefusedRun] = {}
        self._unseen: dict[
            int, list[_RefusedRun]
        ] = {}  # by ordinal: refusals whose reply has not left
        self.at_limit = 0
        self.by_order = 0

    def __len__(self) -> int:
        return len(self.entries)

    def must_refuse(self, batch: SequencedBatch, ordinal: int) -> bool:
        """Whether a refused batch before this one has yet to return."""
        refused = self.entries.get(batch[:3])
        return refused is not None and _must_refuse(batch, refused, ordinal)

    def has_room_for(self, batches: Sequence[SequencedBatch]) -> bool:
        """Whether refusals of all of these can be remembered."""
        if len(self.entries) + len(batches) <= self.limit:
            return True
        new = {batch[:3] for batch in batches} - self.entries.keys()
        return not new or len(self.entries) + len(new) <= self.limit

    def apply(
        self, batches: Sequence[SequencedBatch], plan: Plan, ordinal: int, now_s: float
    ) -> None:
        """The plan is carried out: what is refused is remembered, what returned is forgotten; not to be called
        for a plan whose PASS is not followed yet by forwarding (a request that only begins to wait).
        `ordinal`: the request's number on its connection, growing in the order of arrival.
        """
        if not self.entries and not plan.refuses:
            return
        if len(self.entries) >= self.limit:
            self._forget_old(now_s)
        if plan.must_wait or plan.must_close:
            self.at_limit += plan.refuses
            return
        for batch, verdict in zip(batches, plan.verdicts, strict=True):
            if verdict is PartitionVerdict.REFUSE:
                self._remember(batch, ordinal, now_s)
            else:
                self._forget(batch, ordinal)

    def _forget_old(self, now_s: float) -> None:
        while self.entries:
            key, oldest = next(iter(self.entries.items()))
            if oldest.since_s + self.forget_after_s > now_s:
                return
            del self.entries[key]

    def _remember(self, batch: SequencedBatch, ordinal: int, now_s: float) -> None:
        key = batch[:3]
        known = self.entries.get(key)
        same_run = known is not None and batch.producer_epoch == known.producer_epoch
        if known is not None and _must_refuse(batch, known, ordinal):
            self.by_order += 1
            if same_run:
                known.extend(batch)
            return  # a consequence of the first refusal, which stands
        self.entries.pop(key, None)  # the oldest stays first
        refused = self.entries[key] = _RefusedRun(batch, now_s)
        if batch.producer_id == NO_PRODUCER_ID:
            self._unseen.setdefault(ordinal, []).append(refused)
        elif known is not None and same_run and _is_earlier(refused.end, known.end):
            refused.extend_to(known.end)

    def _forget(self, batch: SequencedBatch, ordinal: int) -> None:
        key = batch[:3]
        known = self.entries.get(key)
        if known is None or _must_refuse(batch, known, ordinal):
            return
        if batch.producer_id == NO_PRODUCER_ID or batch.producer_epoch != known.producer_epoch:
            del self.entries[key]
        elif _is_earlier(known.awaited, _end_of(batch)):
            known.returned(batch)
            if not _is_earlier(known.awaited, known.end):
                del self.entries[key]

    def reply_left(self, ordinal: int, last_received: int) -> None:
        """The answer to request `ordinal` was handed to the socket when `last_received` was the newest request
        received. To be called for every Produce whose plan refused something.
        """
        for refused in self._unseen.pop(ordinal, ()):
            refused.replied(last_received)

    def statistics(self) -> dict[str, int]:
        """Batches that have yet to return, batches refused by order only, plans that had to wait."""
        return {"awaited": len(self.entries), "by_order": self.by_order, "at_limit": self.at_limit}


def plan_refusal(
    batches: Sequence[SequencedBatch],
    is_refused: Callable[[SequencedBatch], bool],
    sequences: RefusedSequences,
    *,
    ordinal: int,
    acks: int,
    is_transactional: bool,
) -> Plan:
    """What becomes of each partition of a Produce, without effect: `RefusedSequences.apply` has it.

    `is_refused`: whether the batch's topic is refused now (its queue is full, it waited for too long, it
    hangs, it is over its quota). To be asked when the request arrives and, if it waited, again when it is
    admitted or expires: one before it may have been refused meanwhile.
    """
    passing = tuple(PartitionVerdict.PASS for _ in batches)
    concerned = [is_refused(batch) for batch in batches]
    if acks == 0:
        return Plan(passing, must_wait=any(concerned))
    if not len(sequences) and not any(concerned):
        return Plan(passing)
    ordered = [sequences.must_refuse(batch, ordinal) for batch in batches]
    refused = [now or order for now, order in zip(concerned, ordered, strict=True)]
    if not any(refused):
        return Plan(passing)
    if is_transactional:
        refused = [True] * len(batches)
    verdicts = tuple(PartitionVerdict.REFUSE if one else PartitionVerdict.PASS for one in refused)
    to_remember = [batch for batch, one in zip(batches, refused, strict=True) if one]
    if sequences.has_room_for(to_remember):
        return Plan(verdicts)
    by_choice = any(concerned)
    return Plan(verdicts, must_wait=by_choice, must_close=not by_choice)
