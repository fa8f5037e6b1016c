"""A Fetch served from memory leaves at once, is counted once, and shows the log's records."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockcache.sending import Sender
from protocol import api, fetch
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.fetch import handler
from proxy.fetch.record import FetchRecord
from proxy.fetch.response import COPIED_BYTES
from proxy.fetch.sessions.context import FINAL_EPOCH
from proxy.net.send_buffer import PIECE_BYTES
from tests.kit.cache_batches import read
from tests.kit.examples import examples
from tests.proxy.cached_partition import END, World, build_fetch
from tests.proxy.followed_partition import TOPIC_ID

VERSIONS = (4, 7, 12, 13, 16)
ROOM_BYTES = 1 << 20
LARGE = 20
"""The first offset of the batches of 25,000 bytes."""
SIZES = (100, 1_000, COPIED_BYTES, COPIED_BYTES + 1, 30_000)


class Client:
    """The client of a world; it keeps a session."""

    def __init__(self, **how):
        self.world = World(**how)
        self.session = (0, 0)
        self._correlation_id = self._heard = 0
        self._version = None

    def fetch(self, offset, in_session=False, **asked):
        """Whether memory has answered: no place waits for the response."""
        self._correlation_id += 1
        session = self.session if in_session else asked.pop("session", (0, FINAL_EPOCH))
        frame = build_fetch(offset, correlation_id=self._correlation_id, session=session, **asked)
        places = len(self.world.link.replies)
        self._version = asked.get("version", 13) if in_session else None
        self._heard = len(self.world.sent)
        self.world.receive(frame)
        self.hear()
        return len(self.world.link.replies) == places

    def hear(self):
        """The answer to what was asked last, if it was in the session and is there."""
        world = self.world
        if self._version is not None and len(world.sent) > self._heard:
            said = fetch.scan_response(b"".join(world.sent[self._heard :]), self._version)
            self.session = (0, 0) if said.error_code else (said.session_id, self.session[1] + 1)
            self._version = None

    def said(self, version=13):
        """The one partition of the last response, and its records."""
        frame = b"".join(self.world.sent[self._heard :])
        (one,) = fetch.scan_response(frame, version).partitions
        return one, frame[one.start : one.end]

    def change(self, what, value):
        self.world.change(what, value)
        self.hear()


@pytest.fixture(params=["in the clear", "encrypted"])
def client(request):
    return Client(room_bytes=ROOM_BYTES if request.param == "in the clear" else 0)


def stored(world, offset):
    """What the log has from there on, by a lookup."""
    return read(world.cache, world.partition.slot, offset)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("in_session", [False, True])
async def test_reading_client_is_answered_at_once(client, version, isolation_level, in_session):
    world, asked = client.world, {"version": version, "isolation_level": isolation_level}
    for offset in (0, 3, 9, 12, LARGE, LARGE + 1, 0):
        assert client.fetch(offset, in_session, **asked)
        one, records = client.said(version)
        assert records == stored(world, offset)
        assert one.aborted == ([] if isolation_level else None)
        assert (one.error_code, one.high_watermark, one.last_stable_offset) == (0, END, END)
        assert one.log_start_offset == (0 if version >= 5 else -1)
    assert world.cache.statistics().pinned_bytes == 0
    assert client.fetch(END, in_session, **asked) is False, "it waits at the tail"
    assert world.leave()
    client.hear()
    assert client.fetch(LARGE, in_session, **asked) is True
    assert [line.bytes for line in world.lines] == [
        *(len(stored(world, offset)) for offset in (0, 3, 9, 12, LARGE, LARGE + 1, 0)),
        len(stored(world, LARGE)),
    ]
    # a session names no partition without news
    assert sum(world.log.count_empty().values()) == (not in_session or version < 7)
    assert {(line.result, line.reason) for line in world.lines} == {("hit", "")}


def record_count(monkeypatch):
    """The Fetches for which an object was made."""
    made = []
    real = FetchRecord

    def make(asked):
        made.append(asked)
        return real(asked)

    monkeypatch.setattr(handler, "FetchRecord", make)
    return made


async def test_only_a_delayed_fetch_makes_an_object(client, monkeypatch):
    made = record_count(monkeypatch)
    for offset in (0, 3, LARGE):
        client.fetch(offset)
    client.fetch(LARGE, in_session=True)
    client.fetch(LARGE, in_session=True)
    assert made == []
    assert not client.fetch(END)
    assert len(made) == 1


KEEPS_FROM_MEMORY = [
    ("lease", 0.0),
    ("frozen", True),
    ("epoch", -1),
    ("log_start_offset", LARGE + 1),
    ("high_watermark", LARGE),
    ("high_watermark", 0),
    ("old_format", True),
    ("truncate", LARGE),
    ("truncate", 0),
    ("forget", None),
    ("later", 60.0),
]
IS_TOLD = [
    ("high_watermark", LARGE + 1),
    ("last_stable_offset", LARGE),
    ("log_start_offset", LARGE),
    ("tail", LARGE),
    ("zstd", True),
    ("aborted", LARGE),
    ("compacted", True),
    ("client", "another"),
    ("preferred", True),
    ("quotas", True),
    ("limit", 1),
]


@pytest.mark.parametrize(("what", "value"), KEEPS_FROM_MEMORY)
@pytest.mark.parametrize("in_session", [False, True])
async def test_unreadable_records_are_not_served(what, value, in_session):
    client = Client(room_bytes=ROOM_BYTES)
    for _ in range(3):
        assert client.fetch(LARGE, in_session)
    client.change(what, value)
    sent, lines = len(client.world.sent), len(client.world.lines)
    assert not client.fetch(LARGE, in_session)
    assert (len(client.world.sent), len(client.world.lines)) == (sent, lines)
    assert client.world.cache.statistics().pins == 0


@pytest.mark.parametrize(("what", "value"), IS_TOLD)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("in_session", [False, True])
async def test_changed_offsets_are_told(what, value, isolation_level, in_session):
    client = Client(room_bytes=ROOM_BYTES)
    world, asked = client.world, {"isolation_level": isolation_level, "in_session": in_session}
    for _ in range(2):
        client.fetch(LARGE, **asked)
    client.change(what, value)
    went = client.fetch(LARGE, **asked)
    if what == "last_stable_offset" and isolation_level == 1 and not went:
        return
    assert went
    one, records = client.said()
    state = world.partition.leader_state
    assert bool(one.aborted) == (what == "aborted" and isolation_level == 1)
    assert (one.high_watermark, one.log_start_offset) == (
        state.high_watermark,
        state.log_start_offset,
    )
    assert one.last_stable_offset == world.partition.last_stable_offset()
    assert records == stored(world, LARGE)[: len(records)] != b""
    assert len(records) == (25_000 if what == "high_watermark" else 250_000)


@pytest.mark.parametrize(("over", "pauses"), [(0, 1), (1, 0)])
async def test_client_pauses_at_the_byte_budget(client, over, pauses):
    client.change("limit", len(build_fetch(LARGE)) + over)
    assert client.fetch(LARGE)
    world = client.world
    assert world.broker.requests.pauses == pauses
    assert not world.link.framed.reading_held and world.broker.requests.in_flight_bytes == 0


async def test_response_behind_a_delayed_fetch_leaves_later(client):
    assert not client.fetch(END)
    assert not client.fetch(LARGE), "it is complete, but has a place behind the first"
    assert client.world.sent == [] and len(client.world.link.replies) == 2
    assert client.world.leave()
    ids = [frame[4:8] for frame in split(b"".join(client.world.sent))]
    assert ids == [(1).to_bytes(4, "big"), (2).to_bytes(4, "big")]
    assert client.world.cache.statistics().pins == 0


def split(stream):
    """Its frames."""
    frames = []
    while stream:
        size = 4 + int.from_bytes(stream[:4], "big")
        frames.append(stream[:size])
        stream = stream[size:]
    return frames


async def test_unwanted_miss_fetch_is_dropped(client):
    client.fetch(LARGE)
    dropped: list[FetchPartition] = []
    client.world.link.handlers.reads = SimpleNamespace(
        by_key={("x", 0): None}, drop_asked=dropped.extend
    )
    assert client.fetch(LARGE)
    assert [(one.topic, one.partition) for one in dropped] == [(TOPIC_ID, 0)]


@pytest.mark.parametrize("session", [(5, 1), (0, 3)])
async def test_a_session_that_is_not_there_is_told(client, session):
    for _ in range(2):
        client.session = session
        assert not client.fetch(LARGE, in_session=True) or client.session == (0, 0)
        said = fetch.scan_response(client.world.sent[-1], 13)
        assert (said.error_code, said.partitions) == (70, [])


async def test_a_session_is_its_connections_and_its_epochs(client):
    for _ in range(3):
        assert client.fetch(LARGE, in_session=True)
    number, epoch = client.session
    client.session = number, epoch - 1
    client.fetch(LARGE, in_session=True)
    assert client.session == (0, 0), "a duplicate is told its error"
    client.session = number, epoch
    assert client.fetch(LARGE, in_session=True)
    client.world.other.framed.data_received(build_fetch(LARGE, session=client.session))
    client.session = number, client.session[1] + 1
    assert client.fetch(LARGE, in_session=True)
    assert client.said()[1] == stored(client.world, LARGE)


async def test_final_epoch_is_answered_without_a_session(client):
    client.fetch(LARGE, in_session=True)
    assert client.fetch(LARGE, session=(client.session[0], FINAL_EPOCH))
    assert fetch.scan_response(client.world.sent[-1], 13).session_id == 0
    assert client.world.broker.sessions.statistics().sessions == 0


@pytest.mark.parametrize("min_bytes", [0, 1, 25_000, 25_001, 250_000, 250_001])
@pytest.mark.parametrize("partition_max_bytes", [1, 25_000, 1 << 20])
@pytest.mark.parametrize("max_wait_ms", [0, 500])
async def test_enough_is_what_a_broker_counts(min_bytes, partition_max_bytes, max_wait_ms):
    """The first batch counts whatever its size, a cut one with the part that fits."""
    client = Client(room_bytes=ROOM_BYTES)
    most = min(max(25_000, partition_max_bytes), 250_000, 30_000)
    is_enough = max_wait_ms == 0 or min(min_bytes, 30_000) <= most
    for _ in range(2):
        went = client.fetch(
            LARGE,
            min_bytes=min_bytes,
            partition_max_bytes=partition_max_bytes,
            max_wait_ms=max_wait_ms,
            max_bytes=30_000,
        )
        assert went is is_enough
        assert client.world.leave()
        assert len(client.said()[1]) == 25_000


async def test_unsent_response_stays_pinned_and_uncounted(
    client,
):
    world, lines = client.world, 1
    client.fetch(LARGE)
    client.change("full", True)
    assert client.fetch(LARGE)
    assert world.cache.statistics().pinned_bytes > 0 and len(world.lines) == lines
    client.change("later", 2.5)
    assert client.fetch(LARGE), "it waits in the transport, behind the first"
    client.change("full", False)
    assert world.cache.statistics().pinned_bytes == 0 and len(world.lines) == lines + 2
    assert world.lines[lines].response.total_ms == 2500
    assert client.fetch(LARGE)


@pytest.mark.parametrize("offset", [0, LARGE])
async def test_undelivered_response_is_counted_and_released(client, offset):
    client.change("full", True)
    assert client.fetch(offset)
    client.world.end()
    assert client.world.broker.counters.fetch.undelivered_partitions == 1
    assert client.world.cache.statistics().pinned_bytes == 0
    assert client.world.broker.responses.in_flight_bytes == 0


@pytest.fixture
def slow():
    """A world whose socket has room for a part of an answer; the rest waits in the transport."""
    world = World(verify_ratio=0.0, room_bytes=64 << 10)
    world.receive(build_fetch(LARGE))
    world.sent.clear()
    world.stick()
    return world


def read_traffic(world):
    traffic = world.broker.counters.traffic.responses_out[api.FETCH]
    return traffic.frames, traffic.size_bytes


async def test_partly_sent_response_is_counted_once(slow):
    (frames, size_bytes), lines = read_traffic(slow), len(slow.lines)
    slow.receive(build_fetch(LARGE, correlation_id=3))
    assert slow.cache.statistics().pins > 0 and len(slow.lines) == lines
    assert read_traffic(slow) == (frames, size_bytes)
    assert slow.link.framed.unsent_bytes > 0
    slow.change("full", False)
    by_transport, by_descriptor = slow.sent  # which is read last
    answer = by_descriptor + by_transport
    assert read_traffic(slow) == (frames + 1, size_bytes + len(answer))
    said = fetch.scan_response(answer, 13).partitions[0]
    assert answer[said.start : said.end] == stored(slow, LARGE)
    assert slow.cache.statistics().pins == 0 and len(slow.lines) == lines + 1
    assert slow.lines[-1].bytes == said.end - said.start and slow.link.framed.unsent_bytes == 0


async def test_partly_sent_lost_response_is_not_counted(slow):
    traffic, lines = read_traffic(slow), len(slow.lines)
    slow.receive(build_fetch(LARGE, correlation_id=3))
    slow.end()
    assert slow.broker.counters.fetch.undelivered_partitions == 1
    assert slow.cache.statistics().pins == 0
    assert (read_traffic(slow), len(slow.lines)) == (traffic, lines)


async def test_response_to_closed_client_is_left_to_transport(slow):
    slow.transport.theirs.close()
    slow.receive(build_fetch(LARGE, correlation_id=3))
    assert slow.link.framed.unsent_bytes > 0
    (answer,) = slow.transport._stream
    said = fetch.scan_response(answer, 13).partitions[0]
    assert said.end - said.start == 250_000, "the transport has all of it, and meets the error"
    slow.end()
    assert slow.cache.statistics().pins == 0


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
async def test_large_response_leaves_in_pinned_pieces(room_bytes, monkeypatch):
    monkeypatch.setattr(
        Sender, "send", None
    )  # not past the transport, where it could not be copied out
    client = Client(sizes=(150_000,), arena_bytes=64 << 20, room_bytes=room_bytes)
    world, asked = client.world, {"max_bytes": 4 << 20, "partition_max_bytes": 4 << 20}
    assert client.fetch(0, **asked) and sum(map(len, world.sent)) > PIECE_BYTES
    pieces = len(world.sent)
    client.change("full", True)
    assert client.fetch(0, **asked)
    world.cache.evict_to(0)
    world.transport.drain()
    client.change("full", False)
    assert b"".join(world.sent[pieces:])[8:] == b"".join(world.sent[:pieces])[8:]
    assert world.cache.statistics().pinned_bytes == 0


@pytest.mark.parametrize(("over", "is_copied"), [(0, True), (1, False)])
@pytest.mark.parametrize("before", ["nothing", "a delayed Fetch", "unsent bytes"])
async def test_few_bytes_are_copied_out(over, is_copied, before):
    client = Client(sizes=(COPIED_BYTES + over,), arena_bytes=16 << 20)
    if before == "a delayed Fetch":
        client.fetch(10)
    client.change("full", True)
    if before == "unsent bytes":
        client.fetch(0, partition_max_bytes=1)
    pinned = client.world.cache.statistics().pins
    client.fetch(1, partition_max_bytes=1)
    is_pinned = client.world.cache.statistics().pins > pinned
    assert is_pinned is not (is_copied and before == "nothing")
    charged = client.world.broker.responses.in_flight_bytes
    client.change("full", False)
    assert client.world.leave()
    assert client.world.cache.statistics().pins == 0
    assert client.world.broker.responses.in_flight_bytes == 0
    assert is_pinned or charged > COPIED_BYTES, "a copy that waits is charged"


async def test_unpinnable_response_is_charged(client):
    client.world.cache._a.pin_limit_bytes = 0
    client.change("full", True)
    assert client.fetch(10)
    assert client.world.broker.responses.in_flight_bytes > COPIED_BYTES
    client.change("full", False)
    assert client.world.broker.responses.in_flight_bytes == 0
    assert b"".join(client.world.sent).endswith(stored(client.world, 10) + bytes(3))


# -- many partitions -------------------------------------------------------------------------------------------


def build_many(offsets, correlation_id=1, session=(0, FINAL_EPOCH), **limits):
    """A Fetch of partitions 0, 1, ... from these offsets; None leaves a partition out."""
    limits = {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
    } | limits
    asked = [
        FetchPartition(TOPIC_ID, index, -1, offset, -1, -1, 1 << 20)
        for index, offset in enumerate(offsets)
        if offset is not None
    ]
    return build_request(
        13,
        correlation_id,
        "c",
        session_id=session[0],
        session_epoch=session[1],
        partitions=asked,
        **limits,
    )


@pytest.fixture
def many(client):
    """Four partitions; the last two have ten batches of 1,000 bytes."""
    world = client.world
    for index in range(1, 4):
        world.store((1_000, 6_000, 25_000) if index == 1 else (1_000,), index)
    return world


def heard(world, before=0):
    """The last response, and its records by partition."""
    frame = b"".join(world.sent[before:])
    said = fetch.scan_response(frame, 13)
    return said, {one.partition: frame[one.start : one.end] for one in said.partitions}


def slot(world, index):
    return world.broker.partitions.find(world.topic, index).slot


async def test_many_partitions_are_answered_each_with_its_records(many):
    for number, offsets in enumerate([(0, 0, 0, 0), (LARGE, 3, 4, 9), (1, END, 0, 10)]):
        before = len(many.sent)
        many.receive(build_many(offsets, number))
        _, records = heard(many, before)
        for index, offset in enumerate(offsets):
            assert records[index] == (read(many.cache, slot(many, index), offset) or b"")
    assert many.cache.statistics().pins == 0
    assert len(many.lines) + sum(many.log.count_empty().values()) == 12
    assert len(many.link.replies) == 0


async def test_byte_limit_covers_all_partitions_in_order(many):
    """KIP-74: whole batches, the first of the response whatever its size; a cut partition takes all that is left."""
    many.receive(build_many((LARGE, 0, 0, 0), max_bytes=10_000))
    assert [len(one) for one in heard(many)[1].values()] == [25_000, 0, 0, 0]
    before = len(many.sent)
    many.receive(build_many((9, 0, 0, 0), max_bytes=10_000))
    assert [len(one) for one in heard(many, before)[1].values()] == [7_000, 0, 0, 0]
    before = len(many.sent)
    many.receive(build_many((None, None, 8, 0), max_bytes=4_500))
    assert [len(one) for one in heard(many, before)[1].values()] == [2_000, 2_000]


@pytest.mark.parametrize("least", [320_001, 640_001])
async def test_the_least_bytes_are_counted_over_all_partitions(many, least):
    many.receive(build_many((0, 0), min_bytes=least))
    assert len(many.link.replies) == (least > 640_000)


async def test_a_session_names_those_with_news(many):
    many.receive(build_many((0, 0, 0, 0), 1, (0, 0)))
    said, records = heard(many)
    assert list(records) == [0, 1, 2, 3]
    number = said.session_id
    before = len(many.sent)
    many.receive(build_many((END, END, 10, 10), 2, (number, 1)))
    assert len(many.sent) == before, "all are at their ends"
    many.arrive(1_000)
    await asyncio.sleep(0)
    said, records = heard(many, before)
    assert list(records) == [0] and said.session_id == number
    before = len(many.sent)
    many.receive(build_many((END + 1, None, 5, None), 3, (number, 2)))
    said, records = heard(many, before)
    assert [(index, len(one)) for index, one in records.items()] == [(2, 5_000)]
    order = [
        one.partition
        for one in many.broker.sessions.find(number, many.link.session_owner).partitions.in_order()
    ]
    assert order == [1, 3, 0, 2], "those with records moved to the end"


@pytest.mark.parametrize("state", ["old_format", "unauthorized"])
async def test_partition_left_to_the_broker_delays_all(many, state):
    if state == "old_format":
        many.broker.partitions.find(many.topic, 2).old_format = True
    else:
        many.link.handlers.authorization.rights.until.clear()
    many.receive(build_many((0, 0, 0, 0)))
    assert many.sent == [] and len(many.link.replies) == 1
    assert many.cache.statistics().pins == 0


async def test_unsent_rest_of_many_partitions_is_sent():
    world = World(verify_ratio=0.0, room_bytes=64 << 10)
    world.store((25_000,), 1)
    world.stick()
    world.receive(build_many((LARGE, 0)))
    assert world.cache.statistics().pins > 0 and world.lines == []
    world.change("full", False)
    by_transport, by_descriptor = world.sent
    frame = by_descriptor + by_transport
    for one in fetch.scan_response(frame, 13).partitions:
        offset = 0 if one.partition else LARGE
        assert frame[one.start : one.end] == read(world.cache, slot(world, one.partition), offset)
    assert world.cache.statistics().pins == 0 and len(world.lines) == 2


# -- woken at the tail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize(
    ("version", "isolation_level", "size"),
    [
        *((version, level, 1_000) for version in VERSIONS for level in (0, 1)),
        *((13, 0, size) for size in SIZES),
    ],
)
async def test_waiting_fetch_gets_the_records(client, version, isolation_level, in_session, size):
    world, asked = client.world, {"version": version, "isolation_level": isolation_level}
    if in_session:
        client.fetch(0, True, **asked)
    for offset in range(END, END + 3):
        assert not client.fetch(offset, in_session, **asked)
        world.arrive(size)
        await asyncio.sleep(0)
        assert client.said(version)[1] == stored(world, offset)
        client.hear()
    assert world.cache.statistics().pinned_bytes == 0
    assert world.broker.counters.fetch.wait_s.count == 3


async def test_waiting_fetch_gets_aborted_transactions(client):
    for offset, aborted in ((END, None), (END + 1, END + 1)):
        assert not client.fetch(offset, isolation_level=1)
        client.world.arrive(1_000, aborted)
    assert client.said()[0].aborted == [(9, END - 1)]


async def test_two_that_waited_leave_in_their_order(client):
    for offset in (END, END):
        assert not client.fetch(offset)
    client.world.arrive(1_000)
    ids = [int.from_bytes(frame[4:8], "big") for frame in split(b"".join(client.world.sent))]
    assert ids == [1, 2] and client.world.link.replies.oldest is None


@pytest.mark.parametrize(
    ("asked", "what", "value", "leaves"),
    [
        ({"min_bytes": 2}, None, None, True),
        ({"min_bytes": 1_001}, None, None, False),
        ({}, "epoch", 6, False),
        ({}, "old_format", True, False),
        ({}, "full", True, True),
    ],
)
async def test_changes_during_the_wait_decide(client, asked, what, value, leaves):
    world = client.world
    assert not client.fetch(END, **asked)
    if what:
        client.change(what, value)
    world.arrive(1_000)
    assert (not world.link.replies.places) is leaves
    client.change("full", False)
    if leaves:
        assert client.said()[1] == stored(world, END)
    assert world.cache.statistics().pins == 0


# -- whatever is asked, and changes -----------------------------------------------------------------------------

SHAPES = st.fixed_dictionaries(
    {
        "version": st.sampled_from(VERSIONS),
        "in_session": st.booleans(),
        "isolation_level": st.integers(0, 1),
        "min_bytes": st.sampled_from((1, 1, 1, 0, 40_000)),
        "max_wait_ms": st.sampled_from((500, 500, 0)),
        "max_bytes": st.sampled_from((1 << 20, 1 << 20, 30_000, 0)),
        "partition_max_bytes": st.sampled_from((1 << 20, 1 << 20, 9_000, 0)),
        "epoch": st.sampled_from((-1, -1, -1, 5, 5, 4)),
        "last_epoch": st.sampled_from((-1, -1, -1, -1, 5, 4)),
        "index": st.sampled_from((0,) * 9 + (1,)),
        "rack_id": st.sampled_from(("", "", "r")),
    }
)
OFFSETS = st.sampled_from((0, 1, 5, 9, 10, 12, 15, 17, 19, 20, 21, 28, 29, 30, 30, 31))
STEPS = st.one_of(
    *[st.tuples(st.just("fetch"), OFFSETS)] * 6,
    st.tuples(st.just("arrive"), st.sampled_from(SIZES)),
    st.tuples(st.just("leave"), st.none()),
    st.tuples(
        st.sampled_from(
            (
                "high_watermark",
                "last_stable_offset",
                "log_start_offset",
                "tail",
                "truncate",
                "aborted",
            )
        ),
        st.integers(0, END + 1),
    ),
    st.tuples(
        st.sampled_from(("frozen", "compacted", "zstd", "old_format", "preferred")), st.booleans()
    ),
    st.tuples(st.sampled_from(("epoch", "led_epoch")), st.integers(4, 6)),
    st.tuples(st.just("later"), st.sampled_from((0.5, 30.0, 50.0))),
    st.tuples(st.just("limit"), st.sampled_from((10, 1 << 30))),
    st.tuples(st.just("client"), st.sampled_from((None, "d"))),
    st.tuples(st.just("forget"), st.none()),
    st.tuples(st.just("shape"), SHAPES),
)


class Step:
    """A script, played by one client; `forgets`: it plans each response as if it were the connection's first."""

    def __init__(self, shape, forgets, **how):
        self.client, self.shape, self.forgets = Client(**how), shape, forgets

    def play(self, what, value):
        """Whether the script goes on: nothing is left to the broker."""
        client, world = self.client, self.client.world
        is_waiting = bool(world.link.replies.places)
        if what == "shape":
            self.shape = value
        elif what == "fetch" and not is_waiting:
            if self.forgets:
                world.link.handlers.kept.keep(None)
            before = len(world.sent)
            if client.fetch(value, **self.shape) and self.shape["index"] == 0:
                self.judge(b"".join(world.sent[before:]), value)
        elif what == "arrive":
            if world.partition.is_followed and world.partition.tail == END:
                world.arrive(value)
        elif what == "leave":
            return world.leave()
        elif what != "fetch":
            client.change(what, value)
        client.hear()
        return True

    def judge(self, frame, offset):
        """Records are the log's, whole batches from the offset on, below what the client may read."""
        world, version = self.client.world, self.shape["version"]
        said = fetch.scan_response(frame, version)
        for one in said.partitions if not said.error_code else ():
            records = frame[one.start : one.end]
            if records:
                assert one.error_code == 0
                assert stored(world, offset).startswith(records)
                assert one.high_watermark == world.partition.leader_state.high_watermark
                assert one.last_stable_offset == world.partition.last_stable_offset()
                most = min(self.shape["max_bytes"], self.shape["partition_max_bytes"])
                # the first batch leaves whole, whatever its size (KIP-74)
                assert len(records) <= max(most, *SIZES, 25_000)

    def state(self):
        world = self.client.world
        state = world.state()
        return state | {"sent": b"".join(world.sent), "frames": world.link.framed.frames}


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
@given(SHAPES, st.lists(STEPS, min_size=5, max_size=14))
@settings(max_examples=examples(60), deadline=None)
def test_earlier_requests_and_sockets_change_no_response(room_bytes, shape, script):
    async def play():
        steps = [Step(shape, False, room_bytes=room_bytes), Step(shape, True)]
        for what, value in [("fetch", 0), ("fetch", 1), *script, ("leave", None)]:
            going = [one.play(what, value) for one in steps]
            assert steps[0].state() == steps[1].state()
            if going != [True, True]:
                break
        for one in steps:
            one.client.world.end()
        assert steps[0].state() == steps[1].state()
        assert steps[0].client.world.cache.statistics().pins == 0

    asyncio.run(play())
