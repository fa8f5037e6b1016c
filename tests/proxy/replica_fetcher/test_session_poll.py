"""A standing poll in a fetch session: the partitions that requests name, and confirmation by omission."""

from functools import partial

import pytest

from protocol import fetch
from protocol.batch import Batch
from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer
from proxy.partitions import update
from proxy.replica_fetcher.poll import FEW_BYTES, REST_S
from proxy.replica_fetcher.session_poll import SessionPoll
from tests.kit.cache_batches import build_run
from tests.proxy.followed_partition import (
    EPOCH,
    LEASE_UNTIL_S,
    TOPIC_ID,
    QuietBroker,
    learn,
    stand_in,
    store,
)
from tests.proxy.replica_fetcher.poll_connection import PlayedLink, shown

TRANSACTIONAL = 0x10
PAUSE_S = 0.7


PAUSE = SessionPoll._pause


@pytest.fixture(autouse=True)
def never_pauses(monkeypatch):
    """The next request follows each response in the same turn, although a test sends it itself."""
    monkeypatch.setattr(SessionPoll, "_pause", lambda _poll: None)


@pytest.fixture
def pauses(never_pauses, monkeypatch):
    """No request follows but those that the test sends."""
    monkeypatch.setattr(SessionPoll, "_pause", PAUSE)


class Watched:
    """`count` partitions at HW 20 in a poll; what has changed is told to the poll, as the replica fetcher tells it."""

    def __init__(self, count=2):
        self.broker = QuietBroker()
        self.link = PlayedLink()
        self.poll = SessionPoll(stand_in(self.broker), "watch", 0.3, PAUSE_S)
        self.broker.replica_fetcher.changed = self.poll.mark
        self.partitions = [self.broker.follow(index) for index in range(count)]
        for partition in self.partitions:
            learn(partition, 20)
            partition.leader_state.suggest(EPOCH, True)
            partition.tail = 20
            self.poll.add(partition)

    def send(self, link=None):
        return self.poll.send(stand_in(link or self.link))

    def open_session(self):
        """A full response opens session 77; a second turn shares its lease; the leases then lapse."""
        assert self.send()
        self.link.answer(*(shown(p.index, 20) for p in self.partitions))
        assert self.send()
        self.link.answer()
        self.broker.clock_s = 10.0

    def turn(self, *answered, **said):
        """One request and its response."""
        assert self.send()
        self.link.answer(*answered, **said)

    def prove(self, partition, entry):
        """Another poll of Forebay's own shows `entry` of the partition now."""
        asked = fetch.FetchPartition(TOPIC_ID, partition.index, EPOCH, 20, -1, -1, FEW_BYTES)
        response = fetch.FetchResponse(0, 0, 0, [entry])
        update.observe(self.broker, {partition: asked}, response, b"", self.broker.clock_s, "proof")

    def leases(self):
        return [p.leader_state.has_lease(self.broker.clock_s) for p in self.partitions]


class Waiting:
    """Counts how often it is woken, and what it then sees of all leases."""

    def __init__(self, watched):
        self.watched, self.seen = watched, []

    def wake(self, *partitions):
        self.seen.append((partitions[-1].index, self.watched.leases()))

    def note_acknowledged(self, _partition):
        """Nobody is woken by it."""


def entry(index, high_watermark, error_code=0, diverging=None):
    """An entry as it is scanned."""
    return fetch.FetchedPartition(
        TOPIC_ID,
        index,
        error_code,
        high_watermark,
        high_watermark,
        0,
        -1,
        diverging,
        None,
        None,
        0,
        0,
    )


# -- what a request names ------------------------------------------------------------------------------------


def test_later_requests_name_only_changes():
    watched = Watched()
    watched.turn(shown(0, 20), shown(1, 20))
    assert watched.link.requests[0].partitions == [
        fetch.FetchPartition(TOPIC_ID, i, EPOCH, 20, -1, -1, FEW_BYTES) for i in (1, 0)
    ]
    assert watched.link.session == (0, 0)
    watched.turn()
    assert (watched.link.session, watched.link.named) == ((77, 1), [])
    watched.turn(shown(1, 30))
    assert (watched.link.session, watched.link.named) == ((77, 2), [])
    watched.turn()
    assert (watched.link.session, watched.link.named) == ((77, 3), [1])
    assert watched.link.requests[-1].partitions[0].fetch_offset == 20  # the tail: a gap lies above
    watched.partitions[1].tail = 30
    watched.poll.mark(watched.partitions[1])
    watched.turn()
    assert [p.fetch_offset for p in watched.link.requests[-1].partitions] == [30]


def test_request_is_small_and_has_no_rack():
    watched = Watched()
    watched.send()
    asked = watched.link.requests[0]
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (300, 1, 1)
    assert (asked.replica_id, asked.isolation_level, asked.rack_id) == (-1, 0, "")
    assert watched.broker.counters.watch.requests["watch"] == 1


def test_named_partitions_are_counted():
    watched = Watched(5)
    watched.open_session()
    watched.turn(shown(3, 21))
    watched.turn()
    counters = watched.broker.counters
    assert (counters.watch.asked_partitions, counters.watch.answered_partitions) == (6, 6)


def test_byte_limit_counts_gaps_named_earlier():
    watched = Watched()
    watched.open_session()
    watched.turn()
    block_bytes = watched.broker.cache.block_max_bytes
    watched.turn(shown(1, 30))
    limits = []
    for _ in range(3):
        watched.turn()
        limits.append((watched.link.named, watched.link.requests[-1].max_bytes))
    assert limits == [([1], block_bytes), ([], block_bytes), ([], block_bytes)]
    watched.partitions[1].tail = 30
    watched.poll.mark(watched.partitions[1])
    watched.turn()
    assert (watched.link.named, watched.link.requests[-1].max_bytes) == ([1], FEW_BYTES)


def test_leaving_and_joining_partitions_are_told():
    watched = Watched()
    watched.open_session()
    watched.poll.discard(watched.partitions[1])
    other = watched.broker.follow(2)
    learn(other, 20)
    watched.poll.add(other)
    watched.turn(shown(2, 20))
    assert (watched.link.named, watched.link.forgotten) == ([2], [1])
    watched.turn()
    assert (watched.link.named, watched.link.forgotten) == ([], [])


def test_partition_returning_before_a_request_stays():
    watched = Watched()
    watched.open_session()
    watched.poll.discard(watched.partitions[1])
    watched.poll.add(watched.partitions[1])
    watched.turn()
    assert (watched.link.named, watched.link.forgotten) == ([], [])
    assert watched.leases() == [True, True]


def test_partition_followed_anew_is_first_forgotten():
    """The broker adds before it forgets: of both in one request only the forgetting would last."""
    watched = Watched()
    watched.open_session()
    before = watched.partitions[1]
    watched.broker.partitions.forget(before)
    watched.poll.discard(before)
    anew = watched.partitions[1] = watched.broker.follow(1)
    learn(anew, 20)
    watched.poll.add(anew)
    watched.turn()
    assert (watched.link.named, watched.link.forgotten) == ([], [1])
    assert watched.leases() == [True, False]
    watched.turn(shown(1, 20))
    assert (watched.link.named, watched.link.forgotten) == ([1], [])
    assert watched.leases() == [True, True]


def test_a_session_that_all_have_left_begins_anew():
    """The broker ends it (FetchManager.newContext), and answers as to a request without one."""
    watched = Watched(1)
    watched.open_session()
    (before,) = watched.partitions
    watched.broker.partitions.forget(before)
    watched.poll.discard(before)
    assert not watched.send()
    anew = watched.broker.follow(0)
    learn(anew, 20)
    watched.poll.add(anew)
    assert watched.send()
    assert (watched.link.session, watched.link.named) == ((77, 0), [0])


def test_partition_in_back_off_is_forgotten():
    watched = Watched()
    watched.open_session()
    watched.turn(shown(1, -1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert watched.leases() == [True, False]
    watched.turn()
    assert (watched.link.named, watched.link.forgotten) == ([], [1])
    watched.broker.clock_s = watched.partitions[1].back_off.until
    watched.poll.mark_all()
    watched.turn(shown(1, 20))
    assert (watched.link.named, watched.link.forgotten) == ([1], [])
    assert watched.leases() == [True, True]


def test_last_claiming_session_holds_the_lease():
    watched = Watched()
    watched.open_session()
    watched.turn()
    partition, other = watched.partitions[0], PlayedLink()
    idle = SessionPoll(stand_in(watched.broker), "idle-0", 0.3)

    def mark_both(partition):
        watched.poll.mark(partition)
        idle.mark(partition)

    watched.broker.replica_fetcher.changed = mark_both
    idle.add(partition)
    idle.send(stand_in(other))
    other.answer(shown(0, 20), session_id=88)
    assert not idle.holds(partition), "the other poll's lease lasts as long"
    watched.broker.clock_s += 0.1
    idle.send(stand_in(other))
    other.answer(session_id=88)
    idle.send(stand_in(other))
    assert idle.holds(partition)
    watched.poll.mark_all()
    watched.turn()
    assert idle.holds(partition), "nobody claims it"
    watched.poll.claim(partition)
    watched.turn()
    assert not idle.holds(partition)
    watched.broker.clock_s += LEASE_UNTIL_S
    other.answer(session_id=88)
    assert watched.leases() == [False, False], "one lease is renewed by one session"


def test_replica_is_asked_at_its_stored_end():
    """Nobody tells the poll of each batch: another of Forebay's own polls has brought it."""
    watched = Watched()
    watched.open_session()
    partition = watched.partitions[1]
    store(watched.broker, partition, 0, 20)
    partition.leader_state.led_epoch = EPOCH - 1
    watched.poll.mark(partition)
    for end in (21, 22):
        store(watched.broker, partition, end - 1, end)
        partition.leader_state.high_watermark = end
        watched.turn()
        (asked,) = watched.link.requests[-1].partitions
        assert (asked.fetch_offset, asked.last_fetched_epoch) == (end, EPOCH)


def test_nothing_to_ask_is_not_sent():
    watched = Watched()
    for partition in watched.partitions:
        partition.old_format = True
    assert not watched.send()
    assert watched.link.requests == []


# -- what a response confirms --------------------------------------------------------------------------------


def test_omission_confirms_from_the_requests_sending():
    watched = Watched()
    watched.open_session()
    watched.send()
    watched.broker.clock_s = 10.9
    watched.link.answer()
    assert watched.leases() == [True, True]
    watched.broker.clock_s = 10.0 + LEASE_UNTIL_S
    assert watched.leases() == [False, False]
    assert watched.broker.replica_fetcher.asked == []
    assert watched.partitions[0].leader_state.high_watermark == 20


def pass_turns(watched, late_s, count):
    """`count` idle turns whose responses come `late_s` after the broker's wait: what the members' leases were just
    before each response, and the broker's wait in ms.
    """
    seen = []
    for _ in range(count):
        watched.send()
        wait_ms = watched.link.requests[-1].max_wait_ms
        watched.broker.clock_s += wait_ms / 1000 + late_s
        seen.append((watched.leases(), wait_ms))
        watched.link.answer()
    return seen


@pytest.mark.parametrize("late_s", [0.19, 0.24, 0.3])
def test_a_lease_outlasts_two_late_responses(late_s):
    watched = Watched()
    watched.open_session()
    watched.turn()
    assert [leases for leases, _ in pass_turns(watched, late_s, 6)] == [[True, True]] * 6


def test_the_broker_holds_requests_as_long_as_ever_once_responses_are_in_time():
    watched = Watched()
    watched.open_session()
    assert [wait_ms for _, wait_ms in pass_turns(watched, 0.24, 2)][1] < 300
    assert [wait_ms for _, wait_ms in pass_turns(watched, 0.0, 4)][-1] == 300


def test_a_response_with_news_is_not_late():
    watched = Watched()
    watched.open_session()
    watched.send()
    watched.broker.clock_s += 0.2
    watched.link.answer(shown(0, 21))
    watched.send()
    assert watched.link.requests[-1].max_wait_ms == 300


def test_all_members_share_one_lease():
    watched = Watched(5)
    watched.open_session()
    watched.turn(shown(3, 21))
    assert len({id(p.leader_state.lease) for p in watched.partitions}) == 1


def test_a_full_response_confirms_only_what_it_shows():
    watched = Watched()
    watched.broker.clock_s = 10.0
    watched.turn(shown(0, 20))
    assert watched.leases() == [True, False]


@pytest.mark.parametrize("is_full", [True, False])
def test_a_response_throttled_empty_confirms_nothing(is_full):
    watched = Watched()
    if is_full:
        watched.broker.clock_s = 10.0
        watched.turn(throttle_time_ms=5, session_id=0)
    else:
        watched.open_session()
        watched.turn(throttle_time_ms=5)
        assert watched.link.session == (77, 2)
    assert watched.leases() == [False, False]
    watched.broker.clock_s += PAUSE_S
    watched.turn(*([shown(0, 20), shown(1, 20)] if is_full else []))
    assert watched.link.session == ((0, 0) if is_full else (77, 3))
    assert watched.leases() == [True, True]


def test_throttled_join_happens_in_the_next_request():
    watched = Watched()
    watched.open_session()
    watched.partitions[1].leader_state.revoke()
    watched.poll.mark(watched.partitions[1])
    watched.turn(throttle_time_ms=5)
    watched.turn()
    assert watched.leases() == [True, True]


def test_a_throttled_response_with_news_confirms_the_rest():
    watched = Watched()
    watched.open_session()
    watched.turn(shown(1, 21), throttle_time_ms=5)
    assert watched.leases() == [True, True]
    assert [p.leader_state.high_watermark for p in watched.partitions] == [20, 21]


def test_omission_confirms_no_unproven_epoch():
    watched = Watched()
    watched.open_session()
    watched.partitions[0].leader_state.suggest(EPOCH + 1, True)
    watched.poll.mark(watched.partitions[0])
    watched.turn()
    assert watched.link.requests[-1].partitions[0].current_leader_epoch == EPOCH + 1
    assert watched.leases() == [False, True]
    assert watched.broker.replica_fetcher.asked == [watched.partitions[0]], "it is proven apart"


@pytest.mark.parametrize("what", ["frozen", "forgotten"])
def test_omission_neither_unfreezes_nor_shows_offsets(what):
    watched = Watched()
    watched.open_session()
    watched.turn()
    partition = watched.partitions[0]
    if what == "frozen":
        partition.leader_state.frozen = True
    else:
        partition.leader_state.forget_offsets()
        partition.probe_offset = 20
    watched.poll.mark(partition)
    watched.turn()
    assert watched.broker.replica_fetcher.asked == [partition]
    assert watched.leases() == [what == "frozen", True]
    assert partition.leader_state.frozen == (what == "frozen")


def test_failed_build_ends_the_session(monkeypatch):
    watched = Watched()
    watched.open_session()
    watched.poll.mark_all()
    with monkeypatch.context() as patched:
        patched.setattr("proxy.replica_fetcher.session_poll.build_poll", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            watched.send()
    watched.send()
    assert (watched.link.session, sorted(watched.link.named)) == ((77, 0), [0, 1])


def test_failed_send_ends_the_session(monkeypatch):
    watched = Watched()
    watched.open_session()
    watched.poll.mark_all()
    with monkeypatch.context() as patched:
        patched.setattr(watched.link, "send", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            watched.send()
    watched.send()
    assert (watched.link.session, sorted(watched.link.named)) == ((77, 0), [0, 1])


def test_partition_is_confirmed_in_its_new_epoch():
    watched = Watched()
    watched.open_session()
    partition = watched.partitions[0]
    watched.send()
    learn(partition, 20, epoch=EPOCH + 1)  # another poll's answer, to the lease's old second
    watched.link.answer()
    assert watched.leases() == [False, True]
    watched.poll.mark(partition)
    watched.turn()
    assert watched.link.named == [0]
    assert watched.leases() == [True, True]


def test_response_does_not_renew_a_revoked_lease():
    watched = Watched()
    watched.open_session()
    watched.turn()
    partition = watched.partitions[0]
    watched.send()
    partition.leader_state.revoke()
    watched.link.answer()
    assert watched.leases() == [False, True]
    watched.poll.mark(partition)
    watched.send()
    partition.leader_state.revoke()
    watched.link.answer()
    assert watched.leases() == [False, True]
    watched.turn()
    assert watched.leases() == [True, True]


@pytest.mark.parametrize(
    "said",
    [
        {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER},
        {"error_code": ErrorCode.FENCED_LEADER_EPOCH},
        {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE},
        {"error_code": ErrorCode.KAFKA_STORAGE_ERROR},
    ],
)
def test_error_ends_its_partitions_lease_alone(said):
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.turn(shown(0, -1, **said))
    assert watched.leases() == [False, True]


def test_lease_revoked_during_learning_stays_revoked():
    """Its bytes contradict what is stored, say."""
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.broker.replica_fetcher.changed = lambda partition: partition.leader_state.revoke()
    watched.turn(shown(1, 21))
    assert watched.leases() == [True, False]


def test_member_leaving_during_learning_shares_no_lease():
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.broker.replica_fetcher.changed = watched.poll.discard
    watched.turn(shown(1, 21))
    assert watched.leases() == [True, True]
    watched.broker.clock_s += LEASE_UNTIL_S
    watched.turn()
    assert watched.leases() == [True, False]


def test_member_leaving_before_joining_shares_no_lease():
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.partitions[1].leader_state.revoke()
    watched.poll.mark(watched.partitions[1])
    watched.send()
    watched.poll.discard(watched.partitions[1])
    watched.link.answer()
    assert watched.leases() == [True, False]


def test_a_divergence_that_has_been_overtaken_confirms_nothing(monkeypatch):
    watched = Watched()
    watched.open_session()
    watched.send()
    said = fetch.FetchResponse(0, 0, 77, [entry(0, 20, diverging=(EPOCH, 18))])
    monkeypatch.setattr("proxy.replica_fetcher.session_poll.scan_poll", lambda _answer: said)
    watched.link.answer()
    assert watched.leases() == [False, True]


def test_refuted_partition_leaves_the_shared_lease():
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.send()
    watched.prove(watched.partitions[0], entry(0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    watched.link.answer()
    assert watched.leases() == [False, True]


def test_other_polls_confirmation_outlives_a_hanging_session():
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.broker.clock_s += LEASE_UNTIL_S
    assert watched.leases() == [False, False]
    watched.prove(watched.partitions[0], entry(0, 20))
    assert watched.leases() == [True, False]


def test_leaving_member_keeps_its_lease_unrenewed():
    watched = Watched()
    watched.open_session()
    watched.turn()
    watched.poll.discard(watched.partitions[0])
    assert watched.leases() == [True, True]
    watched.broker.clock_s += LEASE_UNTIL_S / 2
    watched.turn()
    watched.broker.clock_s += LEASE_UNTIL_S / 2
    assert watched.leases() == [False, True]


def test_unlearnable_response_ends_the_session(monkeypatch):
    watched = Watched()
    watched.open_session()
    failed = []

    def attempt(action, _doing):
        try:
            action()
        except ZeroDivisionError:
            failed.append(action)

    watched.send()
    with monkeypatch.context() as patched:
        patched.setattr(watched.broker, "attempt", attempt)
        patched.setattr("proxy.replica_fetcher.session_poll.learn_response", lambda *_: 1 // 0)
        watched.link.answer(shown(1, 21))
    assert len(failed) == 1
    assert watched.leases() == [False, False]
    watched.send()
    assert (watched.link.session, sorted(watched.link.named)) == ((77, 0), [0, 1])


# -- news ----------------------------------------------------------------------------------------------------


def test_only_who_waits_on_news_is_woken():
    watched = Watched()
    watched.open_session()
    watched.turn()
    waiting = [Waiting(watched) for _ in watched.partitions]
    for partition, one in zip(watched.partitions, waiting, strict=True):
        partition.parked[one] = None
    watched.turn()
    assert [one.seen for one in waiting] == [[], []]
    watched.turn(shown(1, 21))
    assert [one.seen for one in waiting] == [[], [(1, [True, True])]]


def test_waiter_for_a_lease_is_woken_after_all():
    watched = Watched()
    watched.open_session()
    waiting = Waiting(watched)
    for partition in watched.partitions:
        partition.parked[waiting] = None
    watched.turn()
    assert [leases for _, leases in waiting.seen] == [[True, True]]


def test_waiter_is_woken_when_its_partition_shares():
    watched = Watched()
    watched.open_session()
    watched.turn()
    partition, waiting = watched.partitions[1], Waiting(watched)
    partition.parked[waiting] = None
    partition.leader_state.revoke()
    watched.poll.mark(partition)
    watched.turn()
    assert waiting.seen == [(1, [True, True])]


def test_records_are_stored_and_the_next_asked():
    watched = Watched()
    watched.open_session()
    partition = watched.partitions[1]
    run = bytes(build_run(20, 2, epoch=EPOCH))
    watched.turn(FetchAnswer(TOPIC_ID, 1, 0, 22, 22, 0, None, (run,), len(run)))
    assert (partition.tail, partition.leader_state.high_watermark) == (22, 22)
    watched.turn()
    assert [p.fetch_offset for p in watched.link.requests[-1].partitions] == [22]


def test_omitted_lso_below_hw_is_asked_again():
    watched = Watched()
    watched.open_session()
    watched.turn(shown(1, 30, 25))
    watched.turn()
    watched.broker.clock_s += 0.1
    watched.turn()
    assert watched.broker.replica_fetcher.asked == [watched.partitions[1]] * 2
    watched.turn()
    assert len(watched.broker.replica_fetcher.asked) == 2, "not twice at the same time"
    watched.prove(watched.partitions[1], entry(1, 30))
    watched.broker.clock_s += 0.1
    watched.turn()
    assert len(watched.broker.replica_fetcher.asked) == 2


def test_lso_known_from_batches_is_not_asked():
    watched = Watched()
    watched.open_session()
    learn(watched.partitions[1], 30, 25)
    transactions = watched.partitions[1].transactions
    transactions.shown(25, 25, 0, 0.0)
    data = Batch(0, 0, 25, 29, 0, 2, 0, TRANSACTIONAL, 0, 7, 0, 0, 5)
    transactions.observed(b"", [data], 25, 30)
    watched.poll.mark(watched.partitions[1])
    watched.turn()
    assert watched.partitions[1].last_stable_offset() == 25
    assert watched.broker.replica_fetcher.asked == []


def test_lso_without_a_run_is_asked_again():
    """An LSO above its HW: the HW had moved on when the broker checked for open transactions."""
    watched = Watched()
    watched.broker.clock_s = 10.0
    watched.turn(shown(0, 20), shown(1, 20, 21))
    assert watched.partitions[1].transactions.known_from == -1
    watched.turn()
    assert watched.broker.replica_fetcher.asked == [watched.partitions[1]]
    watched.prove(watched.partitions[1], entry(1, 20))
    watched.broker.clock_s += 0.1
    watched.turn()
    assert watched.broker.replica_fetcher.asked == [watched.partitions[1]]


def test_lasting_hole_is_asked_about():
    """The run of transactions begins behind it where the broker shows its LSO again, which no omission does."""
    watched = Watched()
    watched.open_session()
    partition = watched.partitions[1]
    partition.transactions.shown(20, 20, 0, 0.0)
    partition.transactions.observed(b"", (), 20, 21)
    watched.turn(shown(1, 30, 30))
    assert partition.transactions.has_hole
    watched.turn()
    assert watched.broker.replica_fetcher.asked == []
    watched.broker.clock_s += 1.0
    watched.turn()
    assert watched.broker.replica_fetcher.asked == [partition]


# -- the session's end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error_code", "session"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, (0, 0)),  # evicted, or the broker has restarted
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, (77, 0)),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, (77, 0)),
    ],
)
def test_refused_session_is_recreated_at_once(error_code, session):
    watched = Watched()
    watched.open_session()
    watched.turn(error_code=error_code, session_id=0)
    assert watched.leases() == [False, False]
    assert watched.broker.replica_fetcher.polls[-1] is watched.poll
    watched.send()
    assert (watched.link.session, sorted(watched.link.named)) == (session, [0, 1])
    watched.link.answer(shown(0, 20), shown(1, 20), session_id=78)
    assert watched.leases() == [True, True]
    watched.turn(session_id=78)
    assert (watched.link.session, watched.link.named) == ((78, 1), [])


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("answered", ["refused", "full", "lost", "garbage"])
def test_poll_rests_after_another_refusal_or_loss(answered):
    watched = Watched()
    watched.open_session()
    watched.send()
    if answered == "full":
        watched.link.answer(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        watched.send()
    {
        "refused": partial(watched.link.answer, error_code=ErrorCode.KAFKA_STORAGE_ERROR),
        "full": partial(watched.link.answer, error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        "lost": partial(watched.link.on_answer, None),
        "garbage": partial(watched.link.on_answer, b"\0\0\0\4\0\0\0\0"),
    }[answered]()
    assert watched.leases() == [False, False]
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert not watched.send()
    watched.broker.clock_s += REST_S
    assert watched.send()
    assert watched.link.session == ((0, 0) if answered == "full" else (77, 0))
    assert sorted(watched.link.named) == [0, 1]


def test_a_response_of_another_session_confirms_nothing():
    watched = Watched()
    watched.open_session()
    watched.turn(session_id=78)
    assert watched.leases() == [False, False]


def test_new_connection_begins_another_session():
    watched = Watched()
    watched.open_session()
    other = PlayedLink()
    assert watched.send(other)
    assert (other.session, sorted(other.named)) == ((77, 0), [0, 1])


def test_members_of_an_ended_session_are_named():
    watched = Watched()
    watched.open_session()
    watched.turn(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    watched.turn(shown(0, 20), session_id=78)
    assert watched.leases() == [True, False]
    watched.turn(session_id=78)
    assert watched.leases() == [True, True]


def test_without_session_all_partitions_take_turns():
    watched = Watched(3)
    watched.broker.clock_s = 10.0
    named = []
    for _ in range(3):
        watched.turn(shown(0, 20), session_id=0)
        assert watched.link.session == (0, 0)
        assert watched.poll.is_refused
        assert watched.leases() == [True, False, False]
        named.append(watched.link.named)
        watched.broker.clock_s += PAUSE_S
    assert named == [[1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_without_session_unaskable_partitions_are_uncovered():
    watched = Watched()
    watched.turn(shown(0, 20), session_id=0)
    watched.partitions[1].old_format = True
    watched.send()
    assert [p.open_polls for p in watched.partitions] == [1, 0]


def test_poll_pauses_without_a_session():
    watched = Watched()
    watched.turn(shown(0, 20), session_id=0)
    watched.turn(shown(0, 20), session_id=0)
    assert not watched.send()
    watched.broker.clock_s += PAUSE_S
    assert watched.send()


# -- cover ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pauses")
def test_members_are_covered_until_the_poll_pauses():
    watched = Watched()
    watched.broker.replica_fetcher.polled = lambda _poll: watched.send()
    covers = []
    watched.send()
    for number in (1, 2):
        watched.link.answer(*(shown(p.index, 20) for p in watched.partitions if number == 1))
        covers.append([(p.open_polls, watched.poll.holds(p)) for p in watched.partitions])
    watched.poll.discard(watched.partitions[0])
    watched.link.answer()
    covers.append([(p.open_polls, watched.poll.holds(p)) for p in watched.partitions])
    assert covers == [[(1, True), (1, True)], [(1, True), (1, True)], [(0, False), (1, True)]]
    watched.broker.replica_fetcher.polled = lambda _poll: None
    watched.link.answer()
    assert [(p.open_polls, watched.poll.holds(p)) for p in watched.partitions] == [(0, False)] * 2
    watched.send()
    assert [(p.open_polls, watched.poll.holds(p)) for p in watched.partitions] == [
        (0, False),
        (1, True),
    ]
