"""The standing poll of a partition: the hot one with news, else an idle one, and always one of them."""

from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer
from proxy.partitions.leader_state import Lease
from proxy.partitions.topics import Leader
from proxy.replica_fetcher.fetcher import NEWS_S, REPLAN_SWEEPS, SWEEP_S, WANTED_S
from tests.kit.cache_batches import build_batch
from tests.proxy.followed_partition import EPOCH, TOPIC_ID
from tests.proxy.replica_fetcher.poll_connection import (
    END,
    SESSION_ID,
    Hot,
    PlayedLink,
    build_answer,
    shown,
)


def answer(link: PlayedLink, *named: int) -> None:
    """The broker shows what is named, whatever has news."""
    link.answer(*(shown(index, END) for index in named))


def pass_time(hot: Hot, idle_named: tuple[int, ...] = ()) -> None:
    """Half a second, in which each poll is answered twice and the members are swept."""
    for _ in range(2):
        hot.clock_s += SWEEP_S / 2
        hot.broker.replica_fetcher.tick(hot.clock_s)
        hot.link.answer()
        idle = hot.own.links.get("idle-0")
        if idle is not None:
            answer(idle, *idle_named)
        assert all(p.open_polls for p in hot.partitions), "nobody is left alone"
        assert all(hot.leases())


def move_to_idle(hot: Hot) -> PlayedLink:
    """Partition 0 goes on having news, the others rest."""
    for turn in range(4):
        hot.link.on_answer(hot.build_news())
        pass_time(hot, tuple(range(1, len(hot.partitions))) if turn < 3 else ())
    idle: PlayedLink = hot.own.links["idle-0"]
    return idle


def test_resting_partition_moves_to_an_idle_poll() -> None:
    hot = Hot(3)
    idle = move_to_idle(hot)
    watch = hot.broker.replica_fetcher
    assert list(watch._hot.members) == [hot.partitions[0]]
    assert list(watch._idle[0].members) == hot.partitions[1:]
    assert any(sorted(r.forgotten) == [(TOPIC_ID, 1), (TOPIC_ID, 2)] for r in hot.link.requests)
    assert idle.session[0] == SESSION_ID
    assert watch.watched == 3


def test_only_watched_partitions_have_their_leases_counted() -> None:
    """One that has left the polls keeps its lease to its end."""
    hot = Hot(3)
    move_to_idle(hot)
    watch, now = hot.broker.replica_fetcher, hot.clock_s
    for partition in hot.partitions:
        partition.leader_state.hold(Lease(now + 1.0))
    assert watch.count_leases(now) == watch.watched == 3
    watch.forget(hot.partitions[1])
    assert hot.partitions[1].leader_state.has_lease(now)
    assert watch.count_leases(now) == watch.watched == 2
    hot.partitions[0].leader_state.revoke()
    assert watch.count_leases(now) == 1


def test_partition_leaves_after_the_idle_polls_response() -> None:
    hot = Hot(3)
    for _ in range(4):
        hot.link.on_answer(hot.build_news())
        hot.clock_s += SWEEP_S
        hot.broker.replica_fetcher.tick(hot.clock_s)
        hot.link.answer()
    assert list(hot.broker.replica_fetcher._idle[0].members) == hot.partitions[1:]
    assert list(hot.broker.replica_fetcher._hot.members) == hot.partitions


def test_sweep_finds_a_changed_question() -> None:
    hot = Hot(2)
    hot.link.on_answer(hot.build_news())
    hot.partitions[0].tail = END
    hot.link.answer()
    hot.link.answer()
    for _ in range(REPLAN_SWEEPS):
        hot.clock_s += SWEEP_S
        hot.broker.replica_fetcher.tick(hot.clock_s)
    hot.link.answer()
    assert [(p.partition, p.fetch_offset) for p in hot.link.requests[-1].partitions] == [(0, END)]


def test_news_bring_it_back_to_the_hot_poll() -> None:
    hot = Hot(3)
    idle = move_to_idle(hot)
    batch = build_batch(END, epoch=EPOCH, size=1_000)
    idle.answer(FetchAnswer(TOPIC_ID, 1, 0, END + 1, END + 1, 0, None, (batch,), len(batch)))
    watch = hot.broker.replica_fetcher
    assert list(watch._hot.members) == [hot.partitions[0], hot.partitions[1]]
    assert idle.forgotten == [1]
    hot.link.answer()
    assert [(p.partition, p.fetch_offset) for p in hot.link.requests[-1].partitions] == [
        (1, END + 1)
    ]
    assert all(hot.leases())


def test_error_returns_a_partition_after_its_pause() -> None:
    hot = Hot(3)
    idle = move_to_idle(hot)
    idle.answer(shown(1, -1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    hot.link.answer()
    assert hot.leases() == [True, False, True]
    assert hot.link.named == []
    hot.clock_s = hot.partitions[1].back_off.until
    hot.partitions[1].parked[Silent()] = None
    hot.broker.replica_fetcher.tick(hot.clock_s)
    proof = hot.own.links["proof"]
    assert proof.named == [1]
    proof.answer(shown(1, END), session_id=0)
    hot.link.answer()
    assert hot.link.named == [1]


class Silent:
    """Waits, and does nothing when it is woken."""

    def wake(self, *_partitions: object) -> None:
        """Nothing follows."""

    def note_acknowledged(self, _partition: object) -> None:
        """Nothing follows."""


def test_unwanted_partition_leaves() -> None:
    hot = Hot(2)
    hot.partitions[1].wanted_at = hot.clock_s + 1
    hot.clock_s += WANTED_S + SWEEP_S
    hot.broker.replica_fetcher.tick(hot.clock_s)
    assert list(hot.broker.replica_fetcher._hot.members) == [hot.partitions[1]]
    hot.link.answer()
    assert hot.link.forgotten == [0]
    assert [p.open_polls for p in hot.partitions] == [0, 1]


def test_next_request_carries_a_suggested_epoch() -> None:
    hot = Hot(2)
    hot.partitions[1].topic.leaders[1] = Leader(1, EPOCH + 1)
    hot.broker.replica_fetcher.suggest(hot.partitions[1])
    hot.link.answer()
    (asked,) = hot.link.requests[-1].partitions
    assert (asked.partition, asked.current_leader_epoch) == (1, EPOCH + 1)


def test_dropped_records_are_asked_at_the_stored_end() -> None:
    hot = Hot(2)
    hot.link.on_answer(hot.build_news())
    hot.link.on_answer(hot.build_news())
    hot.broker.invalidate(hot.partitions[0], END + 1, "verifier")
    hot.link.answer()
    assert [(p.partition, p.fetch_offset) for p in hot.link.requests[-1].partitions] == [
        (0, END + 1)
    ]


def test_evicted_session_is_recreated_at_once() -> None:
    hot = Hot(3)
    requests = len(hot.link.frames)
    hot.link.on_answer(build_answer(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0))
    assert len(hot.link.frames) == requests + 1
    assert (hot.link.session, sorted(hot.link.named)) == ((0, 0), [0, 1, 2])
    assert [p.open_polls for p in hot.partitions] == [1, 1, 1]


def test_shared_lease_lapse_counts_each_member() -> None:
    hot = Hot(3)
    hot.clock_s += 0.1
    hot.broker.replica_fetcher.tick(hot.clock_s)
    hot.clock_s += NEWS_S
    hot.broker.replica_fetcher.tick(hot.clock_s)
    assert hot.broker.counters.watch.lease_lapses == 3
