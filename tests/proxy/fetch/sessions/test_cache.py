"""The cache of fetch sessions: lookup and eviction, with the numbers of Kafka's FetchSessionTest."""

from random import Random

import pytest

from proxy.fetch.sessions.cache import CachedPartition, SessionCache, SessionLimits
from tests.proxy.session_messages import asked

OWNER = "anonymous"


class Rolled:
    """A random source that yields what it is told."""

    def __init__(self, *ids):
        self.ids = list(ids)

    def randrange(self, start, stop):
        assert (start, stop) == (1, 2**31 - 1)
        return self.ids.pop(0)


def table_of(sessions=10, partitions=1000, min_eviction_s=100, rng=None):
    return SessionCache(SessionLimits(sessions, partitions, min_eviction_s), rng or Random(7))


def partitions_of(size):
    return {("test", index): CachedPartition(asked("test", index)) for index in range(size)}


def create(table, now_s, size, owner=OWNER):
    return table.create(owner, True, partitions_of(size), now_s)


def present(table, *sessions):
    return [table.find(session.id, session.owner) is session for session in sessions]


def test_epochs_wrap_to_one():
    session = create(table_of(), 0, 1)
    found = []
    for before in (1, 2**31 - 2, 2**31 - 1):
        session.epoch = before
        session.advance()
        found.append(session.epoch)
    assert found == [2, 2**31 - 1, 1]


def test_ids_are_random_positive_and_unique():
    table = table_of(rng=Rolled(5, 5, 5, 9))

    assert [create(table, 0, 1).id, create(table, 0, 1).id] == [5, 9]


def test_a_session_is_its_owners_alone():
    table = table_of()
    session = create(table, 0, 1, owner="one")

    assert table.find(session.id, "one") is session
    assert table.find(session.id, "two") is None
    assert table.find(session.id + 1, "one") is None


def test_an_owner_who_leaves_takes_the_sessions_along():
    table = table_of()
    mine, too, other = (create(table, 0, 2, owner) for owner in ("one", "one", "two"))

    table.remove_owned("one")
    table.remove_owned("one")

    assert present(table, mine, too, other) == [False, False, True]
    assert table.statistics()[:2] == (1, 2)


def test_eviction_is_kafkas():
    """FetchSessionTest.testSessionCache, without its privileged session."""
    table = table_of(sessions=3)
    one, two, three = create(table, 0, 10), create(table, 10, 20), create(table, 20, 30)
    assert create(table, 30, 40) is None
    assert create(table, 40, 5) is None
    assert present(table, one, two, three) == [True, True, True]
    table.touch(one, 200)
    four = create(table, 210, 11)
    assert present(table, one, two, three, four) == [True, False, True, True]
    table.touch(one, 400)
    table.touch(three, 390)
    table.touch(four, 400)
    five = create(table, 410, 50)
    assert present(table, one, three, four, five) == [False, True, True, True]
    assert create(table, 410, 5) is None
    assert table.statistics() == (3, 91, 5, 2, 3)


def test_resized_sessions_are_counted_when_touched():
    """FetchSessionTest.testResizeCachedSessions."""
    table = table_of(sessions=2)
    one, two = create(table, 0, 2), create(table, 0, 4)
    assert table.statistics()[:2] == (2, 6)
    table.touch(one, 200)
    table.touch(two, 200)
    three = create(table, 200, 5)
    assert present(table, one, two, three) == [False, True, True]
    assert table.statistics()[:2] == (2, 9)
    table.remove(three)
    table.remove(three)
    assert table.statistics()[:2] == (1, 4)
    two.partitions.forget(("test", 0))
    assert table.statistics()[1] == 4
    table.touch(two, 200)
    assert table.statistics()[1] == 3


@pytest.mark.parametrize(("size", "granted"), [(5, False), (6, True)])
def test_only_larger_sessions_evict_fresh_ones(size, granted):
    table = table_of(sessions=1)
    session = create(table, 0, 5)
    table.touch(session, 101)

    assert (create(table, 101, size) is not None) is granted
    assert present(table, session) == [not granted]


@pytest.mark.parametrize(("now_s", "granted"), [(100, False), (100.1, True)])
def test_a_session_is_stale_only_after_the_time(now_s, granted):
    table = table_of(sessions=1)
    session = create(table, 0, 5)

    assert (create(table, now_s, 1) is not None) is granted
    assert present(table, session) == [not granted]


@pytest.mark.parametrize(("touched_s", "granted"), [(100, False), (100.1, True)])
def test_a_new_session_is_protected_from_larger_ones(touched_s, granted):
    table = table_of(sessions=1)
    session = create(table, 0, 5)
    table.touch(session, touched_s)

    assert (create(table, touched_s, 9) is not None) is granted


def test_the_smallest_goes_and_ranks_follow_sizes():
    table = table_of(sessions=2)
    small, large = create(table, 0, 3), create(table, 0, 6)
    table.touch(small, 200)
    table.touch(large, 200)
    for index in range(5):
        small.partitions.put([asked("more", index)])
    table.touch(small, 201)

    assert create(table, 202, 7) is not None
    assert present(table, small, large) == [True, False]


def test_partitions_are_bounded_and_only_stale_sessions_pay():
    table = table_of(partitions=10)
    old, new = create(table, 0, 4), create(table, 50, 4)
    assert create(table, 60, 2) is not None
    assert create(table, 60, 1) is None
    assert create(table, 101, 5) is None
    assert present(table, old, new) == [False, True]
    assert create(table, 101, 4) is not None
    assert table.statistics() == (3, 10, 4, 1, 2)


def test_a_session_larger_than_the_bound_evicts_nobody():
    table = table_of(partitions=10)
    session = create(table, 0, 4)

    assert create(table, 1000, 11) is None
    assert present(table, session) == [True]


def test_a_session_that_outgrows_the_bound_is_evicted():
    table = table_of(partitions=4)
    session = create(table, 0, 3)
    session.partitions.put([asked("more", 0)])
    assert table.touch(session, 1)
    session.partitions.put([asked("more", 1)])

    assert not table.touch(session, 2)

    assert present(table, session) == [False]
    assert table.statistics() == (0, 0, 1, 1, 0)


def test_growing_session_evicts_stale_ones_only():
    table = table_of(partitions=5)
    stale, growing = create(table, 0, 2), create(table, 0, 3)
    growing.partitions.put([asked("more", 0)])

    assert table.touch(growing, 500)

    assert present(table, stale, growing) == [False, True]
    assert table.statistics()[:2] == (1, 4)


def test_the_ranking_does_not_grow_with_use():
    table = table_of(sessions=3)
    sessions = [create(table, 0, 2) for _ in range(3)]
    for turn in range(1000):
        session = sessions[turn % 3]
        if not session.partitions.forget(("more", 0)):
            session.partitions.put([asked("more", 0)])
        table.touch(session, 200 + turn)

    assert len(table._smallest) <= 2 * 3 + 64 + 1


def test_the_order_is_one_list_until_something_changes():
    session = create(table_of(), 0, 3)
    before = session.partitions.in_order()

    assert session.partitions.in_order() is before
    session.partitions.move_to_end([("test", 0)])

    assert [one.partition for one in before] == [0, 1, 2]
    assert [one.partition for one in session.partitions.in_order()] == [1, 2, 0]


def test_turns_follow_the_order():
    session = create(table_of(), 0, 3)
    session.partitions.move_to_end([("test", 1)])
    session.partitions.put([asked("test", 0, 5)])
    session.partitions.put([asked("more", 0)])
    session.partitions.move_to_end([("test", 0)])

    in_turn = sorted(session.partitions.by_key.values(), key=lambda kept: kept.turn)
    assert [kept.asked for kept in in_turn] == session.partitions.in_order()
    assert len({kept.turn for kept in in_turn}) == 4


def test_a_session_that_grows_too_large_is_over():
    """Its next whole request is too large to be read at all."""
    table = SessionCache(SessionLimits(10, 1000, 100, session_partitions=3), Random(7))
    session = create(table, 0, 3)
    assert table.touch(session, 1)
    session.partitions.put([asked("test", 3)])
    assert not table.touch(session, 2)
    assert present(table, session) == [False]
    assert table.statistics().partitions == 0
    assert table.statistics().evicted == 1


def test_smaller_limits_evict_nobody_by_themselves():
    table = table_of(sessions=3, partitions=100)
    held = [create(table, 0, 10) for _ in range(3)]
    table.set_limits(SessionLimits(1, 5, 100))
    assert present(table, *held) == [True] * 3
    assert all(table.touch(session, 1) for session in held)
    assert create(table, 1, 1) is None, "no more are granted"
    for session in held:
        table.remove(session)
    assert create(table, 1, 5) is not None
    table.set_limits(SessionLimits(2, 5, 100, session_partitions=1))
    assert create(table, 1, 1) is None, "the partitions are used up"


def test_partitions_outside_of_sessions_count_against_the_same_limit():
    table = table_of(sessions=10, partitions=100)
    old = create(table, 0, 60)
    assert not table.reserve(50, 1), "the session is not stale"
    assert table.reserve(40, 1)
    assert table.statistics().partitions == 100
    assert create(table, 2, 1) is None
    assert table.reserve(50, 1000)
    assert present(table, old) == [False], "it was stale"
    table.release(90)
    assert table.statistics().partitions == 0
    table.set_limits(SessionLimits(10, 100, 100, session_partitions=9))
    assert not table.reserve(10, 1000)
    assert table.statistics().partitions == 0
