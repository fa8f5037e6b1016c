"""Responses are counted once: at once, or after all of a held group have left."""

from types import SimpleNamespace

from metrics.access_log import MAX_TEXT_CHARS
from protocol.api import FETCH
from protocol.header import RequestHeader
from proxy.fetch.services import NOT_PARKED, ClientFetch
from proxy.partitions.readable import PartitionOutcome, PartitionStatus, ReadState
from tests.proxy.cached_partition import World, build_fetch
from tests.proxy.followed_partition import TOPIC_ID, QuietBroker, known, stand_in
from tests.proxy.session_messages import asked, fetch


def fetch_of(broker):
    link = stand_in(SimpleNamespace(broker=broker, client_id=None, group=None))
    request = fetch((0, -1), asked(TOPIC_ID, 0))
    return ClientFetch(link, RequestHeader(FETCH, 13, 1, None, 0), request, None, 100, broker.now())


def told_of(broker, size_bytes):
    partition = broker.follow()
    return [
        PartitionOutcome(
            PartitionStatus(asked(TOPIC_ID, 0), partition, ReadState.READABLE, "", 10),
            size_bytes,
            "hit",
            "",
        )
    ]


def build_broker():
    broker = QuietBroker()
    broker.scheduler = SimpleNamespace(quotas=SimpleNamespace(active=False))
    return broker


def test_single_response_is_counted_at_once():
    broker = build_broker()
    broker.accounts.enter(fetch_of(broker), told_of(broker, 5), True, True)
    assert dict(broker.counters.fetch.record_bytes) == {("hit", ""): 5}
    assert (broker.counters.fetch.hit_s.count, broker.counters.fetch.wait_s.count) == (1, 0)
    broker.clock_s = 5.0
    waited = fetch_of(broker)._replace(received_at=1.0)
    broker.accounts.enter(waited, told_of(broker, 5), True, True, waited_s=3.0)
    assert (broker.counters.fetch.hit_s.sum, broker.counters.fetch.wait_s.sum) == (1.0, 3.0)


def test_held_responses_are_counted_with_their_times():
    broker = build_broker()
    broker.accounts.hold()
    for size_bytes in (5, 6):
        broker.accounts.enter(fetch_of(broker), told_of(broker, size_bytes), True, True)
        broker.clock_s += 1.0
    assert not broker.counters.fetch.partitions and not broker.counters.fetch.hit_s.count
    broker.accounts.settle()
    assert dict(broker.counters.fetch.partitions) == {("hit", ""): 2}
    assert dict(broker.counters.fetch.record_bytes) == {("hit", ""): 11}
    assert broker.counters.fetch.hit_s.sum == 0.0, "each left when it came"
    broker.accounts.settle()
    assert dict(broker.counters.fetch.partitions) == {("hit", ""): 2}, "once"


def test_undelivered_response_is_counted_while_others_leave():
    broker = build_broker()
    broker.accounts.hold()
    broker.accounts.enter(fetch_of(broker), told_of(broker, 5), False, False)
    assert (
        broker.counters.fetch.undelivered_partitions,
        broker.counters.fetch.upstream_s.count,
    ) == (
        1,
        1,
    )
    broker.accounts.settle()
    assert not broker.counters.fetch.partitions


def test_lines_of_held_responses_are_put_together():
    broker = build_broker()
    handed: list[list[object]] = []
    broker.accounts.lines = stand_in(SimpleNamespace(put_departed=handed.append))
    broker.accounts.hold()
    for _ in range(2):
        broker.accounts.enter(fetch_of(broker), told_of(broker, 5), True, True)
    assert handed == []
    broker.accounts.settle()
    assert [len(departed) for departed in handed] == [2]


async def test_line_holds_only_shown_text():
    """Lines wait in a queue, and what they have in common is cached: 1,000 of them in 32 kB each would be 125 MB."""
    world = World()
    for number, offset in enumerate((0, 3, 9)):
        world.receive(build_fetch(offset, correlation_id=number, client_id="x" * 300))
    head = RequestHeader(FETCH, 0, 9, "x" * 300, 0)
    world.broker.accounts.enter_unread(world.link, head, 0.0, True)
    status = PartitionStatus(asked("t" * 32_000, 0), None, ReadState.PASS, "unknown-topic", 0)
    unknown = [PartitionOutcome(status, size, "pass", "unknown-topic") for size in (0, 5)]
    request = fetch((0, -1), asked("t" * 32_000, 0))
    asking = ClientFetch(world.link, head, request, None, 100, 0.0)
    known(world.broker.accounts.lines).put_departed([(asking, unknown, False, 0.0, NOT_PARKED, 0)])
    assert {line.response.client_id for line in world.lines} == {"x" * MAX_TEXT_CHARS}
    assert [line.topic for line in world.lines][-1] == "t" * MAX_TEXT_CHARS
    assert len(world.lines) == 5
    (empty,) = world.log.count_empty()
    assert (empty.client_id, empty.topic) == ("x" * MAX_TEXT_CHARS, "t" * MAX_TEXT_CHARS)
