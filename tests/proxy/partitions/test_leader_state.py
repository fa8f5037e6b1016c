"""The broker's statements on a partition, and their validity in time."""

import pytest

from proxy.partitions.leader_state import NO_EPOCH, NO_OFFSET, LeaderState, Learned, Lease


def build_known(epoch=5):
    leader_state = LeaderState()
    assert leader_state.learn(epoch, 100, 90, 10, 1.0) is Learned.FIRST
    return leader_state


def offsets(leader_state):
    return (
        leader_state.high_watermark,
        leader_state.last_stable_offset,
        leader_state.log_start_offset,
    )


def test_nothing_is_known_at_first():
    leader_state = LeaderState()
    assert not leader_state.known
    assert leader_state.epoch == NO_EPOCH
    assert offsets(leader_state) == (NO_OFFSET,) * 3
    assert not leader_state.has_lease(0.0)


def test_first_response_proves_the_epoch_and_freezes():
    leader_state = build_known()
    assert leader_state.known
    assert leader_state.frozen
    assert leader_state.epoch == leader_state.asked_epoch == 5
    assert offsets(leader_state) == (100, 90, 10)


@pytest.mark.parametrize("carried", [-1, 4])
def test_no_epoch_or_an_older_one_teaches_nothing(carried):
    leader_state = build_known()
    assert leader_state.learn(carried, 200, 200, 50, 9.0) is Learned.NOTHING
    assert offsets(leader_state) == (100, 90, 10)
    assert not leader_state.has_lease(1.0)


def test_an_answer_without_an_epoch_proves_none():
    leader_state = LeaderState()
    assert leader_state.learn(-1, 200, 200, 50, 9.0) is Learned.NOTHING
    assert not leader_state.known
    assert not leader_state.has_lease(0.0)


def test_offsets_only_grow_within_an_epoch():
    leader_state = build_known()
    assert leader_state.learn(5, 95, 95, 5, 2.0) is Learned.CONFIRMED
    assert offsets(leader_state) == (100, 95, 10)
    assert leader_state.learn(5, 120, 80, 30, 2.0) is Learned.CONFIRMED
    assert offsets(leader_state) == (120, 95, 30)


def test_leader_is_what_metadata_said_of_the_epoch():
    leader_state = build_known()
    assert (leader_state.is_led, leader_state.is_replica) == (False, True)
    leader_state.suggest(4, True)
    assert not leader_state.is_led
    leader_state.suggest(5, False)
    assert (leader_state.is_led, leader_state.is_replica) == (False, True)
    leader_state.suggest(5, True)
    assert (leader_state.is_led, leader_state.is_replica) == (True, False)
    leader_state.suggest(6, False)
    assert (leader_state.is_led, leader_state.is_replica) == (True, False)
    leader_state.learn(6, 100, 90, 10, 20.0)
    assert (leader_state.is_led, leader_state.is_replica) == (False, True)


def test_newer_epoch_forgets_old_offsets():
    leader_state = build_known()
    leader_state.frozen = False
    assert leader_state.learn(6, 80, 70, 0, 2.0) is Learned.NEW_EPOCH
    assert offsets(leader_state) == (80, 70, 0)
    assert leader_state.frozen


def test_a_newer_epoch_ends_the_old_lease():
    leader_state = build_known()
    leader_state.renew(50.0)
    leader_state.learn(6, 80, 70, 0, 2.0)
    assert leader_state.has_lease(1.9)
    assert not leader_state.has_lease(2.0)


def test_lease_ends_in_time_and_never_shrinks():
    leader_state = build_known()
    assert leader_state.has_lease(0.999)
    assert not leader_state.has_lease(1.0)
    leader_state.learn(5, 100, 90, 10, 0.5)  # sent earlier, answered later on another link
    assert leader_state.has_lease(0.999)
    leader_state.renew(0.2)
    assert leader_state.has_lease(0.999)
    leader_state.renew(3.0)
    assert leader_state.has_lease(2.999)
    assert not leader_state.has_lease(3.0)


def test_proven_at_follows_answers_and_not_omissions():
    leader_state = build_known()
    leader_state.renew(7.0)
    assert leader_state.proven_at == 1.0
    leader_state.learn(5, 100, 90, 10, 2.0)
    assert leader_state.proven_at == 2.0


def test_an_error_revokes_until_the_broker_confirms_again():
    leader_state = build_known()
    leader_state.revoke()
    assert not leader_state.has_lease(0.0)
    assert leader_state.known
    assert offsets(leader_state) == (100, 90, 10)
    assert leader_state.learn(5, 100, 90, 10, 0.5) is Learned.CONFIRMED
    assert leader_state.has_lease(0.4)


def test_a_suggested_epoch_is_not_a_proven_one():
    leader_state = build_known()
    assert leader_state.suggest(8, True)
    assert not leader_state.suggest(7, True)
    assert leader_state.asked_epoch == 8
    assert leader_state.epoch == 5
    assert leader_state.learn(6, 80, 70, 0, 2.0) is Learned.NEW_EPOCH
    assert leader_state.asked_epoch == 8
    assert leader_state.learn(9, 80, 70, 0, 2.0) is Learned.NEW_EPOCH
    assert leader_state.asked_epoch == 9
    assert not leader_state.suggest(8, True)


def test_only_a_refused_suggestion_is_dropped():
    leader_state = build_known()
    leader_state.suggest(8, True)
    leader_state.drop_suggestion(7)
    assert leader_state.asked_epoch == 8
    leader_state.drop_suggestion(8)
    assert leader_state.asked_epoch == 5
    leader_state.drop_suggestion(5)
    assert leader_state.asked_epoch == 5
    assert leader_state.suggest(6, True)


def test_offsets_that_are_forgotten_may_be_shown_lower():
    leader_state = build_known()
    leader_state.forget_offsets()
    assert offsets(leader_state) == (NO_OFFSET,) * 3
    assert not leader_state.has_lease(0.0)
    assert leader_state.learn(5, 60, 50, 0, 1.0) is Learned.CONFIRMED
    assert offsets(leader_state) == (60, 50, 0)


def test_lso_above_its_hw_counts_as_hw():
    """The broker reads the HW first, and takes a newer one for the LSO where it saw nothing open."""
    leader_state = build_known()
    leader_state.learn(5, 100, 110, 10, 1.0)
    leader_state.learn(5, 120, 90, 10, 1.0)
    assert offsets(leader_state) == (120, 100, 10)


def test_session_members_share_a_lease():
    shared = Lease(2.0, is_shared=True)
    one, other = build_known(), build_known()
    one.hold(shared)
    other.hold(shared)
    shared.until = 3.0
    assert one.has_lease(2.9)
    one.renew(2.5)
    assert one.lease is shared
    one.renew(4.0)
    assert (one.lease.until, other.lease.until) == (4.0, 3.0)
    other.detach()
    shared.until = 9.0
    assert (one.lease.until, other.lease.until) == (4.0, 3.0)


@pytest.mark.parametrize("what", ["revoke", "forget_offsets", "new epoch"])
def test_revocation_ends_the_lease_of_one_member(what):
    shared = Lease(2.0, is_shared=True)
    one, other = build_known(), build_known()
    one.hold(shared)
    other.hold(shared)
    if what == "new epoch":
        one.learn(6, 80, 70, 0, 1.5)
        assert one.lease.until == 1.5
    else:
        getattr(one, what)()
        assert not one.has_lease(0.0)
    shared.until = 9.0
    assert one.lease.until < 2.0
    assert other.has_lease(8.9)
