"""Miss fetches: started, arrived, served once, dropped. The test answers for the broker."""

from types import SimpleNamespace

import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol import header
from protocol.fetch import FetchPartition
from protocol.fetch_build import FetchAnswer, build_response
from proxy.accounting.counters import Counters
from proxy.fetch.misses.coalescing import SharedReads
from proxy.fetch.misses.read import Asker, Stage
from proxy.fetch.misses.reads import KEPT_S, POLL_MS, Reads
from proxy.net.byte_budget import ByteBudget
from proxy.partitions.readable import PartitionStatus, ReadState
from tests.kit import fetch_messages
from tests.protocol import oracle
from tests.protocol.batches import batch_v2
from tests.proxy.followed_partition import stand_in
from throttle.tickets import DelayRefused, DelayTicket, TicketKey

VERSION = 12
COMMITTED = 1
RECORDS = batch_v2(3) * 4


class Upstream:
    """Keeps what it is sent; `answer` tells the oldest."""

    def __init__(self):
        self.framed = None
        self.is_connected = True
        self.reading_held = False
        self.sent = []

    @property
    def unanswered(self):
        return len(self.sent)

    def send(self, frame, correlation_id, on_answer):
        head = header.peek_request(frame)
        self.sent.append(
            (fetch_messages.scan_request(frame, head.api_version, head.body_start), on_answer)
        )

    def answer(self, *answers, throttle_time_ms=0):
        _, on_answer = self.sent.pop(0)
        frame = b"".join(
            build_response(
                VERSION,
                0,
                throttle_time_ms=throttle_time_ms,
                error_code=0,
                session_id=0,
                partitions=answers,
            )
        )
        on_answer(frame)


class Pacer:
    """Lets everything go, or holds it until `release`; `refuses` is its bound."""

    def __init__(self):
        self.holds = self.refuses = False
        self.held, self.finished, self.cancelled = [], [], []

    def submit(self, connection, client_id, status, size_bytes, go):
        if self.refuses:
            return DelayRefused("requests")
        asked = status.asked
        key = TicketKey(connection, asked.partition, asked.fetch_offset)
        ticket = DelayTicket(key, client_id, "sdx", size_bytes, 0.0)
        if self.holds:
            self.held.append((ticket, go))
        else:
            ticket.granted_s = 0.0
        return ticket

    def release(self):
        ticket, go = self.held.pop(0)
        ticket.granted_s = 1.0
        go()

    def done(self, ticket, size_bytes):
        self.finished.append(size_bytes)

    def cancel(self, ticket):
        self.cancelled.append(ticket)


class Gate:
    """Lets everything through, refuses it, or keeps it waiting."""

    def __init__(self):
        self.refuses = self.holds = False
        self.open = 0

    def submit(self, link, go, refuse, *, topics, watched, whole):
        if self.refuses:
            refuse()
        elif not self.holds:
            self.open += 1
            go(self)

    def dispatched(self, entry):
        assert entry is self

    def answered(self, entry):
        self.open -= 1

    withdraw = answered


class Link:
    """As much of a client's link as a read touches."""

    def __init__(self, room_bytes=1 << 20):
        self.clock = SimpleNamespace(now=0.0)
        self.upstream = Upstream()
        self.learned = []
        limits = SimpleNamespace(connection_response_memory_bytes=room_bytes)
        self.broker = SimpleNamespace(
            config=SimpleNamespace(limits=limits),
            now=lambda: self.clock.now,
            responses=ByteBudget(1 << 30),
            counters=Counters(),
            attempt=lambda action, doing, otherwise=None: action(),
            stores_on=lambda listener: False,
            disk_throttle=Pacer(),
            scheduler=Gate(),
            topics=SimpleNamespace(find=lambda _key: None),
        )
        self.catch_up = SimpleNamespace(usable=False)
        self.tended: list[object] = []
        self.listener = SimpleNamespace(tend=self.tended.append)
        self.preferred_replicas = False
        self.handlers = self  # rights and miss fetches
        self.authorization = SimpleNamespace(learn_answer=self._learn_answer)
        self.broker.shared_reads = SharedReads(self.broker, 100)
        self.reads = Reads(stand_in(self))

    def _learn_answer(self, response, asked_at):
        self.learned += [(said.topic, said.error_code, asked_at) for said in response.partitions]


class Waiter:
    """Counts how often it was woken."""

    def __init__(self):
        self.wakeups = 0

    def evaluate_again(self):
        self.wakeups += 1


def asked(partition=0, offset=100, epoch=-1, max_bytes=1000):
    return FetchPartition("t", partition, epoch, offset, -1, -1, max_bytes)


def missed(wanted, reason="cold", limit=500, partition=None):
    return PartitionStatus(wanted, partition, ReadState.MISS, reason, limit)


def begin(link, *wanted, isolation_level=0, version=VERSION, waiter=None, **status):
    """Read the wanted partitions. `status`: arguments of `missed`."""
    asker = Asker(version, "c", 1 << 20, isolation_level)
    return link.reads.begin(asker, [missed(one, **status) for one in wanted], waiter or Waiter())


def find(link, wanted, isolation_level=0, limit=500, version=VERSION, partition=None):
    status = missed(wanted, limit=limit, partition=partition)
    return link.reads.find(status, isolation_level, version)


def answer(partition=0, records=RECORDS, high_watermark=500, error_code=0):
    views = (records,) if records else ()
    return FetchAnswer(
        "t", partition, error_code, high_watermark, high_watermark, 0, None, views, len(records)
    )


def test_arrived_read_wakes_and_awaits_its_fetch():
    link, waiter = Link(), Waiter()
    assert begin(link, asked(), waiter=waiter)
    assert link.tended == [link], "what no Fetch asks for again is dropped in time"
    (request, _), *_ = link.upstream.sent
    assert (request.max_wait_ms, request.session_id, request.session_epoch) == (0, 0, -1)
    link.upstream.answer(answer(), throttle_time_ms=7)
    read = find(link, asked())
    assert (read.stage, read.throttle_time_ms, waiter.wakeups) == (Stage.ARRIVED, 7, 1)
    assert bytes(read.records(1 << 20, False)) == RECORDS
    assert link.broker.responses.in_flight_bytes == len(RECORDS)
    assert link.learned == [("t", 0, 0.0)]
    link.reads.drop(read)
    assert find(link, asked()) is None
    assert link.broker.responses.in_flight_bytes == 0


def test_partitions_missed_together_are_asked_together():
    link = Link()
    assert begin(link, asked(0), asked(1), asked(2))
    assert len(link.upstream.sent) == 1
    link.upstream.answer(answer(0), answer(1), answer(2))
    assert [find(link, asked(p)).stage for p in range(3)] == [Stage.ARRIVED] * 3


@pytest.mark.parametrize(
    "other",
    [
        (asked(offset=101), 0),
        (asked(epoch=3), 0),
        (asked(), COMMITTED),
        (asked(), 0, 500, VERSION + 1),
    ],
    ids=["offset", "epoch", "isolation", "version"],
)
def test_changed_question_drops_the_read(other):
    link = Link()
    begin(link, asked())
    assert find(link, *other) is None
    link.upstream.answer(answer())
    assert len(link.reads) == 0
    assert link.broker.responses.in_flight_bytes == 0


def test_a_read_that_another_fetch_waits_for_is_left_alone():
    """Clients may send several Fetches of a partition at once."""
    link, waiter, later = Link(), Waiter(), Waiter()
    begin(link, asked(), waiter=waiter)
    for offset in (100, 200):
        assert link.reads.is_awaited(asked(offset=offset), later)
        assert not link.reads.is_awaited(asked(offset=offset), waiter)
        link.reads.drop_asked([asked(offset=offset)], later)
        link.reads.drop_asked([asked(offset=offset)])
    link.upstream.answer(answer())
    assert (waiter.wakeups, find(link, asked()).stage) == (1, Stage.ARRIVED)
    link.reads.leave(waiter)
    assert not link.reads.is_awaited(asked(), later)
    link.reads.drop_asked([asked()], later)
    assert len(link.reads) == 0


def test_another_size_is_the_same_question():
    link = Link()
    begin(link, asked(max_bytes=10))
    assert find(link, asked(max_bytes=20)) is not None


@pytest.mark.parametrize("kind", ["nothing", "lost", "at-the-end", "diverging", "another-leader"])
def test_response_beyond_records_fails_the_read(kind):
    link, waiter = Link(), Waiter()
    begin(link, asked(offset=500), waiter=waiter)
    if kind in ("diverging", "another-leader"):
        link.upstream.sent.pop()[1](more_than_an_error(kind))
    elif kind == "nothing":
        link.upstream.answer()
    elif kind == "lost":
        link.upstream.sent.pop()[1](None)
    else:
        link.upstream.answer(answer(records=b""))
    assert find(link, asked(offset=500)).stage is Stage.FAILED
    assert waiter.wakeups == 1


def more_than_an_error(kind):
    """A Fetch answer, version 12, that says where the logs part, or that another node leads."""
    module = load_payload_module(1, VERSION, EntityType.response)
    said = {
        "diverging": {"diverging_epoch": module.EpochEndOffset(epoch=3, end_offset=90)},
        "another-leader": {"current_leader": module.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)},
    }[kind]
    data = module.PartitionData(
        partition_index=0,
        error_code=oracle.ErrorCode(6 if kind == "another-leader" else 0),
        high_watermark=500,
        last_stable_offset=500,
        aborted_transactions=None,
        records=None,
        **said,
    )
    topic = module.FetchableTopicResponse(topic="t", partitions=(data,))
    body = module.FetchResponse(
        throttle_time=oracle.timedelta(),
        error_code=oracle.ErrorCode.none,
        session_id=0,
        responses=(topic,),
    )
    return oracle.response_frame(body, 0)


def test_error_reaches_only_the_waiting_fetch():
    link, waiter = Link(), Waiter()
    begin(link, asked(), waiter=waiter)
    link.upstream.answer(answer(error_code=29, records=b""))
    read = find(link, asked())
    assert (read.stage, read.has_error, read.held_bytes, waiter.wakeups) == (
        Stage.ARRIVED,
        True,
        0,
        1,
    )
    link.reads.leave(stand_in(waiter))
    assert find(link, asked()) is None
    begin(link, asked(), waiter=waiter)
    link.reads.leave(stand_in(waiter))
    link.upstream.answer(answer(error_code=29, records=b""))
    assert find(link, asked()) is None, "its Fetch had left"
    assert link.broker.responses.in_flight_bytes == 0


def test_empty_unknown_read_is_repeated_in_polls():
    link, waiter = Link(), Waiter()
    begin(link, asked(offset=500), waiter=waiter, limit=-1)
    (request, _), *_ = link.upstream.sent
    assert (request.max_wait_ms, request.min_bytes) == (0, 0)
    link.upstream.answer(answer(records=b""))
    read = find(link, asked(offset=500), limit=-1)
    assert (read.stage, read.said.high_watermark, read.holds_up) == (Stage.SAID, 500, False)
    link.reads.ask_again(read)
    (request, _), *_ = link.upstream.sent
    assert (request.max_wait_ms, request.min_bytes) == (POLL_MS, 1)
    assert (read.stage, read.holds_up) == (Stage.READING, False), "it is named meanwhile"
    link.upstream.answer(answer(records=b""))
    assert (read.stage, read.said.high_watermark, waiter.wakeups) == (Stage.SAID, 500, 2)
    link.reads.ask_again(read)
    link.upstream.answer(answer())
    assert (read.stage, bytes(read.records(1 << 20, True))) == (Stage.ARRIVED, RECORDS)


def test_read_becomes_an_ordinary_one_once_known():
    link = Link()
    begin(link, asked(offset=500), limit=-1)
    link.upstream.answer(answer(records=b""))
    assert find(link, asked(offset=500)) is None


def test_read_without_room_is_begun_again():
    link = Link()
    begin(link, asked(0), asked(1))
    link.upstream.answer(answer(0), answer(1, records=b"", high_watermark=500))
    assert find(link, asked(0)).stage is Stage.ARRIVED
    assert find(link, asked(1)) is None


def test_reads_per_connection_are_limited_in_bytes():
    link = Link(room_bytes=3000)
    assert begin(link, asked(0), asked(1))
    assert not begin(link, asked(2), asked(3))
    assert begin(link, asked(2))
    assert not begin(link, asked(3))
    assert len(link.reads) == 3


def test_unclaimed_read_is_dropped():
    link = Link()
    begin(link, asked(0), asked(1))
    link.upstream.answer(answer(0), answer(1))
    link.clock.now = KEPT_S
    assert find(link, asked(1)) is not None
    link.clock.now = KEPT_S + 0.1
    link.reads.drop_old(link.clock.now)
    assert find(link, asked(0)) is None
    assert find(link, asked(1)) is not None


def test_a_closed_connection_gives_everything_back():
    link = Link()
    begin(link, asked(0), asked(1))
    link.upstream.answer(answer(0), answer(1))
    link.reads.close()
    assert (len(link.reads), link.broker.responses.in_flight_bytes) == (0, 0)


def test_delayed_read_starts_once_granted():
    link, waiter = Link(), Waiter()
    link.broker.disk_throttle.holds = True
    assert begin(link, asked(), waiter=waiter)
    assert link.upstream.sent == []
    assert find(link, asked()).stage is Stage.DELAYED
    link.broker.disk_throttle.release()
    link.upstream.answer(answer())
    assert find(link, asked()).stage is Stage.ARRIVED
    assert link.broker.disk_throttle.finished == [len(RECORDS)]
    assert waiter.wakeups == 1


def test_dropped_delayed_read_gives_its_ticket_back():
    link = Link()
    link.broker.disk_throttle.holds = True
    begin(link, asked())
    assert find(link, asked(offset=200)) is None
    assert len(link.broker.disk_throttle.cancelled) == 1


def test_dropped_read_in_flight_is_told_the_throttle():
    link = Link()
    begin(link, asked())
    link.reads.close()
    link.upstream.answer(answer())
    assert link.broker.disk_throttle.finished == [len(RECORDS)]
    assert link.broker.disk_throttle.cancelled == []


def test_throttle_limit_leaves_the_read_to_retries():
    link = Link()
    link.broker.disk_throttle.refuses = True
    assert begin(link, asked())
    assert find(link, asked()) is None
    link.broker.disk_throttle.refuses = False
    assert begin(link, asked())
    assert find(link, asked()).stage is Stage.READING


def test_refused_read_refuses_its_whole_fetch():
    link, waiter = Link(), Waiter()
    link.broker.scheduler.refuses = True
    assert begin(link, asked(), waiter=waiter)
    assert link.upstream.sent == []
    assert find(link, asked()).stage is Stage.FAILED
    assert waiter.wakeups == 1
    assert link.broker.disk_throttle.finished == [0]


def test_lost_client_returns_a_granted_place():
    link = Link()
    link.broker.scheduler.holds = True
    begin(link, asked(0))
    assert find(link, asked(0, offset=200)) is None  # dropped, and still in line
    begin(link, asked(1))
    link.reads.close()
    assert link.broker.disk_throttle.finished == [0, 0]


@pytest.mark.parametrize("frame_comes", [True, False])
def test_answered_or_lost_read_leaves_its_queue(frame_comes):
    link = Link()
    begin(link, asked())
    assert link.broker.scheduler.open == 1
    link.upstream.answer(answer()) if frame_comes else link.upstream.sent.pop()[1](None)
    assert link.broker.scheduler.open == 0
