"""What an earlier process stored is served only once the broker has shown the same batches."""

import pytest

from protocol import fetch
from protocol.control_batch import ControlType
from proxy.broker import Broker
from proxy.partitions import update
from proxy.partitions.readable import ReadState, plan_partition
from proxy.partitions.taken_over import CATCH_UP_S, GAP_S, TRIES_MAX
from proxy.replica_fetcher.poll import NOTHING_STORED, may_be_truncated, plan_asked
from tests.kit.cache_batches import build_batch, build_run, insert
from tests.protocol.markers import build_marker
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker, known, stand_in

RECORDS = 10
OTHER_ID = bytes(16)[:-1] + b"\1"
NOW_S = 5.0
"""When the arena is taken over."""
BETWEEN_S = 0.001
"""From one answer to the next question."""
SAID = fetch.FetchedPartition(TOPIC_ID, 0, 0, -1, -1, -1, -1, None, None, None, 0, 0)


class Restarted:
    """A process whose cache holds RECORDS batches of partition 0, from an earlier one; and the broker's log."""

    def __init__(self, down_s=1.0, records=RECORDS, is_led=True, epochs=(EPOCH,)):
        self.broker = QuietBroker()
        self.is_led = is_led
        slot = self.broker.cache.open(TOPIC_ID, 0)
        self.stored = b"".join(
            build_run(number * records, records, epoch=epoch) for number, epoch in enumerate(epochs)
        )
        insert(self.broker.cache, slot, self.stored)
        self.end = records * len(epochs)
        slots = {(TOPIC_ID, 0): slot, (OTHER_ID, 0): self.broker.cache.open(OTHER_ID, 0)}
        self.topics = self.broker.partitions.take_over(slots, down_s, NOW_S)
        self.partition = self.broker.follow()
        self.leader_state = self.partition.leader_state
        self.dropped = []
        setattr(self.broker, "invalidate", self.invalidate)  # noqa: B010

    def invalidate(self, partition, from_offset, reason):
        Broker.invalidate(stand_in(self.broker), partition, from_offset, reason)
        self.dropped.append((from_offset, reason))

    def ask(self, epoch=EPOCH):
        self.leader_state.suggest(epoch, self.is_led)
        edges = self.broker.cache.edges(self.partition.slot, 0)
        may_be_cut = may_be_truncated(self.partition)
        return plan_asked(self.partition, edges if may_be_cut else NOTHING_STORED, 4096)

    def answer(
        self, records=b"", high_watermark=None, epoch=EPOCH, diverging=None, start=0, stable=None
    ):
        """Answer the next question, sent now; return it."""
        self.broker.clock_s = max(self.broker.clock_s, NOW_S)
        asking = self.ask(epoch)
        high_watermark = self.end if high_watermark is None else high_watermark
        said = SAID._replace(
            high_watermark=high_watermark,
            last_stable_offset=high_watermark if stable is None else stable,
            log_start_offset=start,
            diverging=diverging,
            end=len(records),
        )
        answer = fetch.FetchResponse(0, 0, 0, [said])
        update.observe(
            self.broker, {self.partition: asking}, answer, records, self.broker.clock_s, "proof"
        )
        self.broker.clock_s += BETWEEN_S
        return asking

    @property
    def is_served(self):
        return not self.leader_state.frozen and self.partition.has_stored(self.broker.cache)


def newest(records=RECORDS, epoch=EPOCH, **differs):
    return build_batch(records - 1, **{"epoch": epoch, **differs})


def test_bytes_are_served_after_the_check_and_an_equal_sample():
    restarted = Restarted()
    asking = restarted.answer()
    assert (asking.fetch_offset, asking.last_fetched_epoch) == (RECORDS, EPOCH)
    assert restarted.leader_state.frozen
    assert restarted.broker.replica_fetcher.next_proven == [restarted.partition]
    asking = restarted.answer(newest())
    assert (asking.fetch_offset, asking.last_fetched_epoch, asking.max_bytes) == (9, -1, 200)
    assert restarted.is_served and not restarted.dropped
    assert restarted.broker.counters.stored.taken_over_partitions == 1
    assert restarted.partition.tail == RECORDS
    assert restarted.ask().last_fetched_epoch == -1


def test_the_check_alone_or_another_answer_proves_nothing():
    restarted = Restarted()
    restarted.answer()
    restarted.answer()  # no room for the sample
    assert restarted.leader_state.frozen
    # a poll of before that stood elsewhere
    asking = restarted.ask()._replace(fetch_offset=3)
    said = SAID._replace(high_watermark=10, last_stable_offset=10, log_start_offset=0)
    answer = fetch.FetchResponse(0, 0, 0, [said])
    update.observe(restarted.broker, {restarted.partition: asking}, answer, b"", 0.0, "watch")
    assert restarted.leader_state.frozen


@pytest.mark.parametrize(
    "brought",
    [
        pytest.param(newest(seed=1), id="other bytes"),
        pytest.param(newest(epoch=EPOCH - 1), id="another epoch"),
        pytest.param(newest(size=300), id="another length"),
        pytest.param(build_batch(8, 2, epoch=EPOCH), id="other offsets"),
        pytest.param(newest(size=300)[:200], id="a part of a larger batch"),
        pytest.param(b"\0" * 200, id="garbage"),
    ],
)
def test_an_unequal_sample_drops_all(brought):
    restarted = Restarted()
    restarted.answer()
    restarted.answer(brought)
    assert restarted.dropped[0] == (0, "mismatch")
    assert not restarted.is_served and not restarted.leader_state.frozen
    assert restarted.broker.counters.stored.taken_over_partitions == 0


def test_a_sample_that_never_comes_drops_all():
    restarted = Restarted()
    restarted.answer()
    for _ in range(TRIES_MAX - 1):
        restarted.answer()
        assert restarted.leader_state.frozen
    restarted.answer()
    assert restarted.dropped == [(0, "mismatch")]


def test_a_truncated_log_is_cut_and_checked_again():
    restarted = Restarted()
    restarted.answer(diverging=(EPOCH, 6))
    assert restarted.dropped == [(6, "diverged")]
    asking = restarted.answer(high_watermark=6)
    assert (asking.fetch_offset, asking.last_fetched_epoch) == (6, EPOCH)
    asking = restarted.answer(newest(6), high_watermark=6)
    assert asking.fetch_offset == 5
    assert restarted.is_served


def test_an_unclean_election_drops_batches_of_unknown_epochs():
    restarted = Restarted(epochs=(EPOCH, EPOCH + 2))
    restarted.answer(epoch=EPOCH + 3, diverging=(EPOCH + 1, 15))
    assert restarted.dropped == [(RECORDS, "diverged")]
    restarted.answer(epoch=EPOCH + 3, high_watermark=15)
    restarted.answer(newest(), epoch=EPOCH + 3, high_watermark=15)
    assert restarted.is_served


def test_an_epoch_between_check_and_sample_begins_anew():
    restarted = Restarted()
    restarted.answer()
    restarted.answer(newest(), epoch=EPOCH + 1)  # carried the newer epoch: asked at the end
    assert restarted.leader_state.frozen
    asking = restarted.ask(EPOCH + 1)
    assert asking.current_leader_epoch == EPOCH + 1
    restarted.answer(epoch=EPOCH + 1)
    restarted.answer(newest(), epoch=EPOCH + 1)
    assert restarted.is_served


def test_batches_above_the_high_watermark_wait_for_it():
    restarted = Restarted()
    restarted.answer(high_watermark=7)
    asking = restarted.answer(newest(7), high_watermark=7)
    assert asking.fetch_offset == 6
    assert restarted.is_served
    assert restarted.partition.readable_end(False) == 7


def test_nothing_visible_is_nothing_proven():
    restarted = Restarted()
    restarted.answer(high_watermark=0)
    assert restarted.dropped == [(0, "unproven")]


@pytest.mark.parametrize(("down_s", "dropped"), [(GAP_S, []), (GAP_S + 1, [(0, "unproven")])])
def test_a_gap_after_a_long_pause_may_hide_what_was_cleaned(down_s, dropped):
    restarted = Restarted(down_s)
    restarted.answer(high_watermark=12)
    assert restarted.dropped == dropped
    if not dropped:
        restarted.answer(newest(), high_watermark=12)
        assert restarted.is_served
        assert restarted.partition.tail == 12, "the gap is history"


def test_a_long_pause_without_a_gap_hides_nothing():
    restarted = Restarted(GAP_S * 100)
    restarted.answer()
    restarted.answer(newest())
    assert restarted.is_served


def test_a_follower_serves_nothing_of_before():
    restarted = Restarted(is_led=False)
    restarted.answer()
    assert restarted.dropped[0] == (0, "unproven")


def test_a_moved_log_start_drops_what_is_below():
    restarted = Restarted()
    restarted.answer(start=4)
    restarted.answer(newest(), start=4)
    assert restarted.broker.cache.contiguous_end(restarted.partition.slot, 3) == 3
    assert restarted.is_served


def test_all_bytes_of_before_count_as_produced_and_as_zstd():
    restarted = Restarted()
    assert restarted.partition.produced_from == 0 and restarted.partition.zstd
    restarted.broker.distrust(restarted.partition.topic, "unlike")
    assert restarted.dropped == [(0, "unlike")]
    assert restarted.partition.taken_over is None


def test_the_time_until_the_proof_counts_as_a_pause():
    restarted = Restarted(0.0)
    restarted.broker.clock_s = NOW_S + GAP_S + 1
    restarted.answer(high_watermark=12)
    assert restarted.dropped == [(0, "unproven")]


@pytest.mark.parametrize(("down_s", "end"), [(CATCH_UP_S - 1, 12), (CATCH_UP_S + 1, 10)])
def test_what_follows_soon_is_stored_where_the_batches_end(down_s, end):
    """Consumers come back for it. After a longer pause it is history, and stays a gap."""
    restarted = Restarted(down_s)
    restarted.answer(high_watermark=12)
    restarted.answer(newest(), high_watermark=12)
    assert restarted.broker.replica_fetcher.followed == [restarted.partition]
    asking = restarted.answer(build_run(RECORDS, 2, epoch=EPOCH), high_watermark=12)
    assert asking.fetch_offset == (RECORDS if end == 12 else 12)
    assert restarted.broker.cache.contiguous_end(restarted.partition.slot, 0) == end
    assert restarted.partition.tail == 12


def test_its_readers_are_expected_for_a_while():
    restarted = Restarted()
    assert restarted.partition.wanted_at == NOW_S


def prove(restarted, stable=RECORDS):
    restarted.answer()
    restarted.answer(newest(), stable=stable)
    restarted.answer(stable=stable)


def test_transactions_of_before_are_recalled_from_the_batches():
    """Not by the response that shows the LSO: the HW that comes with it may be older."""
    restarted = Restarted()
    transactions = restarted.partition.transactions
    restarted.answer()
    restarted.answer(newest())
    assert transactions.listed_end(3) == 3
    restarted.answer()
    assert transactions.listed_end(0) == RECORDS
    assert transactions.aborted(0, RECORDS) == []
    assert restarted.partition.recalling is None


def test_transactions_are_recalled_once_the_batches_reach_the_high_watermark():
    restarted = Restarted()
    restarted.answer(high_watermark=12)
    restarted.answer(newest(), high_watermark=12)
    for _ in range(3):
        restarted.answer(high_watermark=12)
        assert restarted.partition.transactions.listed_end(3) == 3
    restarted.answer(build_run(RECORDS, 2, epoch=EPOCH), high_watermark=12)
    assert restarted.partition.transactions.listed_end(3) == 12


def test_a_gap_below_a_silent_partitions_end_is_not_waited_for():
    restarted = Restarted()
    restarted.answer(high_watermark=12)
    restarted.answer(newest(), high_watermark=12)
    _, shown_at = known(restarted.partition.recalling)
    restarted.broker.clock_s = shown_at + update.RECALLED_WITHIN_S
    restarted.answer(high_watermark=12)
    assert restarted.partition.recalling is not None
    restarted.answer(high_watermark=12)
    assert restarted.partition.recalling is None


def test_a_request_of_before_recalls_nothing():
    """The broker may have looked at its HW before a transaction ended."""
    restarted = Restarted()
    restarted.answer()
    restarted.answer(newest())
    restarted.broker.clock_s += 1
    sent_before, restarted.broker.clock_s = restarted.broker.clock_s, restarted.broker.clock_s + 1
    restarted.partition.recall((RECORDS, restarted.broker.clock_s))
    said = SAID._replace(high_watermark=10, last_stable_offset=10, log_start_offset=0)
    answer = fetch.FetchResponse(0, 0, 0, [said])
    asking = {restarted.partition: restarted.ask()}
    update.observe(restarted.broker, asking, answer, b"", sent_before, "watch")
    assert restarted.partition.transactions.listed_end(3) == 3
    restarted.broker.clock_s += BETWEEN_S
    restarted.answer()
    assert restarted.partition.transactions.listed_end(3) == RECORDS


def with_marker(marker, offset):
    """RECORDS batches are stored, one of them a marker."""
    restarted = Restarted(records=4)
    cache, slot = restarted.broker.cache, restarted.partition.slot
    cache.truncate(slot, 0)
    insert(cache, slot, build_run(0, offset, epoch=EPOCH))
    insert(cache, slot, build_marker(offset, marker))
    insert(cache, slot, build_run(offset + 1, RECORDS - offset - 1, epoch=EPOCH))
    restarted.end = RECORDS
    return restarted


def test_a_request_of_the_same_moment_recalls_nothing():
    """It may have been sent before the LSO was shown."""
    restarted = Restarted()
    restarted.answer()
    restarted.answer(newest())
    _, shown_at = known(restarted.partition.recalling)
    restarted.broker.clock_s = shown_at
    restarted.answer()
    assert restarted.partition.transactions.listed_end(3) == 3
    restarted.answer()
    assert restarted.partition.transactions.listed_end(3) == RECORDS


def test_a_high_watermark_below_the_known_one_recalls_nothing():
    """A broker that starts again in its epoch begins with the HW of its checkpoint
    (ReplicaManager.checkpointHighWatermarks). A transaction from below the LSO that it showed before may
    have its marker above.
    """
    restarted = with_marker(ControlType.ABORT, 8)
    restarted.answer(stable=6)
    restarted.answer(newest(), stable=6)
    restarted.answer(high_watermark=8, stable=6)
    assert restarted.partition.transactions.aborted(3, 6) is None
    restarted.answer(stable=6)
    assert restarted.partition.transactions.aborted(3, 6) is None
    assert restarted.partition.recalling is None


@pytest.mark.parametrize("marker", [ControlType.COMMIT, ControlType.ABORT, ControlType.UNKNOWN])
def test_nothing_is_recalled_below_a_marker_that_may_abort(marker):
    restarted = with_marker(marker, 5)
    prove(restarted)
    known_from = 0 if marker is ControlType.COMMIT else 6
    assert restarted.partition.transactions.known_from == known_from


def test_an_epoch_change_recalls_transactions_of_what_is_stored():
    restarted = Restarted()
    prove(restarted)
    restarted.answer(epoch=EPOCH + 1)
    assert restarted.is_served
    assert restarted.partition.transactions.listed_end(3) == 3
    restarted.answer(epoch=EPOCH + 1)
    assert restarted.partition.transactions.listed_end(3) == RECORDS


def test_nothing_is_stored_on_what_is_not_proven():
    restarted = Restarted()
    restarted.answer(build_run(RECORDS, 2, epoch=EPOCH), high_watermark=12)
    assert restarted.broker.cache.tail(restarted.partition.slot)[1] == RECORDS


def test_unclaimed_partitions_are_dropped():
    restarted = Restarted()
    assert restarted.topics == [TOPIC_ID, OTHER_ID]
    partitions, cache = restarted.broker.partitions, restarted.broker.cache
    assert (partitions.unclaimed, cache.statistics().partitions) == (1, 2)
    assert partitions.drop_unclaimed(TOPIC_ID) == 0
    assert partitions.drop_unclaimed(OTHER_ID) == 1
    assert (partitions.unclaimed, cache.statistics().partitions) == (0, 1)


def test_unclaimed_partitions_make_room():
    broker = QuietBroker(max_partitions=2)
    slots = {(OTHER_ID, index): broker.cache.open(OTHER_ID, index) for index in range(2)}
    broker.partitions.take_over(slots, 1.0, 0.0)
    assert broker.follow(0) and broker.follow(1)
    assert broker.partitions.unclaimed == 0


def test_a_pending_cache_follows_nothing():
    broker = QuietBroker()
    broker.cache.is_pending = True
    topic = known(broker.topics.find(TOPIC_ID))
    assert broker.partitions.follow(topic, 0) is None and broker.partitions.refused == 0
    broker.cache.is_pending = False
    assert broker.partitions.follow(topic, 0)


def test_a_reader_waits_for_transactions_that_are_being_recalled():
    restarted = Restarted()
    restarted.answer()
    restarted.answer(newest())
    asked = fetch.FetchPartition(TOPIC_ID, 0, -1, 3, -1, -1, 1000)

    def plan():
        now = restarted.broker.clock_s
        status = plan_partition(restarted.broker.cache, asked, restarted.partition, 1, 13, now)
        return status.state, status.reason

    assert plan() == (ReadState.IN_TRANSIT, "transaction")
    restarted.answer()
    assert plan() == (ReadState.READABLE, "")
    restarted.partition.transactions.forget_before(5)
    assert plan() == (ReadState.MISS, "transaction")
