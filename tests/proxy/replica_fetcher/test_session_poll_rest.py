"""The rest of a standing poll after news: how long it is, what goes on meanwhile, and that it always ends.

Owns the time that news take here: a delayed Fetch of partition 0 moves the clock by `busy_s` once it is woken. Must
not know asyncio: timers are the manual clock's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.keeper.broker import ShowingFetcher
from proxy.replica_fetcher import session_poll
from proxy.replica_fetcher.fetcher import ReplicaFetcher
from proxy.replica_fetcher.session_poll import REST_MOST_S, REST_TIMES, SessionPoll
from tests.proxy.followed_partition import EPOCH, LEASE_UNTIL_S, QuietBroker, learn, stand_in
from tests.proxy.manual_clock import ManualClock
from tests.proxy.replica_fetcher.poll_connection import PlayedLink, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.partitions.table import Partition

BUSY_S = 0.001
EXACTLY = 1e-9


class Resting:
    """Two partitions at HW 20 in the session of a poll, asked about at `link` while that is not None."""

    def __init__(self, clock: ManualClock, rest_times: float = REST_TIMES) -> None:
        self.clock, self.busy_s, self.woken = clock, 0.0, 0
        self.broker = broker = QuietBroker()
        stand_in(broker).now = self.now
        self.link: PlayedLink | None = PlayedLink()
        self.poll = SessionPoll(stand_in(broker), "watch", LEASE_UNTIL_S / 3)
        stand_in(broker.replica_fetcher).rest_times = rest_times
        stand_in(broker.replica_fetcher).pump = self.pump
        broker.replica_fetcher.polled = lambda _poll: self.pump()
        self.partitions = [broker.follow(index) for index in range(2)]
        for partition in self.partitions:
            learn(partition, 20)
            partition.leader_state.suggest(EPOCH, True)
            partition.tail = 20
            self.poll.add(partition)
        self.pump()
        self.known_link.answer(shown(0, 20), shown(1, 20))
        self.known_link.answer()
        self.partitions[0].parked[stand_in(self)] = None
        self.high_watermark = 20

    @property
    def known_link(self) -> PlayedLink:
        assert self.link is not None
        return self.link

    def now(self) -> float:
        return self.clock.now

    def pump(self) -> None:
        """As `ReplicaFetcher.pump` does it."""
        self.poll.pump(stand_in(self.links))

    @property
    def links(self) -> object:
        return stand_in(Links(self.link))

    def wake(self, *_partitions: Partition) -> None:
        """The delayed Fetch is answered."""
        self.woken += 1
        self.clock.now += self.busy_s

    def bring_news(self, busy_s: float) -> None:
        """A record more of partition 0; its delayed Fetch takes `busy_s`."""
        self.busy_s = busy_s
        self.high_watermark += 1
        self.known_link.answer(shown(0, self.high_watermark))

    @property
    def sent(self) -> int:
        return len(self.known_link.frames)

    @property
    def open_polls(self) -> list[int]:
        return [partition.open_polls for partition in self.partitions]


class Links:
    """Forebay's own connections."""

    def __init__(self, link: PlayedLink | None) -> None:
        self.only = link

    def link(self, _name: str) -> PlayedLink | None:
        return self.only


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> Resting:
    clock = ManualClock()
    clock.replace_loop(monkeypatch, session_poll.__name__)
    return Resting(clock)


def test_news_that_take_no_time_are_followed_by_the_next_request(resting: Resting) -> None:
    before = resting.sent
    resting.bring_news(0.0)
    assert (resting.woken, resting.clock.timers) == (1, [])
    assert resting.sent == before + 1
    assert resting.open_polls == [1, 1]


@pytest.mark.parametrize(
    ("busy_s", "rest_s"),
    [(BUSY_S, REST_TIMES * BUSY_S), (REST_MOST_S, REST_MOST_S), (60.0, REST_MOST_S)],
)
def test_the_poll_rests_in_proportion_and_counts_as_open(
    resting: Resting, busy_s: float, rest_s: float
) -> None:
    before = resting.sent
    resting.bring_news(busy_s)
    resting.clock.advance(rest_s - EXACTLY)
    resting.pump()
    assert (resting.sent, resting.poll.in_flight) == (before, False)
    assert resting.open_polls == [1, 1]
    resting.clock.advance(2 * EXACTLY)
    assert (resting.sent, resting.poll.in_flight) == (before + 1, True)
    assert (resting.clock.timers, resting.open_polls) == ([], [1, 1])


def test_a_keeper_rests_for_what_workers_do_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ReplicaFetcher.rest_times == REST_TIMES < ShowingFetcher.rest_times
    clock = ManualClock()
    clock.replace_loop(monkeypatch, session_poll.__name__)
    keeper = Resting(clock, ShowingFetcher.rest_times)
    before, busy_s = keeper.sent, BUSY_S / 10
    keeper.bring_news(busy_s)
    clock.advance(ShowingFetcher.rest_times * busy_s - EXACTLY)
    assert keeper.sent == before
    clock.advance(2 * EXACTLY)
    assert keeper.sent == before + 1


def test_a_response_without_news_is_followed_by_the_next_request(resting: Resting) -> None:
    before = resting.sent
    resting.clock.advance(0.3)
    resting.known_link.answer()
    assert (resting.clock.timers, resting.sent) == ([], before + 1)


def test_news_of_the_rest_wake_a_delayed_fetch_once(resting: Resting) -> None:
    resting.bring_news(BUSY_S)
    resting.clock.advance(REST_MOST_S)
    resting.high_watermark += 9
    resting.bring_news(BUSY_S)
    assert resting.woken == 2


def test_a_connection_lost_in_the_rest_leaves_nothing_covered(resting: Resting) -> None:
    resting.bring_news(BUSY_S)
    resting.link = None
    resting.clock.advance(REST_MOST_S)
    assert (resting.clock.timers, resting.open_polls) == ([], [0, 0])
    assert not resting.poll.in_flight
    resting.link = PlayedLink()
    resting.pump()  # it is open again
    assert (resting.known_link.session, resting.known_link.named) == ((77, 0), [0, 1])
    assert resting.open_polls == [1, 1]
    resting.known_link.answer(shown(0, 30), shown(1, 20), session_id=78)
    assert all(p.leader_state.has_lease(resting.now()) for p in resting.partitions)


def test_another_connection_in_the_rest_gets_a_full_request_once(resting: Resting) -> None:
    """The session of the lost one ends with the rest, not in it. A full request in it ends it (FetchManager)."""
    resting.bring_news(BUSY_S)
    resting.link = PlayedLink()
    resting.pump()
    assert resting.sent == 0
    resting.clock.advance(REST_MOST_S)
    assert (resting.sent, resting.known_link.session) == (1, (77, 0))
    assert (resting.known_link.named, resting.open_polls) == ([0, 1], [1, 1])


def test_a_response_that_is_lost_begins_no_rest(resting: Resting) -> None:
    resting.known_link.on_answer(None)
    assert (resting.clock.timers, resting.open_polls) == ([], [0, 0])


def test_members_that_leave_in_the_rest_are_not_covered_after_it(resting: Resting) -> None:
    resting.bring_news(BUSY_S)
    left, other = resting.partitions
    resting.poll.discard(left)
    joined = resting.broker.follow(2)
    learn(joined, 20)
    resting.poll.add(joined)
    resting.clock.advance(REST_MOST_S)
    assert (resting.known_link.forgotten, resting.known_link.named) == ([0], [2])
    assert (left.open_polls, other.open_polls, joined.open_polls) == (0, 1, 1)


def test_a_poll_whose_members_have_all_left_ends_with_the_rest(resting: Resting) -> None:
    before = resting.sent
    resting.bring_news(BUSY_S)
    for partition in resting.partitions:
        resting.poll.discard(partition)
    resting.clock.advance(REST_MOST_S)
    assert (resting.sent, resting.clock.timers) == (before, [])
    assert resting.open_polls == [0, 0]


def test_an_error_after_the_rest_leaves_nothing_covered(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another poll, for example: the next tick asks again."""
    resting.bring_news(BUSY_S)
    failed = []

    def fail() -> None:
        failed.append(True)
        raise ValueError

    def attempt(action: Callable[[], object], _doing: str, _otherwise: object = None) -> None:
        with pytest.raises(ValueError):
            action()

    monkeypatch.setattr(resting.broker.replica_fetcher, "pump", fail)
    monkeypatch.setattr(resting.broker, "attempt", attempt)
    resting.clock.advance(REST_MOST_S)
    assert (failed, resting.open_polls) == ([True], [0, 0])
    resting.pump()
    assert resting.open_polls == [1, 1]


@pytest.mark.parametrize("lease_s", [0.1, 1.0])
@pytest.mark.parametrize("late_s", [0.0, 0.004, 0.01])
def test_a_lease_outlasts_the_rest(resting: Resting, lease_s: float, late_s: float) -> None:
    """News at the end of the waiting time, then a rest, then no news for the whole waiting time."""
    resting.broker.config.cache.confirm_every_s = lease_s
    resting.poll._max_wait_s = lease_s / 3
    resting.known_link.answer()
    resting.clock.advance(resting.poll._wait_s + late_s)
    resting.known_link.answer()
    for _ in range(4):
        for has_news in (True, False):
            resting.clock.advance(resting.poll._wait_s + late_s)
            assert all(p.leader_state.has_lease(resting.now()) for p in resting.partitions)
            if has_news:
                resting.bring_news(2 * BUSY_S)
                resting.clock.advance(REST_MOST_S)
            else:
                resting.known_link.answer()
