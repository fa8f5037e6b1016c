"""Responses to Forebay's own Fetches: errors and their pauses, new epochs, divergences, transactions."""

from types import SimpleNamespace
from typing import Any

import pytest

from protocol import fetch
from protocol.control_batch import ControlType
from protocol.errors import ErrorCode
from proxy.broker import Broker
from proxy.partitions import update
from proxy.partitions.back_off import FIRST_PAUSE_S, REFUSED_FOR_S
from proxy.partitions.update import learn_error, wake_waiters
from proxy.replica_fetcher.poll import NOTHING_STORED, may_be_truncated, plan_asked
from tests.kit.cache_batches import build_run, insert
from tests.protocol.markers import build_marker
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, QuietBroker


@pytest.fixture
def broker():
    return QuietBroker()


def asked(epoch=EPOCH):
    return fetch.FetchPartition(TOPIC_ID, 0, epoch, 0, -1, -1, 1)


def observe(broker, asked, response, *others):
    """As `update.observe` of what is followed, in the order of the questions."""
    topic = broker.topics.find(TOPIC_ID)
    by_partition = {broker.partitions.find(topic, one.partition): one for one in asked}
    update.observe(broker, by_partition, response, *others)


def answered(error_code, current_leader=None):
    return fetch.FetchedPartition(
        TOPIC_ID, 0, error_code, -1, -1, -1, -1, None, current_leader, None, 0, 0
    )


def test_one_error_of_several_polls_backs_off_once(broker):
    partition = broker.follow()
    partition.leader_state.suggest(EPOCH, True)
    for broker.clock_s in (10.0, 10.01, 10.09):
        assert learn_error(broker, partition, asked(), answered(ErrorCode.FENCED_LEADER_EPOCH))
        assert partition.back_off.until == 10.0 + FIRST_PAUSE_S
    broker.clock_s = 11.0
    learn_error(broker, partition, asked(), answered(ErrorCode.FENCED_LEADER_EPOCH))
    assert partition.back_off.until == 11.0 + 2 * FIRST_PAUSE_S


def test_error_about_an_old_epoch_causes_no_pause(broker):
    partition = broker.follow()
    partition.leader_state.suggest(EPOCH + 1, True)
    broker.clock_s = 10.0
    learn_error(broker, partition, asked(), answered(ErrorCode.FENCED_LEADER_EPOCH))
    assert partition.back_off.until == 10.0
    assert not partition.leader_state.has_lease(10.0)


def test_epoch_named_by_an_error_is_used(broker):
    partition = broker.follow()
    said = answered(ErrorCode.FENCED_LEADER_EPOCH, (1, EPOCH + 2))
    learn_error(broker, partition, asked(), said)
    assert partition.leader_state.suggested_epoch == EPOCH + 2
    assert partition.back_off.until == broker.now()


def test_a_success_ends_the_back_off(broker):
    partition = broker.follow()
    learn_error(broker, partition, asked(), answered(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert partition.back_off.until > broker.now()
    said = answered(ErrorCode.NONE)._replace(
        high_watermark=0, last_stable_offset=0, log_start_offset=0
    )
    observe(broker, [asked()], fetch.FetchResponse(0, 0, 0, [said]), b"", 0.5, "proof")
    assert partition.back_off.until <= 0.5
    assert partition.back_off.failures == 0


def brought(broker, high_watermark, marker_offset=None, epoch=EPOCH, stable=None):
    """An answer to the watch; with the marker of a commit in it."""
    frame = b"" if marker_offset is None else build_marker(marker_offset, ControlType.COMMIT)
    said = answered(ErrorCode.NONE)._replace(
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if stable is None else stable,
        log_start_offset=0,
        end=len(frame),
    )
    asking = asked(epoch)._replace(
        fetch_offset=high_watermark if marker_offset is None else marker_offset
    )
    observe(broker, [asking], fetch.FetchResponse(0, 0, 0, [said]), frame, 0.0, "watch")


def test_batches_are_learned_before_the_lso(broker):
    partition = broker.follow()
    brought(broker, 4)
    brought(broker, 5, 4)
    assert (partition.transactions.known_from, partition.transactions.end) == (4, 5)


def test_unproven_epoch_proves_no_transactions(broker):
    partition = broker.follow()
    brought(broker, 4)
    brought(broker, 9, epoch=EPOCH - 1)
    brought(broker, 9, epoch=-1)
    assert (partition.transactions.end, partition.last_stable_offset()) == (4, 4)


def test_new_epoch_begins_a_run_at_its_lso(broker):
    partition = broker.follow()
    brought(broker, 4)
    brought(broker, 6, 5, stable=4)  # a piece above a hole
    brought(broker, 5, epoch=EPOCH + 1, stable=3)
    assert (partition.transactions.known_from, partition.transactions.end) == (3, 3)
    assert partition.transactions.statistics().pieces == 0
    assert partition.last_stable_offset() == 3


def test_new_epoch_forgets_the_acknowledged_end(broker):
    """It may have been truncated; the first epoch follows upon none, and the same one truncates nothing."""
    partition = broker.follow()
    partition.acknowledged_end = 9
    brought(broker, 4)
    brought(broker, 5)
    assert partition.has_unseen(5)
    brought(broker, 6, epoch=EPOCH - 1)
    assert partition.has_unseen(5)
    brought(broker, 3, epoch=EPOCH + 1)
    assert not partition.has_unseen(3)


class Log:
    """A broker's log as Forebay's own Fetches see it, and a partition of which batches of one record are stored."""

    def __init__(self, broker, *epochs):
        """Each of `epochs` has ten stored records, the first from offset 0; they are proven, and led by this broker."""
        self.broker = broker
        self.partition = broker.follow()
        for number, epoch in enumerate(epochs):
            run = build_run(10 * number, 10, epoch=epoch)
            insert(broker.cache, self.partition.slot, run)
        self.end = 10 * len(epochs)
        self.leader_state = self.partition.leader_state
        self.leader_state.suggest(epochs[-1], True)
        self.answer(epoch=epochs[-1], checks=True)
        self.partition.tail = self.end
        broker.invalidate = self.invalidate
        self.dropped = []

    def invalidate(self, partition, from_offset, reason):
        Broker.invalidate(self.broker, partition, from_offset, reason)
        self.dropped.append((from_offset, reason))

    def ask(self):
        """The next question about the partition."""
        edges = self.broker.cache.edges(self.partition.slot, 0)
        return plan_asked(
            self.partition, edges if may_be_truncated(self.partition) else NOTHING_STORED, 4096
        )

    def answer(self, epoch, high_watermark=None, checks=False, diverging=None, error=0):
        """Answer a question in `epoch`; `checks`: as it is asked, else one that stood at the HW."""
        self.leader_state.suggest(epoch, True)
        high_watermark = self.end if high_watermark is None else high_watermark
        asking = (
            self.ask()
            if checks or diverging or error
            else asked(epoch)._replace(fetch_offset=self.end)
        )
        said = answered(error)._replace(
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=0,
            diverging=diverging,
        )
        observe(
            self.broker,
            [asking],
            fetch.FetchResponse(0, 0, 0, [said]),
            b"",
            self.broker.clock_s,
            "proof",
        )

    @property
    def stored_end(self):
        return self.broker.cache.edges(self.partition.slot, 0).tail_end


def test_new_epoch_freezes_until_the_divergence_check(broker):
    log = Log(broker, EPOCH)
    log.answer(EPOCH + 1, high_watermark=14)
    assert log.leader_state.frozen
    assert broker.replica_fetcher.next_proven == [log.partition]
    asking = log.ask()
    assert (asking.fetch_offset, asking.last_fetched_epoch, asking.current_leader_epoch) == (
        10,
        EPOCH,
        EPOCH + 1,
    )
    log.answer(EPOCH + 1, high_watermark=14, checks=True)
    assert not log.leader_state.frozen
    assert (log.dropped, log.stored_end) == ([], 10)
    assert log.ask().last_fetched_epoch == -1


def test_a_frozen_partition_stores_nothing_that_is_fetched(broker):
    log = Log(broker, EPOCH)
    log.leader_state.frozen = True
    run = build_run(10, 1, epoch=EPOCH)
    said = answered(0)._replace(
        high_watermark=11, last_stable_offset=11, log_start_offset=0, end=len(run)
    )
    asking = asked()._replace(fetch_offset=10)
    observe(broker, [asking], fetch.FetchResponse(0, 0, 0, [said]), run, 0.0, "watch")
    assert log.stored_end == 10
    observe(
        broker,
        [asking._replace(last_fetched_epoch=EPOCH)],
        fetch.FetchResponse(0, 0, 0, [said]),
        run,
        0.0,
        "watch",
    )
    assert log.stored_end == 11


def test_divergence_drops_above_and_is_checked_again(broker):
    log = Log(broker, EPOCH)
    log.answer(EPOCH + 1, diverging=(EPOCH, 6))
    assert (log.dropped, log.stored_end) == ([(6, "diverged")], 6)
    assert log.leader_state.frozen
    assert not log.leader_state.has_lease(0.0)
    log.answer(EPOCH + 1, checks=True, high_watermark=20)
    assert not log.leader_state.frozen
    assert log.leader_state.epoch == EPOCH + 1
    assert log.stored_end == 6


def test_divergence_drops_batches_of_unknown_epochs(broker):
    """Two lost epochs: the log of EPOCH goes on above the first batch of the first of them."""
    log = Log(broker, EPOCH, EPOCH + 1, EPOCH + 3)
    log.answer(EPOCH + 5, diverging=(EPOCH, 15))
    assert (log.dropped, log.stored_end) == ([(10, "diverged")], 10)
    log.answer(EPOCH + 5, checks=True, high_watermark=40)
    assert not log.leader_state.frozen


def test_repeated_divergence_drops_all(broker):
    log = Log(broker, EPOCH)
    for end_offset in (8, 7):
        log.answer(EPOCH + 1, diverging=(EPOCH, end_offset))
        assert log.stored_end == end_offset
    log.answer(EPOCH + 1, diverging=(EPOCH, 6))
    assert log.dropped[-1] == (0, "diverged")
    assert not log.partition.has_stored(broker.cache)
    assert not log.leader_state.frozen
    log.answer(EPOCH + 1, high_watermark=30)
    assert log.leader_state.has_lease(0.0)
    assert log.partition.tail == 30


def test_out_of_range_drops_bytes_and_offsets(broker):
    log = Log(broker, EPOCH)
    log.answer(EPOCH, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert not log.partition.has_stored(broker.cache)
    forgotten = log.leader_state
    assert (forgotten.high_watermark, forgotten.last_stable_offset) == (-1, -1)
    assert forgotten.log_start_offset == -1
    assert log.ask() is None
    log.partition.probe_offset = 50
    assert log.ask().fetch_offset == 50
    log.answer(EPOCH, high_watermark=60, checks=True)
    assert log.partition.tail == 60


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH])
def test_only_metadata_repeats_a_refused_suggestion(broker, error):
    log = Log(broker, EPOCH)
    log.leader_state.suggest(EPOCH + 9, True)
    learn_error(broker, log.partition, asked(EPOCH + 9), answered(error))
    assert log.ask().current_leader_epoch == EPOCH
    assert broker.asked_topics == [TOPIC_ID]
    assert log.partition.topic.leaders[0].epoch == -1


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID])
def test_unknown_topic_id_forgets_its_topic(broker, error):
    partition = broker.follow()
    assert learn_error(broker, partition, asked(), answered(error))
    assert broker.forgotten == [TOPIC_ID]


def test_follower_is_checked_for_divergence_each_time(broker):
    log = Log(broker, EPOCH)
    log.leader_state.suggest(EPOCH + 1, False)
    asking = log.ask()
    observe(
        broker,
        [asking],
        fetch.FetchResponse(
            0,
            0,
            0,
            [answered(0)._replace(high_watermark=10, last_stable_offset=10, log_start_offset=0)],
        ),
        b"",
        0.0,
        "watch",
    )
    assert log.leader_state.is_replica
    assert not log.leader_state.frozen
    assert may_be_truncated(log.partition)
    assert log.ask().last_fetched_epoch == EPOCH
    broker.clock_s = 10.0
    log.leader_state.suggest(EPOCH + 1, False)
    said = answered(0)._replace(high_watermark=30, last_stable_offset=30, log_start_offset=0)
    observe(broker, [log.ask()], fetch.FetchResponse(0, 0, 0, [said]), b"", 10.0, "watch")
    assert log.dropped == [(0, "replica")], "the watch goes on at 30, where it cannot ask about 10"


def test_refused_topic_is_retried_after_a_pause(broker):
    partition = broker.follow()
    learn_error(broker, partition, asked(), answered(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert partition.is_refused(REFUSED_FOR_S - 1)
    assert not partition.is_refused(REFUSED_FOR_S)


def test_follower_keeps_nothing_above_the_hw(broker):
    """It was stored from Produce while this broker led. A Fetch that stood at its end would be answered at once."""
    log = Log(broker, EPOCH)
    log.leader_state.suggest(EPOCH + 1, False)
    asking = log.ask()
    assert (asking.fetch_offset, asking.last_fetched_epoch) == (10, EPOCH)
    said = answered(0)._replace(high_watermark=7, last_stable_offset=7, log_start_offset=0)
    observe(broker, [asking], fetch.FetchResponse(0, 0, 0, [said]), b"", 0.0, "proof")
    assert (log.dropped, log.stored_end, log.partition.tail) == ([(7, "replica")], 7, 7)
    asking = log.ask()
    assert (asking.fetch_offset, asking.last_fetched_epoch) == (7, EPOCH)


def test_divergence_of_dropped_records_is_ignored(broker):
    log = Log(broker, EPOCH)
    log.leader_state.suggest(EPOCH + 1, True)
    asking = log.ask()
    said = answered(0)._replace(
        high_watermark=20, last_stable_offset=20, log_start_offset=0, diverging=(EPOCH, 6)
    )
    for _ in range(3):
        observe(broker, [asking], fetch.FetchResponse(0, 0, 0, [said]), b"", 0.0, "proof")
    assert (log.dropped, log.stored_end) == ([(6, "diverged")], 6)


def test_unstored_log_begins_anew_in_new_epoch(broker):
    partition = broker.follow()
    brought(broker, 100)
    partition.produced_from = 90
    brought(broker, 50, epoch=EPOCH + 1)
    assert (partition.tail, partition.produced_from) == (50, -1)


def test_waiter_does_not_find_a_deleted_topic(broker):
    partition, found = broker.follow(), []

    class Waiter:
        def wake(self, _partition):
            found.append(broker.topics.find(TOPIC_ID))

    partition.parked[Waiter()] = None
    broker.routes = SimpleNamespace(clear=lambda: None)
    broker.forget = lambda one, reason: Broker.forget(broker, one, reason)
    Broker.forget_topic(broker, TOPIC_ID)
    assert found == [None]
    assert not partition.is_followed


def test_a_new_epoch_wakes_who_waits_although_the_offsets_are_the_same(broker):
    """A client that names the old epoch is fenced by the broker (FENCED_LEADER_EPOCH)."""
    partition, woken = broker.follow(), []
    brought(broker, 4)
    brought(broker, 4)

    class Waiter:
        def wake(self, partition):
            woken.append(partition)

    partition.parked[Waiter()] = None
    brought(broker, 4)
    assert woken == []
    brought(broker, 4, epoch=EPOCH + 1)
    assert woken == [partition]


def test_who_waits_for_several_is_woken_once_with_all_that_have_changed(broker):
    """A process waits for many: what it is not told of, its clients wait for until max_wait."""
    woken = []

    class Waiter:
        def wake(self, *changed):
            woken.append(changed)

    waiter = Waiter()
    waited: list[Any] = [SimpleNamespace(parked={waiter: None}) for _ in range(3)]
    others: Any = SimpleNamespace(parked={})
    wake_waiters(broker, [*waited[:2], others, waited[2]])
    assert woken == [tuple(waited)]
