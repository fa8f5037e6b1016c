"""What the broker said of a partition, and how long memory may rely on it."""

import pytest

from proxy.partitions.leader_state import NO_EPOCH, NO_OFFSET, Learned, Truth


def build_known(epoch=5):
    truth = Truth()
    assert truth.learn(epoch, 100, 90, 10, 1.0) is Learned.FIRST
    return truth


def offsets(truth):
    return truth.high_watermark, truth.last_stable_offset, truth.log_start_offset


def test_nothing_is_known_at_first():
    truth = Truth()
    assert not truth.known
    assert truth.epoch == NO_EPOCH
    assert offsets(truth) == (NO_OFFSET,) * 3
    assert not truth.has_lease(0.0)


def test_the_first_answer_proves_its_epoch_and_wants_a_check():
    truth = build_known()
    assert truth.known
    assert truth.frozen
    assert truth.epoch == truth.asked_epoch == 5
    assert offsets(truth) == (100, 90, 10)


@pytest.mark.parametrize("carried", [-1, 4])
def test_no_epoch_or_an_older_one_teaches_nothing(carried):
    truth = build_known()
    assert truth.learn(carried, 200, 200, 50, 9.0) is Learned.NOTHING
    assert offsets(truth) == (100, 90, 10)
    assert not truth.has_lease(1.0)


def test_an_answer_without_an_epoch_proves_none():
    truth = Truth()
    assert truth.learn(-1, 200, 200, 50, 9.0) is Learned.NOTHING
    assert not truth.known
    assert not truth.has_lease(0.0)


def test_within_an_epoch_the_greatest_shown_counts_each_by_itself():
    truth = build_known()
    assert truth.learn(5, 95, 95, 5, 2.0) is Learned.CONFIRMED
    assert offsets(truth) == (100, 95, 10)
    assert truth.learn(5, 120, 80, 30, 2.0) is Learned.CONFIRMED
    assert offsets(truth) == (120, 95, 30)


def test_who_leads_is_what_metadata_said_of_the_proven_epoch():
    truth = build_known()
    assert (truth.is_led, truth.is_replica) == (False, True)
    truth.suggest(4, True)
    assert not truth.is_led
    truth.suggest(5, False)
    assert (truth.is_led, truth.is_replica) == (False, True)
    truth.suggest(5, True)
    assert (truth.is_led, truth.is_replica) == (True, False)
    truth.suggest(6, False)
    assert (truth.is_led, truth.is_replica) == (True, False)
    truth.learn(6, 100, 90, 10, 20.0)
    assert (truth.is_led, truth.is_replica) == (False, True)


def test_a_newer_epoch_forgets_the_offsets_of_the_old():
    truth = build_known()
    truth.frozen = False
    assert truth.learn(6, 80, 70, 0, 2.0) is Learned.NEW_EPOCH
    assert offsets(truth) == (80, 70, 0)
    assert truth.frozen


def test_a_newer_epoch_ends_the_old_lease():
    truth = build_known()
    truth.renew(50.0)
    truth.learn(6, 80, 70, 0, 2.0)
    assert truth.has_lease(1.9)
    assert not truth.has_lease(2.0)


def test_the_lease_ends_at_its_second_and_never_shrinks():
    truth = build_known()
    assert truth.has_lease(0.999)
    assert not truth.has_lease(1.0)
    truth.learn(5, 100, 90, 10, 0.5)  # sent earlier, answered later on another link
    assert truth.has_lease(0.999)
    truth.renew(0.2)
    assert truth.has_lease(0.999)
    truth.renew(3.0)
    assert truth.has_lease(2.999)
    assert not truth.has_lease(3.0)


def test_proven_at_follows_answers_and_not_omissions():
    truth = build_known()
    truth.renew(7.0)
    assert truth.proven_at == 1.0
    truth.learn(5, 100, 90, 10, 2.0)
    assert truth.proven_at == 2.0


def test_an_error_revokes_until_the_broker_confirms_again():
    truth = build_known()
    truth.revoke()
    assert not truth.has_lease(0.0)
    assert truth.known
    assert offsets(truth) == (100, 90, 10)
    assert truth.learn(5, 100, 90, 10, 0.5) is Learned.CONFIRMED
    assert truth.has_lease(0.4)


def test_a_suggested_epoch_is_not_a_proven_one():
    truth = build_known()
    assert truth.suggest(8, True)
    assert not truth.suggest(7, True)
    assert truth.asked_epoch == 8
    assert truth.epoch == 5
    assert truth.learn(6, 80, 70, 0, 2.0) is Learned.NEW_EPOCH
    assert truth.asked_epoch == 8
    assert truth.learn(9, 80, 70, 0, 2.0) is Learned.NEW_EPOCH
    assert truth.asked_epoch == 9
    assert not truth.suggest(8, True)


def test_a_suggestion_that_the_broker_refuses_is_dropped_and_no_other():
    truth = build_known()
    truth.suggest(8, True)
    truth.drop_suggestion(7)
    assert truth.asked_epoch == 8
    truth.drop_suggestion(8)
    assert truth.asked_epoch == 5
    truth.drop_suggestion(5)
    assert truth.asked_epoch == 5
    assert truth.suggest(6, True)


def test_offsets_that_are_forgotten_may_be_shown_lower():
    truth = build_known()
    truth.forget_offsets()
    assert offsets(truth) == (NO_OFFSET,) * 3
    assert not truth.has_lease(0.0)
    assert truth.learn(5, 60, 50, 0, 1.0) is Learned.CONFIRMED
    assert offsets(truth) == (60, 50, 0)


def test_of_an_lso_above_its_hw_only_the_hw_counts():
    """The broker reads the HW first, and takes a newer one for the LSO where it saw nothing open."""
    truth = build_known()
    truth.learn(5, 100, 110, 10, 1.0)
    truth.learn(5, 120, 90, 10, 1.0)
    assert offsets(truth) == (120, 100, 10)
