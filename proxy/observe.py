"""What one Fetch answer of the broker's teaches, whoever asked: the watch, a proof, or a client.

Owns the join of the broker's word (truth), the bytes that came with it (cache) and those who wait for either.
It must not know where the answer goes. Invariants: nothing is stored from an answer that does not belong to
the proven leader epoch; waiters are woken once an answer, after all of it has been learned; transactions see
an answer's batches before its LSO, which would begin their run anew behind them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from protocol import batch
from protocol.errors import BadFrame, ErrorCode
from proxy import admit
from proxy.cleanup import find_cleaned_end
from proxy.truth import Learned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.fetch import FetchedPartition, FetchPartition, FetchResponse
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.partitions import Partition, Waiter

log = logging.getLogger("forebay.observe")

ABOUT_THE_ASKER = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors that speak of what a client asked, or of who it is: they say nothing against what memory holds."""

GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


def observe(
    broker: Broker,
    asked: Iterable[FetchPartition],
    response: FetchResponse,
    frame: Frame,
    sent_at: float,
    source: str,
) -> None:
    """Learn from `response` (its bytes in `frame`) to a Fetch of `asked` sent at `sent_at` by `source`
    (watch, proof, client).
    """
    by_key = {(a.topic, a.partition): a for a in asked}
    woken: dict[Waiter, Partition] = {}
    for answered in response.partitions:
        broker.counters.upstream_fetch_bytes[source] += answered.end - answered.start
        asking = by_key.get((answered.topic, answered.partition))
        if asking is None:
            continue
        partition = _followed(broker, answered, source)
        if partition is not None and _learn(broker, partition, asking, answered, frame, sent_at, source):
            woken.update(dict.fromkeys(partition.parked, partition))
    for waiter, partition in woken.items():
        broker.attempt(partial(waiter.wake, partition), "waking a fetch")


def _followed(broker: Broker, answered: FetchedPartition, source: str) -> Partition | None:
    topic = broker.topics.find(answered.topic)
    if topic is None and isinstance(answered.topic, bytes) and answered.error_code == ErrorCode.NONE:
        topic = broker.topics.confirm(answered.topic)
    if topic is None:
        return None
    if source == "client" and answered.error_code == ErrorCode.NONE:
        return broker.partitions.follow(topic, answered.partition)
    return broker.partitions.find(topic, answered.partition)


def _learn(
    broker: Broker,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
    frame: Frame,
    sent_at: float,
    source: str,
) -> bool:
    """Whether those who wait on the partition should look again."""
    if answered.error_code != ErrorCode.NONE:
        return learn_error(broker, partition, asking, answered, source)
    if answered.diverging is not None:
        if source != "client":
            _diverged(broker, partition, answered.diverging[1])
        return False
    partition.failures = 0  # also where nothing else is learned: the broker answers for it
    partition.retry_at = sent_at
    truth = partition.truth
    before = truth.offsets
    is_news = not truth.has_lease(broker.now()) or answered.end > answered.start
    lapsed = not truth.has_lease(sent_at)
    partition.stand_at = answered.high_watermark
    learned = truth.learn(
        asking.current_leader_epoch,
        answered.high_watermark,
        answered.last_stable_offset,
        answered.log_start_offset,
        sent_at + broker.config.cache.confirm_every_s,
    )
    if learned is Learned.NOTHING:
        return False
    if learned is not Learned.CONFIRMED:
        _entered_epoch(broker, partition, learned)
    elif truth.unchecked and _checks(broker, partition, asking):
        truth.unchecked = False
        lapsed = True  # what the new epoch wrote above the stored bytes is history by now
    if answered.log_start_offset > partition.log_start_offset:
        partition.log_start_offset = answered.log_start_offset
        broker.cache.advance_start(partition.slot, answered.log_start_offset)
    if answered.end > answered.start:
        _store(broker, partition, asking, answered, frame, source)
    partition.transactions.shown(
        answered.high_watermark, answered.last_stable_offset, answered.log_start_offset, broker.now()
    )
    admit.settle(partition, lapsed)
    if truth.high_watermark > before[0]:
        partition.news_at = broker.now()
    return is_news or lapsed or before != truth.offsets


def learn_error(
    broker: Broker, partition: Partition, asking: FetchPartition, answered: FetchedPartition, source: str
) -> bool:
    """An error answer: what it means for memory. True if those who wait should look again."""
    truth = partition.truth
    if answered.current_leader is not None:
        truth.suggest(answered.current_leader[1])
    ours = source != "client"
    if answered.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and ours:
        partition.own_link_refused = True
    if answered.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH and not ours:
        truth.suggest(asking.current_leader_epoch)
    if answered.error_code in ABOUT_THE_ASKER and not ours:
        return False
    truth.revoke()
    _back_off(broker, partition, asking.current_leader_epoch)
    broker.watch.ask_metadata(partition.topic.name or partition.topic.id)
    if answered.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and asking.fetch_offset >= partition.tail:
        broker.invalidate(partition, 0, "out-of-range")
        partition.stand_at = partition.acknowledged_end = -1
    elif answered.error_code in GONE:
        broker.forget(partition, "topic-gone")
    return True


def _back_off(broker: Broker, partition: Partition, asked_epoch: int) -> None:
    """Leave the partition alone for a while: one step however many polls bring the error, none where the
    question was out of date when it was answered.
    """
    now = broker.now()
    if asked_epoch < partition.truth.suggested_epoch:
        partition.retry_at = now
    elif partition.retry_at <= now:
        partition.retry_at = now + broker.watch.back_off_s(partition)


def _diverged(broker: Broker, partition: Partition, end_offset: int) -> None:
    """The log was truncated below what is stored: what lies at or above `end_offset` is void, and the check
    repeats.
    """
    log.warning("%r was truncated: dropping its blocks from offset %d", partition, end_offset)
    broker.invalidate(partition, max(end_offset, 0), "diverged")
    partition.truth.unchecked = partition.has_stored(broker.cache)


def _entered_epoch(broker: Broker, partition: Partition, learned: Learned) -> None:
    """A newer leader epoch is proven: what was not below the old HW was never proven visible and goes; the
    rest is checked first. Of transactions all goes: what is seen but not stored is in no check. What was
    acknowledged may have been truncated, and would be waited for until the log has grown over it again.
    """
    truth = partition.truth
    truth.entered(broker.now())
    if learned is Learned.NEW_EPOCH:
        log.info("%r is in leader epoch %d", partition, truth.epoch)
        broker.invalidate(partition, max(truth.end_before, 0), "epoch")
        partition.acknowledged_end = -1
        partition.transactions.truncate(0)
    truth.unchecked = partition.has_stored(broker.cache)


def _checks(broker: Broker, partition: Partition, asking: FetchPartition) -> bool:
    """Whether this successful Fetch stood at the end of the stored bytes and carried their epoch: then
    nothing has diverged.
    """
    edges = broker.cache.edges(partition.slot, 0)
    return (
        asking.last_fetched_epoch >= 0
        and asking.fetch_offset == edges.tail_end
        and asking.last_fetched_epoch == edges.last_epoch
    )


def _store(
    broker: Broker,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
    frame: Frame,
    source: str,
) -> None:
    try:
        batches = batch.scan_batches(frame, answered.start, answered.end)
    except BadFrame as error:
        log.error("the broker's batches of %r cannot be read, not storing them: %s", partition, error)
        return
    if not batches:
        return
    if any(b.magic < 2 for b in batches):
        partition.old_format = True
        return
    cleaned_end = find_cleaned_end(asking.fetch_offset, batches)
    if cleaned_end >= 0:
        broker.cache.advance_start(partition.slot, cleaned_end)
    admit.admit_fetched(broker, partition, asking, answered, frame, batches, source)
    covers_from = min(asking.fetch_offset, batches[0].base_offset)
    partition.transactions.observed(frame, batches, covers_from, batches[-1].last_offset + 1)
