"""Several consumers miss the same range: they share one read, and each needs its own right."""

from types import SimpleNamespace

import pytest

from protocol import fetch
from protocol.fetch_build import build_response
from proxy.fetch.misses.coalescing import (
    JOINING_S,
    PATIENCE_S,
    SharedReads,
    build_coalescing_key,
)
from proxy.fetch.misses.read import Stage
from proxy.net.byte_budget import ByteBudget
from proxy.partitions.readable import ReadState
from proxy.partitions.table import Partition
from proxy.partitions.topics import Topic
from tests.proxy.fetch.misses import test_reads as reads
from tests.proxy.fetch.misses.test_reads import RECORDS, VERSION, Link, Waiter, answer, asked
from tests.proxy.manual_clock import ManualClock

PARTITION, OTHER = (Partition(Topic(bytes(16), "t"), index, index, 10) for index in range(2))


@pytest.fixture(autouse=True)
def loop(monkeypatch):
    clock = ManualClock()
    clock.replace_loop(monkeypatch, "proxy.fetch.misses.coalescing")
    return clock


def several(count=3, joiners=100):
    """Links of one process: their reads, time, throttle and numbers are one."""
    links = [Link() for _ in range(count)]
    shared = SharedReads(links[0].broker, joiners)
    for link in links:
        link.broker.shared_reads = shared
        link.broker.counters = links[0].broker.counters
        link.broker.now = links[0].broker.now
        link.broker.disk_throttle = links[0].broker.disk_throttle
    return links


def missed(wanted, partition=PARTITION):
    return reads.missed(wanted, limit=500 if partition else -1, partition=partition)


def begin(link, *wanted, partition=PARTITION, **more):
    assert reads.begin(link, *wanted, partition=partition, **more)


def find(link, partition=PARTITION):
    return reads.find(link, asked(), limit=500 if partition else -1, partition=partition)


def sent(links):
    return [len(link.upstream.sent) for link in links]


def test_one_read_serves_all_equal_misses():
    links = several()
    waiters = [Waiter() for _ in links]
    for link, waiter in zip(links, waiters, strict=True):
        begin(link, asked(), waiter=waiter)
    assert sent(links) == [1, 0, 0]
    links[0].upstream.answer(answer(), throttle_time_ms=9)
    reads = [find(link) for link in links]
    assert [read.stage for read in reads] == [Stage.ARRIVED] * 3
    assert {bytes(read.records(1 << 20, True)) for read in reads} == {RECORDS}
    assert [read.throttle_time_ms for read in reads] == [9, 0, 0], (
        "the first one's quota is its own"
    )
    assert [waiter.wakeups for waiter in waiters] == [1, 1, 1]
    assert [len(link.learned) for link in links] == [1, 0, 0], (
        "the right of the others is theirs to prove"
    )
    assert links[0].broker.shared_reads.joined == 2
    assert [link.broker.responses.in_flight_bytes for link in links] == [len(RECORDS)] * 3
    assert len(links[0].broker.shared_reads) == 0
    begin(links[1], asked(offset=101))
    assert sent(links) == [0, 1, 0], "what has landed is not joined"


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        (asked(offset=101), {}),
        (asked(epoch=3), {}),
        (asked()._replace(last_fetched_epoch=3), {}),
        (asked(max_bytes=1001), {}),
        (asked(), {"isolation_level": 1}),
        (asked(), {"version": VERSION - 1}),
        (asked(), {"partition": OTHER}),
        (asked(), {"partition": None}),
    ],
    ids=["offset", "epoch", "last-epoch", "more", "isolation", "version", "partition", "no-right"],
)
def test_another_question_is_another_read(wanted, options):
    links = several(2)
    begin(links[0], asked())
    begin(links[1], wanted, **options)
    assert sent(links) == [1, 1]


def test_smaller_miss_joins_a_larger_read():
    links = several(2)
    begin(links[0], asked())
    begin(links[1], asked(max_bytes=10))
    assert sent(links) == [1, 0]


def test_only_immediate_reads_are_shared():
    wanted = asked(offset=500)
    assert build_coalescing_key(missed(wanted), VERSION, 0) is None, (
        "at the end the broker would wait"
    )
    assert build_coalescing_key(missed(asked(offset=499)), VERSION, 0) is not None
    assert build_coalescing_key(missed(asked())._replace(state=ReadState.PASS), VERSION, 0) is None


@pytest.mark.parametrize(
    "said",
    [
        (answer(error_code=1, records=b""),),
        (answer(error_code=29, records=b""),),
        (answer(records=b""),),
        (),
        None,
    ],
    ids=["out-of-range", "not-authorized", "empty", "not-named", "link-lost"],
)
def test_only_records_are_shared(said):
    links = several(2)
    for link in links:
        begin(link, asked())
    if said is None:
        links[0].upstream.sent.pop()[1](None)
    else:
        links[0].upstream.answer(*said)
    assert sent(links) == [0, 1], "the other asks for itself"
    links[1].upstream.answer(answer())
    assert find(links[1]).stage is Stage.ARRIVED
    assert links[0].broker.shared_reads.joined == 0


def test_lost_reader_is_replaced_by_one_joiner():
    links = several(4)
    for link in links:
        begin(link, asked())
    links[0].reads.close()
    links[0].upstream.sent.pop()[1](None)
    assert sent(links) == [0, 1, 0, 0]
    links[1].upstream.answer(answer())
    assert [find(link).stage for link in links[1:]] == [Stage.ARRIVED] * 3


def test_reader_without_interest_reads_for_joiners():
    links = several(2)
    for link in links:
        begin(link, asked())
    links[0].reads.close()
    links[0].upstream.answer(answer())
    assert find(links[1]).stage is Stage.ARRIVED
    assert links[0].broker.responses.in_flight_bytes == 0


def test_joiners_leave_a_slow_read(loop):
    links = several(3)
    for link in links:
        begin(link, asked())
    loop.advance(0.9 * PATIENCE_S)
    assert sent(links) == [1, 0, 0]
    loop.advance(0.2 * PATIENCE_S)
    assert sent(links) == [1, 1, 0]
    links[0].clock.now = JOINING_S
    loop.advance(PATIENCE_S)
    assert sent(links) == [1, 1, 1]
    links[0].upstream.answer(answer())
    links[2].upstream.answer(answer())
    assert [find(link) and find(link).stage for link in links] == [
        Stage.ARRIVED,
        Stage.READING,
        Stage.ARRIVED,
    ]


def test_joiners_of_a_read_are_limited():
    links = several(4, joiners=2)
    for link in links:
        begin(link, asked())
    assert sent(links) == [1, 0, 0, 1]
    links = several(2, joiners=0)
    for link in links:
        begin(link, asked())
    assert sent(links) == [1, 1]


def test_held_up_read_is_not_joined():
    links = several(3)
    begin(links[0], asked(partition=7), partition=OTHER)
    begin(links[0], asked())
    begin(links[1], asked())
    assert sent(links) == [2, 1, 0], "the first stands behind another request of its link"
    links[1].upstream.reading_held = True
    begin(links[2], asked())
    assert sent(links) == [2, 1, 1], "the second one's client does not drain"


def test_joiner_without_right_gets_nothing():
    links = several(3)
    for link in links:
        begin(link, asked())
    assert find(links[1], partition=None) is None, "while it is under way"
    links[0].upstream.answer(answer())
    assert find(links[2], partition=None) is None, "and when it has arrived"
    assert find(links[0], partition=None) is not None, "its own answer is its right"
    assert (
        links[1].broker.responses.in_flight_bytes == links[2].broker.responses.in_flight_bytes == 0
    )


def test_a_joiner_that_goes_away_is_charged_nothing():
    links = several(2)
    for link in links:
        begin(link, asked())
    links[1].reads.close()
    links[0].upstream.answer(answer())
    assert (len(links[1].reads), links[1].broker.responses.in_flight_bytes) == (0, 0)
    assert links[0].broker.shared_reads.joined == 0


def test_joiner_opens_no_broker_connection():
    links = several(2)
    for link in links:
        begin(link, asked())
    links[1].upstream.is_connected = False
    links[1].broker.responses = ByteBudget(1 << 30)
    links[0].upstream.answer(answer())
    assert links[1].broker.responses.in_flight_bytes == len(RECORDS)


def test_throttle_is_charged_once_for_a_shared_read():
    links = several(3)
    disk_throttle = links[0].broker.disk_throttle
    disk_throttle.holds = True
    for link in links:
        begin(link, asked())
    assert [find(link).stage for link in links] == [Stage.DELAYED] * 3
    disk_throttle.held.insert(0, disk_throttle.held.pop(1))
    disk_throttle.release()
    assert sent(links) == [0, 1, 0]
    assert [ticket.key[0] for ticket in disk_throttle.cancelled] == [links[0], links[2]]
    links[1].upstream.answer(answer())
    assert disk_throttle.finished == [len(RECORDS)]
    assert [find(link).stage for link in links] == [Stage.ARRIVED] * 3


def test_read_is_not_begun_at_the_throttles_limit():
    links, waiter = several(2), Waiter()
    begin(links[0], asked())
    begin(links[1], asked(), waiter=waiter)
    links[1].broker.disk_throttle.refuses = True
    links[0].upstream.sent.pop()[1](None)
    assert (find(links[1]), waiter.wakeups) == (None, 1)


def test_delayed_read_joins_an_earlier_one():
    links, held = several(2), []
    links[1].broker.scheduler.submit = lambda link, go, refuse, **_: held.append(go)
    links[1].broker.scheduler.open = 1
    begin(links[1], asked())
    begin(links[0], asked())
    held.pop()(links[1].broker.scheduler)
    assert (sent(links), links[1].broker.scheduler.open) == ([1, 0], 0)
    assert links[1].broker.disk_throttle.finished == [0]
    links[0].upstream.answer(answer())
    assert find(links[1]).stage is Stage.ARRIVED


def forwarding(link, statuses, min_bytes=1, rack_id=""):
    request = SimpleNamespace(rack_id=rack_id, least_bytes=min_bytes, isolation_level=0)
    shared = link.broker.shared_reads
    return shared.begin_forwarded(request, VERSION, statuses, link.upstream)


@pytest.mark.parametrize("options", [{"min_bytes": 2}, {"rack_id": "a"}])
def test_waiting_or_redirected_fetch_is_not_joined(options):
    link = Link()
    assert forwarding(link, [missed(asked())], **options) == []


@pytest.mark.parametrize("comes", [True, False])
def test_fetch_forwarded_whole_serves_equal_misses(comes):
    links = several(2)
    pipeline = forwarding(links[0], [missed(asked()), missed(asked(5), None)])
    assert len(pipeline) == 1
    begin(links[1], asked())
    assert sent(links) == [0, 0]
    said = build_response(
        VERSION, 0, throttle_time_ms=0, error_code=0, session_id=0, partitions=[answer(5), answer()]
    )
    frame = b"".join(said)
    response = fetch.scan_response(frame, VERSION) if comes else None
    links[0].broker.shared_reads.end_forwarded(pipeline, response, frame if comes else None)
    if comes:
        assert bytes(find(links[1]).records(1 << 20, True)) == RECORDS
    else:
        assert sent(links) == [0, 1]


def test_a_smaller_limit_leaves_joiners_joined():
    links = several(5, joiners=2)
    for link in links[:3]:
        begin(link, asked())
    links[0].broker.shared_reads.set_limit(1)
    begin(links[3], asked())
    assert sent(links) == [1, 0, 0, 1, 0]
    links[0].upstream.answer(answer())
    assert [find(link).stage for link in links[1:3]] == [Stage.ARRIVED, Stage.ARRIVED]
