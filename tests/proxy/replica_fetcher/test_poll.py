"""Forebay's own Fetch: its question about each partition, and a poll without a session."""

from functools import partial

import pytest

from blockcache.results import Edges
from protocol import fetch
from protocol.errors import ErrorCode
from proxy.replica_fetcher.poll import FEW_BYTES, NOTHING_STORED, REST_S, Poll, plan_asked
from tests.proxy.followed_partition import (
    EPOCH,
    LEASE_UNTIL_S,
    TOPIC_ID,
    QuietBroker,
    known,
    learn,
    stand_in,
)
from tests.proxy.replica_fetcher.poll_connection import PlayedLink, shown

BLOCK_BYTES = 4096
STORED_TO_18 = Edges(0, 18, -1, -1, 0, 4)


class Watched:
    """Two partitions at HW 20 and a poll over them."""

    def __init__(self, max_wait_s=0.3):
        self.broker = QuietBroker()
        self.link = PlayedLink()
        self.partitions = [self.broker.follow(0), self.broker.follow(1)]
        for partition in self.partitions:
            learn(partition, 20)
        self.poll = Poll(stand_in(self.broker), "watch", max_wait_s)

    def send(self, *partitions):
        return self.poll.send(stand_in(self.link), partitions or self.partitions)

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
def test_poll_position_and_byte_limit(tail, high_watermark, offset, max_bytes):
    partition = QuietBroker().follow()
    learn(partition, high_watermark)
    partition.tail = tail
    asked = plan_asked(partition, NOTHING_STORED, BLOCK_BYTES)
    assert asked == fetch.FetchPartition(TOPIC_ID, 0, EPOCH, offset, -1, -1, max_bytes)


def test_unproven_partition_is_asked_with_suggested_epoch():
    partition = QuietBroker().follow()
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES) is None
    partition.leader_state.suggest(7, True)
    assert plan_asked(partition, NOTHING_STORED, BLOCK_BYTES) is None
    partition.probe_offset = 40
    asked = known(plan_asked(partition, NOTHING_STORED, BLOCK_BYTES))
    assert (asked.current_leader_epoch, asked.fetch_offset, asked.max_bytes) == (7, 40, FEW_BYTES)


def test_a_newer_suggested_epoch_is_carried():
    partition = QuietBroker().follow()
    learn(partition, 20)
    partition.leader_state.suggest(EPOCH + 2, True)
    asked = known(plan_asked(partition, NOTHING_STORED, BLOCK_BYTES))
    assert asked.current_leader_epoch == EPOCH + 2


def test_missing_epoch_or_old_format_prevents_questions():
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
    asked = known(plan_asked(partition, edges, BLOCK_BYTES))
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (offset, last_epoch)


def test_partition_is_covered_during_the_long_poll():
    watched = Watched()
    assert watched.send()
    assert [p.open_polls for p in watched.partitions] == [1, 1]
    assert not watched.send()
    assert len(watched.link.requests) == 1
    watched.link.answer()
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert watched.send()


def test_a_proof_does_not_wait_and_covers_nothing():
    watched = Watched(max_wait_s=0)
    assert watched.send()
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert watched.link.requests[0].max_wait_ms == 0
    assert watched.link.session == (0, -1)


def test_nothing_to_ask_is_not_sent():
    watched = Watched()
    watched.partitions[0].old_format = True
    assert not watched.send(watched.partitions[0])
    assert watched.link.requests == []


def test_request_is_small_and_has_no_rack():
    watched = Watched()
    watched.send()
    asked = watched.link.requests[0]
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (300, 1, 1)
    assert (asked.replica_id, asked.isolation_level, asked.rack_id) == (-1, 0, "")
    assert watched.broker.counters.watch.requests["watch"] == 1


def test_response_confirms_the_partitions_it_names():
    watched = Watched()
    watched.broker.clock_s = 10.0
    for _ in range(2):
        watched.send()
        assert (watched.link.session, watched.link.named) == ((0, -1), [0, 1])
        watched.link.answer(shown(0, 20), session_id=0)
        assert watched.leases() == [True, False]
    watched.broker.clock_s = 10.0 + LEASE_UNTIL_S
    assert watched.leases() == [False, False]


def test_standing_polls_plan_changed_partitions_anew():
    watched = Watched()
    watched.send()
    watched.link.answer(shown(1, 21), session_id=0)
    assert watched.broker.replica_fetcher.changes == [watched.partitions[1]]


@pytest.mark.parametrize("answered", ["refused", "lost", "garbage"])
def test_poll_rests_after_refusal_or_loss(answered):
    watched = Watched()
    watched.broker.clock_s = 10.0
    watched.send()
    {
        "refused": partial(watched.link.answer, error_code=ErrorCode.KAFKA_STORAGE_ERROR),
        "lost": partial(watched.link.on_answer, None),
        "garbage": partial(watched.link.on_answer, b"\0\0\0\4\0\0\0\0"),
    }[answered]()
    assert watched.leases() == [False, False]
    assert [p.open_polls for p in watched.partitions] == [0, 0]
    assert watched.broker.replica_fetcher.polls == [watched.poll]
    assert not watched.send()
    watched.broker.clock_s += REST_S
    assert watched.send()


def test_a_poll_goes_on_where_what_workers_have_told_cannot_be_taken():
    watched = Watched()
    failed: list[str] = []

    def fail():
        raise ValueError("an entry of the ring")

    stand_in(watched.broker).catch_up = fail
    stand_in(watched.broker).failed = failed.append
    assert watched.send()
    watched.link.answer(*(shown(index, 21) for index in range(2)))
    assert watched.broker.replica_fetcher.polls == [watched.poll]
    assert failed == ["what workers have told"] and not watched.poll.in_flight
    assert [one.leader_state.high_watermark for one in watched.partitions] == [21, 21]
