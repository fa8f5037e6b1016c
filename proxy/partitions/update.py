"""Learns from responses to Forebay's own Fetches: the one source of epochs, offsets, leases and
fetched bytes.

Owns the join of leader state, cache and waiters. Must not know which connection brought the
response. Invariants:
* only responses by topic id are learned from: a name may stand for another topic by the time its
  response arrives.
* nothing is stored from a response that does not belong to the proven leader epoch, or while the
  partition is frozen.
* waiters are woken once per response, after all of it has been learned.
* transactions see a response's batches before its LSO. The LSO would otherwise begin their run
  again behind the batches.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch
from protocol.errors import BadFrame, ErrorCode
from proxy.partitions import store
from proxy.partitions.compaction import find_cleaned_end
from proxy.partitions.leader_state import Learned
from proxy.partitions.topics import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from protocol.fetch import FetchedPartition, FetchPartition, FetchResponse
    from protocol.primitives import Frame
    from proxy.partitions.services import PartitionServices
    from proxy.partitions.table import Partition, Waiter

log = logging.getLogger("forebay.partitions")

UNKNOWN_ID_ERRORS = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
OTHER_EPOCH = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
DIVERGED_MAX = 2
"""After more divergence responses in a row than this, all stored bytes of the partition are
dropped.
"""


RECALLED_BATCHES = 512
"""How many of the newest stored batches are looked at for markers, in a tenth of a millisecond."""
RECALLED_WITHIN_S = 10.0
"""Seconds after an LSO was shown. Where stored batches do not reach the HW by then, none are recalled."""


class Outcome(NamedTuple):
    """Of one partition's entry: whether it confirms the leader state, and whether waiters must
    evaluate the partition again.
    """

    is_confirmed: bool
    is_changed: bool


def observe(
    broker: PartitionServices,
    asked: Mapping[Partition, FetchPartition],
    response: FetchResponse,
    frame: Frame,
    sent_at: float,
    source: str,
) -> None:
    """Learn from `response` as `learn_response` does, then wake the waiters of what has changed."""
    _, changed = learn_response(broker, asked, response, frame, sent_at, source)
    wake_waiters(broker, changed)


def learn_response(
    broker: PartitionServices,
    asked: Mapping[Partition, FetchPartition],
    response: FetchResponse,
    frame: Frame,
    sent_at: float,
    source: str,
) -> tuple[list[Partition], list[Partition]]:
    """Learn from `response` (bytes in `frame`) to Forebay's own Fetch of `asked`, by topic id.

    `sent_at`: when the Fetch was sent, in seconds (monotonic). `source`: the counter's label,
    "watch" or "proof". Return the partitions whose leader state the response has confirmed, and
    those whose waiters must evaluate them again.
    """
    confirmed, changed = [], []
    counters = broker.counters
    counters.watch.answered_partitions += len(response.partitions)
    fetch_bytes = counters.upstream.fetch_bytes
    for answered in response.partitions:
        fetch_bytes[source] += answered.end - answered.start
        topic = broker.topics.find(answered.topic)
        partition = broker.partitions.find(topic, answered.partition) if topic is not None else None
        asking = asked.get(partition) if partition is not None else None
        if partition is None or asking is None:
            continue
        outcome = _learn(broker, partition, asking, answered, frame, sent_at)
        if outcome.is_confirmed:
            confirmed.append(partition)
        else:  # no session's response with this entry confirms it either
            partition.leader_state.detach()
        if outcome.is_changed:
            changed.append(partition)
        broker.replica_fetcher.changed(partition)
    return confirmed, changed


def wake_waiters(broker: PartitionServices, partitions: Iterable[Partition]) -> None:
    """Wake each waiter of these partitions once, with all of them that it waits for."""
    wakeups: dict[Waiter, list[Partition]] = {}
    for partition in partitions:
        for waiter in partition.parked:
            wakeups.setdefault(waiter, []).append(partition)
    for waiter, changed in wakeups.items():
        broker.attempt(partial(waiter.wake, *changed), "waking a fetch")


def _learn(
    broker: PartitionServices,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
    frame: Frame,
    sent_at: float,
) -> Outcome:
    """Learn from one partition's entry."""
    if answered.error_code != ErrorCode.NONE:
        return Outcome(False, learn_error(broker, partition, asking, answered))
    if answered.diverging is not None:
        _diverged(broker, partition, asking, *answered.diverging)
        return Outcome(False, False)
    partition.back_off.reset(sent_at)  # even if nothing else is learned
    leader_state, row = partition.leader_state, partition.row
    before = row.high_watermark, row.last_stable_offset, row.log_start_offset
    lease_until = leader_state.lease.until
    is_news = broker.now() >= lease_until or answered.end > answered.start
    lapsed = sent_at >= lease_until
    row.probe_offset = answered.high_watermark
    learned = leader_state.learn(
        asking.current_leader_epoch,
        answered.high_watermark,
        answered.last_stable_offset,
        answered.log_start_offset,
        sent_at + broker.config.cache.confirm_every_s,
    )
    if learned is Learned.NOTHING:
        return Outcome(False, False)
    if learned is not Learned.CONFIRMED:
        _enter_epoch(broker, partition, learned)
    taken_over = partition.taken_over
    if row.frozen and _is_proven(broker, partition, asking, answered, frame, sent_at):
        partition.confirm_log(partition.has_stored(broker.cache))
        is_news = True
        if taken_over is not None:  # what follows is stored before a reader comes back for it
            broker.replica_fetcher.follow(partition, None)
    if answered.log_start_offset > partition.log_start_offset:
        partition.advance_start(answered.log_start_offset)
        broker.cache.advance_start(partition.slot, answered.log_start_offset)
    if answered.end > answered.start and not row.frozen:
        _store(broker, partition, asking, answered, frame)
    partition.transactions.shown(
        answered.high_watermark,
        answered.last_stable_offset,
        answered.log_start_offset,
        broker.now(),
    )
    if partition.recalling is not None and not row.frozen:
        _recall(broker, partition, partition.recalling, answered, sent_at)
        is_news = is_news or partition.recalling is None
    if row.led_epoch != row.epoch and leader_state.is_replica and not row.frozen:
        _keep_checkable(broker, partition, lapsed)
    after = row.high_watermark, row.last_stable_offset, row.log_start_offset
    has_grown = after[0] > before[0]
    is_history = lapsed and not (taken_over is not None and taken_over.catches_up(sent_at))
    partition.settle(is_history, broker.now() if has_grown else partition.news_at)
    if row.frozen:
        broker.replica_fetcher.prove_next(partition)
    is_news = is_news or before != after or learned is not Learned.CONFIRMED
    return Outcome(True, is_news or lapsed)


def learn_error(
    broker: PartitionServices,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
) -> bool:
    """Learn from an error response to Forebay's own Fetch. Return True if the partition's waiters
    should evaluate it again.
    """
    leader_state, error = partition.leader_state, answered.error_code
    if error in UNKNOWN_ID_ERRORS:
        broker.forget_topic(partition.topic.id)
        return True
    if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        partition.back_off.refuse(broker.now())
        broker.replica_fetcher.forget(partition)
        leader_state.revoke()
        return True  # a waiting client has the right, and a connection that may ask
    if error in OTHER_EPOCH:
        leader_state.drop_suggestion(asking.current_leader_epoch)
        partition.topic.leaders[partition.index] = NO_LEADER
    if answered.current_leader is not None:
        leader_id, leader_epoch = answered.current_leader
        leader_state.suggest(leader_epoch, broker.node.is_this(leader_id))
    leader_state.revoke()
    _back_off(broker, partition, asking.current_leader_epoch)
    broker.topic_lookup.ask(partition.topic.id)
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        broker.invalidate(partition, 0, "out-of-range")
        partition.forget_log(-1, is_stored=False)
    return True


def _back_off(broker: PartitionServices, partition: Partition, asked_epoch: int) -> None:
    """Pause the questions about the partition. A question that was out of date when it was answered
    causes no pause.
    """
    if asked_epoch < partition.leader_state.asked_epoch:
        partition.back_off.end(broker.now())
    else:
        partition.back_off.extend(broker.now())


def _diverged(
    broker: PartitionServices,
    partition: Partition,
    asking: FetchPartition,
    epoch: int,
    end_offset: int,
) -> None:
    """Drop stored batches that are not the broker's: its log of `epoch` ends at `end_offset`, below
    the stored end. Batches of later epochs go, too. The check repeats, at most DIVERGED_MAX
    times.
    """
    leader_state = partition.leader_state
    if asking.current_leader_epoch < leader_state.epoch or not _stood_at_end(
        broker, partition, asking
    ):
        return  # responses crossed: an older epoch, or bytes dropped since
    from_offset = max(end_offset, 0)
    if partition.diverge() > DIVERGED_MAX:
        from_offset = 0
    else:
        later = broker.cache.first_after_epoch(partition.slot, epoch)
        from_offset = from_offset if later < 0 else min(from_offset, later)
    fields = partition.log_fields | {"offset": from_offset}
    log.warning("a partition was truncated: dropping its blocks from an offset on", extra=fields)
    broker.invalidate(partition, from_offset, "diverged")
    partition.forget_log(max(end_offset, 0), partition.has_stored(broker.cache))
    broker.replica_fetcher.prove_next(partition)


def _enter_epoch(broker: PartitionServices, partition: Partition, learned: Learned) -> None:
    """Enter a newly proven leader epoch.

    The stored batches, visible or not, are frozen until their end has been checked with the epoch
    they were stored in. All transactions are forgotten, since observed but unstored batches are in
    no check. Acknowledged records may have been truncated. Waiting for them would last until the
    log has grown over their offsets again.
    """
    is_new = learned is Learned.NEW_EPOCH
    if is_new:
        log.info(
            "a partition is in a new leader epoch",
            extra=partition.log_fields | {"epoch": partition.leader_state.epoch},
        )
    partition.enter_epoch(is_new, partition.has_stored(broker.cache))


def _recall(
    broker: PartitionServices,
    partition: Partition,
    recalling: tuple[int, float],
    answered: FetchedPartition,
    sent_at: float,
) -> None:
    """Extend what is known of the transactions to the stored batches from before their run, once those
    reach the HW of a response whose request was sent after an LSO in that run was shown. Below an
    abort marker nothing is known: its transaction may have begun before. A HW below the known one tells
    nothing: a broker that starts again in its epoch begins with the HW of its checkpoint.
    """
    transactions, high_watermark = partition.transactions, answered.high_watermark
    stable_offset, shown_at = recalling
    if not 0 <= transactions.known_from <= stable_offset:
        shown = min(answered.last_stable_offset, high_watermark)
        partition.recall((shown, broker.now()))
    elif sent_at > shown_at and high_watermark == partition.leader_state.high_watermark:
        start = broker.cache.unaborted_from(partition.slot, high_watermark, RECALLED_BATCHES)
        if start < high_watermark:
            transactions.recall(max(start, answered.log_start_offset), high_watermark)
            partition.recall(None)
        elif broker.now() > shown_at + RECALLED_WITHIN_S:
            partition.recall(None)  # nobody waits for what a silent partition would have to bring


def _keep_checkable(broker: PartitionServices, partition: Partition, lapsed: bool) -> None:
    """Keep only batches whose end the replica fetcher's next Fetch checks, since this log may be
    truncated at any time. Batches above the HW go, and batches below a gap of history.
    """
    high_watermark = partition.leader_state.high_watermark
    if lapsed and partition.tail < high_watermark:
        broker.invalidate(partition, 0, "replica")
    elif broker.cache.tail(partition.slot)[1] > high_watermark:
        broker.invalidate(partition, high_watermark, "replica")
    start, end = broker.cache.tail(partition.slot)
    if start < end:
        partition.move_tail(end)


def _is_proven(
    broker: PartitionServices,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
    frame: Frame,
    sent_at: float,
) -> bool:
    """True if this successful Fetch, sent at `sent_at`, ends the doubt about the stored bytes. What
    cannot be proven of an earlier process's is dropped, which ends it too.
    """
    taken_over = partition.taken_over
    if taken_over is None or not partition.has_stored(broker.cache):
        return _is_check(broker, partition, asking)
    high_watermark = partition.leader_state.high_watermark
    if taken_over.sample is None:
        if not _stood_at_end(broker, partition, asking):
            return False
        # a follower may truncate between the two questions
        if not partition.leader_state.is_replica and taken_over.choose_sample(
            broker.cache, partition.slot, high_watermark, sent_at
        ):
            return False
        broker.invalidate(partition, 0, "unproven")
        return True
    is_equal = taken_over.compare(asking, answered, frame)
    if is_equal is False:
        log.warning(
            "an earlier process stored other bytes than the broker: dropping them",
            extra=partition.log_fields | {"offset": taken_over.sample.base_offset},
        )
        broker.invalidate(partition, 0, "mismatch")
    elif is_equal:
        broker.counters.stored.taken_over_partitions += 1
    return is_equal is not None


def _is_check(broker: PartitionServices, partition: Partition, asking: FetchPartition) -> bool:
    """True if this successful Fetch shows that nothing has diverged (Partition.readRecords)."""
    return not partition.has_stored(broker.cache) or _stood_at_end(broker, partition, asking)


def _stood_at_end(broker: PartitionServices, partition: Partition, asking: FetchPartition) -> bool:
    """True if this Fetch was at the end of the stored bytes, and carried their epoch."""
    edges = broker.cache.edges(partition.slot, 0)
    return (asking.fetch_offset, asking.last_fetched_epoch) == (edges.tail_end, edges.last_epoch)


def _store(
    broker: PartitionServices,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
    frame: Frame,
) -> None:
    try:
        batches = batch.scan_batches(frame, answered.start, answered.end)
    except BadFrame as error:
        fields = partition.log_fields | {"reason": str(error)}
        log.error("the broker's batches cannot be read, not storing them", extra=fields)
        return
    if not batches:
        return
    if any(b.magic < 2 for b in batches):
        partition.note_old_format()
        return
    cleaned_end = find_cleaned_end(asking.fetch_offset, batches)
    if cleaned_end >= 0:
        broker.cache.advance_start(partition.slot, cleaned_end)
    store.admit_fetched(broker, partition, asking, frame, batches)
    covers_from = min(asking.fetch_offset, batches[0].base_offset)
    partition.transactions.observed(frame, batches, covers_from, batches[-1].last_offset + 1)
