"""One of the watch's Fetches: what it asks, what an answer confirms, and its session toward the broker."""

import pytest

from blockcache.results import Edges
from protocol import fetch
from protocol.batch import Batch
from protocol.errors import ErrorCode
from protocol.fetch_build import FetchAnswer, build_response
from protocol.header import peek_request
from proxy.replica_fetcher.poll import FEW_BYTES, NOTHING_STORED, REST_S, VERSION, Poll, plan_asked
from tests.proxy.followed import EPOCH, LEASE_UNTIL_S, TOPIC_ID, QuietBroker, learn

BLOCK_BYTES = 4096
STORED_TO_18 = Edges(0, 18, -1, -1, 0, 4)


class PlayedLink:
    """Requests as the broker reads them, and the answer that the test gives."""

    def __init__(self):
        self.requests = []
        self.on_answer = None

    def send(self, frame, correlation_id, on_answer):
        assert correlation_id == 0
        self.requests.append(fetch.scan_request(frame, VERSION, peek_request(frame).body_start))
        self.on_answer = on_answer

    def answer(self, *partitions, session_id=77, error_code=0, throttle_time_ms=0):
        buffers = build_response(
            VERSION,
            0,
            throttle_time_ms=throttle_time_ms,
            error_code=error_code,
            session_id=session_id,
            partitions=partitions,
        )
        self.on_answer(b"".join(buffers))

    @property
    def session(self):
        return self.requests[-1].session_id, self.requests[-1].session_epoch

    @property
    def named(self):
        return [p.partition for p in self.requests[-1].partitions]


TRANSACTIONAL = 0x10


def shown(index, high_watermark, last_stable_offset=None):
    stable = high_watermark if last_stable_offset is None else last_stable_offset
    return FetchAnswer(TOPIC_ID, index, 0, high_watermark, stable, 0, None, (), 0)


class Watched:
    """Two partitions at HW 20 and a poll over them."""

    def __init__(self, in_session=True, max_wait_s=0.3):
        self.broker = QuietBroker()
        self.link = PlayedLink()
        self.partitions = [self.broker.follow(0), self.broker.follow(1)]
        for partition in self.partitions:
            learn(partition, 20)
        self.poll = Poll(self.broker, "watch", max_wait_s, in_session)

    def send(self, *partitions, link=None):
        return self.poll.send(link or self.link, partitions or self.partitions)

    def open_session(self):
        """A first answer that shows both grants session 77; the leases are then let lapse."""
        assert self.send()
        self.link.answer(shown(0, 20), shown(1, 20))
        self.broker.clock_s = 10.0

    def leases(self):
        return [p.leader_state.has_lease(self.broker.clock_s) for p in self.partitions]


@pytest.mark.parametrize(
    ("tail", "high_watermark", "offset", "max_bytes"),
    [
        (20, 20, 20, FEW_BYTES),
        (20, 15, 15, FEW_BYTES),  # beyond the HW the whole poll would return at once
        (20, 30, 20, BLOCK_BYTES),  # visible bytes are missing
        (-1, 30, 30, FEW_BYTES),
        (0, 0, 0, FEW_BYTES),
    ],
)
def test_where_the_watch_stands(tail, high_watermark, offset, max_bytes):
    partition = QuietBroker().follow()
    learn(partition, high_watermark)
    partition.tail = tail
    asked = plan_asked(partition, NOTHING_STORED, BLOCK_BYTES)
    assert asked == fetch.FetchPartition(TOPIC_ID, 0, EPOCH, offset, -1, -1, max_bytes)


def test_an_unproven_partition_is_asked_where_it_stands_with_the_suggested_epoch():
    partition = QuietBroker().follow()
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES) is None
    partition.leader_state.suggest(7, True)
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES) is None
    partition.probe_offset = 40
    asked = plan_asked(partition, NOTHING_STORED, BLOCK_BYTES)
    assert (asked.current_leader_epoch, asked.fetch_offset, asked.max_bytes) == (7, 40, FEW_BYTES)


def test_a_newer_suggested_epoch_is_carried():
    partition = QuietBroker().follow()
    learn(partition, 20)
    partition.leader_state.suggest(EPOCH + 2, True)
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES).current_leader_epoch == EPOCH + 2


def test_without_an_epoch_or_of_an_old_format_nothing_is_asked():
    partition = QuietBroker().follow()
    partition.probe_offset = 40
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES) is None
    learn(partition, 20)
    partition.old_format = True
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES) is None


@pytest.mark.parametrize(
    ("frozen", "edges", "offset", "last_epoch"),
    [(True, STORED_TO_18, 18, 4), (False, STORED_TO_18, 20, -1), (True, NOTHING_STORED, 20, -1)],
)
def test_divergence_is_checked_where_the_stored_bytes_end(frozen, edges, offset, last_epoch):
    partition = QuietBroker().follow()
    learn(partition, 20)
    partition.tail = 20
    partition.leader_state.frozen = frozen
    asked = plan_asked(partition, edges, BLOCK_BYTES)
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (offset, last_epoch)


def test_a_partition_is_covered_while_the_long_poll_is_unanswered():
    watched = Watched()
    assert watched.send()
    assert [p.open_polls for p in watched.partitions] == [1, 1]
    assert not watched.send()
    assert len(watched.link.requests) == 1
    watched.link.answer()
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert watched.send()


def test_a_proof_does_not_wait_and_covers_nothing():
    watched = Watched(in_session=False, max_wait_s=0)
    assert watched.send()
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert watched.link.requests[0].max_wait_ms == 0
    assert watched.link.session == (0, -1)


def test_nothing_to_ask_is_not_sent():
    watched = Watched()
    watched.partitions[0].old_format = True
    assert not watched.send(watched.partitions[0])
    assert watched.link.requests == []


def test_the_request_is_a_consumers_small_one_without_a_rack():
    watched = Watched()
    watched.send()
    asked = watched.link.requests[0]
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (300, 1, 1)
    assert (asked.replica_id, asked.isolation_level, asked.rack_id) == (-1, 0, "")
    assert watched.broker.counters.watch_requests["watch"] == 1


def test_a_session_names_what_has_changed_and_forgets_what_is_not_asked():
    watched = Watched()
    watched.open_session()
    assert watched.link.requests[0].partitions == [
        fetch.FetchPartition(TOPIC_ID, i, EPOCH, 20, -1, -1, FEW_BYTES) for i in (0, 1)
    ]
    assert (watched.link.session, watched.link.named) == ((0, 0), [0, 1])
    watched.send()
    assert (watched.link.session, watched.link.named) == ((77, 1), [])
    learn(watched.partitions[1], 30)
    watched.link.answer()
    watched.send()
    assert (watched.link.session, watched.link.named) == ((77, 2), [1])
    watched.link.answer()
    watched.send(watched.partitions[0])
    assert watched.link.requests[-1].forgotten == [(TOPIC_ID, 1)]


def test_the_session_epoch_wraps_to_one():
    watched = Watched()
    watched.open_session()
    watched.poll._epoch = (1 << 31) - 2
    for epoch in ((1 << 31) - 2, (1 << 31) - 1, 1, 2):
        watched.send()
        assert watched.link.session == (77, epoch)
        watched.link.answer()


def test_what_the_session_omits_is_confirmed_from_the_sending_on():
    watched = Watched()
    watched.open_session()
    watched.send()
    watched.broker.clock_s = 10.9
    watched.link.answer()
    assert watched.leases() == [True, True]
    watched.broker.clock_s = 10.0 + LEASE_UNTIL_S
    assert watched.leases() == [False, False]
    assert watched.broker.watch.asked == []
    assert watched.partitions[0].leader_state.high_watermark == 20


def test_an_omitted_lso_below_the_hw_is_asked_again():
    watched = Watched()
    watched.open_session()
    learn(watched.partitions[1], 30, 25)
    watched.send()
    watched.link.answer()
    assert watched.broker.watch.asked == [watched.partitions[1]]


def test_an_lso_that_is_known_from_the_batches_is_not_asked_again():
    watched = Watched()
    watched.open_session()
    learn(watched.partitions[1], 30, 25)
    transactions = watched.partitions[1].transactions
    transactions.shown(25, 25, 0, 0.0)
    data = Batch(0, 0, 25, 29, 0, 2, 0, TRANSACTIONAL, 0, 7, 0, 0, 5)
    transactions.observed(b"", [data], 25, 30)
    watched.send()
    watched.link.answer()
    assert watched.partitions[1].last_stable_offset() == 25
    assert watched.broker.watch.asked == []


def test_an_answer_throttled_empty_confirms_nothing():
    watched = Watched()
    watched.open_session()
    watched.send()
    watched.link.answer(throttle_time_ms=5)
    assert watched.leases() == [False, False]


def test_a_throttled_answer_with_news_confirms_the_rest():
    watched = Watched()
    watched.open_session()
    watched.send()
    watched.link.answer(shown(1, 21), throttle_time_ms=5)
    assert watched.leases() == [True, True]
    assert [p.leader_state.high_watermark for p in watched.partitions] == [20, 21]


def test_a_full_answer_confirms_only_what_it_shows():
    watched = Watched()
    watched.broker.clock_s = 10.0
    watched.send()
    watched.link.answer(shown(0, 20))
    assert watched.leases() == [True, False]


def test_an_omitted_partition_of_an_epoch_not_proven_is_not_confirmed():
    watched = Watched()
    watched.open_session()
    watched.partitions[0].leader_state.suggest(EPOCH + 1, True)
    watched.send()
    watched.link.answer()
    assert watched.leases() == [False, True]


@pytest.mark.parametrize("answered", ["refused", "lost", "garbage"])
def test_a_refused_or_lost_answer_confirms_nothing_and_ends_the_session(answered):
    watched = Watched()
    watched.open_session()
    watched.send()
    if answered == "refused":
        watched.link.answer(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    else:
        watched.link.on_answer(None if answered == "lost" else b"\0\0\0\4\0\0\0\0")
    assert watched.leases() == [False, False]
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert watched.broker.watch.polls == [True, False]
    assert not watched.send()  # it rests
    watched.broker.clock_s += REST_S
    assert watched.send()
    assert (watched.link.session, watched.link.named) == ((0, 0), [0, 1])


def test_a_broker_that_grants_no_session_is_asked_for_everything_each_time():
    watched = Watched()
    for _ in range(2):
        watched.send()
        assert (watched.link.session, watched.link.named) == ((0, 0), [0, 1])
        watched.link.answer(shown(0, 20), session_id=0)
        assert watched.poll.session_refused
    watched.broker.clock_s = 10.0
    watched.send()
    watched.link.answer(shown(0, 20), session_id=0)
    assert watched.leases() == [True, False]


def test_a_new_link_begins_a_new_session():
    watched = Watched()
    watched.open_session()
    other = PlayedLink()
    assert watched.send(link=other)
    assert (other.session, other.named) == ((0, 0), [0, 1])
