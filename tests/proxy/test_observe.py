"""What an answer means for memory: errors, and when the partition may be asked again; what it tells of transactions."""

import pytest

from protocol import fetch
from protocol.control_batch import ControlType
from protocol.errors import ErrorCode
from proxy.observe import learn_error, observe
from tests.protocol.markers import build_marker
from tests.proxy.followed import EPOCH, TOPIC_ID, QuietBroker

BACK_OFF_S = 1.0  # the quiet watch's


@pytest.fixture
def broker():
    return QuietBroker()


def asked(epoch=EPOCH):
    return fetch.FetchPartition(TOPIC_ID, 0, epoch, 0, -1, -1, 1)


def answered(error_code, current_leader=None):
    return fetch.FetchedPartition(TOPIC_ID, 0, error_code, -1, -1, -1, -1, None, current_leader, None, 0, 0)


def test_the_same_error_by_several_polls_is_one_step_of_back_off(broker):
    partition = broker.follow()
    partition.truth.suggest(EPOCH)
    for broker.clock_s in (10.0, 10.1, 10.9):
        assert learn_error(broker, partition, asked(), answered(ErrorCode.FENCED_LEADER_EPOCH), "watch")
        assert partition.retry_at == 10.0 + BACK_OFF_S
    broker.clock_s = 11.0
    learn_error(broker, partition, asked(), answered(ErrorCode.FENCED_LEADER_EPOCH), "watch")
    assert partition.retry_at == 11.0 + BACK_OFF_S


def test_an_error_about_an_epoch_known_to_be_old_costs_no_time(broker):
    partition = broker.follow()
    partition.truth.suggest(EPOCH + 1)
    broker.clock_s = 10.0
    learn_error(broker, partition, asked(), answered(ErrorCode.FENCED_LEADER_EPOCH), "proof")
    assert partition.retry_at == 10.0
    assert not partition.truth.has_lease(10.0)


def test_the_leader_that_an_error_names_is_asked_with_at_once(broker):
    partition = broker.follow()
    said = answered(ErrorCode.FENCED_LEADER_EPOCH, (1, EPOCH + 2))
    learn_error(broker, partition, asked(), said, "watch")
    assert partition.truth.suggested_epoch == EPOCH + 2
    assert partition.retry_at == broker.now()


def test_a_success_ends_the_back_off(broker):
    partition = broker.follow()
    learn_error(broker, partition, asked(), answered(ErrorCode.NOT_LEADER_OR_FOLLOWER), "watch")
    assert partition.retry_at > broker.now()
    said = answered(ErrorCode.NONE)._replace(high_watermark=0, last_stable_offset=0, log_start_offset=0)
    observe(broker, [asked()], fetch.FetchResponse(0, 0, 0, [said]), b"", 0.5, "client")
    assert partition.retry_at <= 0.5
    assert partition.failures == 0


def brought(broker, high_watermark, marker_offset=None, epoch=EPOCH, stable=None):
    """An answer to the watch; with the marker of a commit in it."""
    frame = b"" if marker_offset is None else build_marker(marker_offset, ControlType.COMMIT)
    said = answered(ErrorCode.NONE)._replace(
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if stable is None else stable,
        log_start_offset=0,
        end=len(frame),
    )
    asking = asked(epoch)._replace(fetch_offset=high_watermark if marker_offset is None else marker_offset)
    observe(broker, [asking], fetch.FetchResponse(0, 0, 0, [said]), frame, 0.0, "watch")


def test_the_batches_of_an_answer_are_seen_before_its_last_stable_offset(broker):
    partition = broker.follow()
    brought(broker, 4)
    brought(broker, 5, 4)
    assert (partition.transactions.known_from, partition.transactions.end) == (4, 5)


def test_what_is_of_no_proven_epoch_tells_nothing_of_transactions(broker):
    partition = broker.follow()
    brought(broker, 4)
    brought(broker, 9, epoch=EPOCH - 1)
    brought(broker, 9, epoch=-1)
    assert (partition.transactions.end, partition.last_stable_offset()) == (4, 4)


def test_a_new_epoch_begins_anew_where_it_shows_its_last_stable_offset(broker):
    partition = broker.follow()
    brought(broker, 4)
    brought(broker, 6, 5, stable=4)  # a piece above a hole
    brought(broker, 5, epoch=EPOCH + 1, stable=3)
    assert (partition.transactions.known_from, partition.transactions.end) == (3, 3)
    assert partition.transactions.statistics().pieces == 0
    assert partition.last_stable_offset() == 3


def test_what_was_acknowledged_before_a_new_epoch_is_not_waited_for(broker):
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
