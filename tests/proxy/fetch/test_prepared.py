"""The short way of a cached Fetch: who goes it, and that nothing tells which way an answer went."""

import asyncio
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockcache.sending import Sender
from protocol import api, fetch
from proxy.fetch import prepared
from proxy.fetch.response import COPIED_BYTES
from proxy.net.send_buffer import PIECE_BYTES
from tests.kit.cache_batches import read
from tests.kit.examples import examples
from tests.proxy.hitting import END, World, build_fetch

VERSIONS = (7, 11, 12, 13, 16)
ROOM_BYTES = 1 << 20
LARGE = 20
"""The first offset of the batches of 25,000 bytes."""


class Twins:
    """The same script on both ways; after each step all that can be seen is the same. Their client keeps a session."""

    def __init__(self, **how):
        self.short, self.general = self.worlds = World(True, **how), World(False, **how)
        self._correlation_id = 0
        self.session = (0, 0)
        self._heard, self._version = 0, None

    def compare(self):
        assert self.short.state() == self.general.state()

    def fetch(self, offset, in_session=False, **asked):
        """Whether it went the short way."""
        self._correlation_id += 1
        session = self.session if in_session else (0, -1)
        frame = build_fetch(offset, correlation_id=self._correlation_id, session=session, **asked)
        before, self._version = self.short.short, asked.get("version", 13) if in_session else None
        self._heard = len(self.short.sent)
        for world in self.worlds:
            world.receive(frame)
        self.compare()
        self._hear()
        assert not self.general.short
        return self.short.short > before

    def _hear(self):
        """The answer to what was asked last, if it was in the session and is there."""
        if self._version is not None and len(self.short.sent) > self._heard:
            said = fetch.scan_response(self.short.sent[-1], self._version)
            self.session = (0, 0) if said.error_code else (said.session_id, self.session[1] + 1)
            self._version = None

    def each(self, act):
        results = [act(world) for world in self.worlds]
        assert results[0] == results[1]
        self.compare()
        self._hear()
        return results[0]

    def change(self, what, value):
        self.each(lambda world: world.change(what, value))


@pytest.fixture(params=["in the clear", "encrypted"])
def twins(request):
    return Twins(room_bytes=ROOM_BYTES if request.param == "in the clear" else 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("in_session", [False, True])
async def test_a_client_that_reads_on_goes_the_short_way(
    twins, version, isolation_level, in_session
):
    asked = {"version": version, "isolation_level": isolation_level, "in_session": in_session}
    went = [twins.fetch(offset, **asked) for offset in (0, 3, 9, 12, LARGE, LARGE + 1, 0)]
    assert went == [False, not in_session, True, True, True, True, True], (
        "the first of a kind is read"
    )
    said = fetch.scan_response(twins.short.sent[-1], version).partitions[0]
    whole = read(twins.short.cache, twins.short.partition.slot, 0)
    assert twins.short.sent[-1][said.start : said.end] == whole
    assert said.aborted == ([] if isolation_level else None)
    assert twins.short.cache.statistics().pinned_bytes == 0
    assert twins.fetch(END, **asked) is False, "it waits at the tail"
    assert twins.each(World.leave)
    assert twins.fetch(LARGE, **asked) is True


async def test_at_the_tail_nothing_more_is_asked(twins, monkeypatch):
    assert not twins.fetch(0) and twins.fetch(3)
    monkeypatch.setattr(prepared, "_stands_alone", None)
    assert not twins.fetch(END)


STANDS_AGAINST = [
    ("lease_until", 0.0),
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
    ("preferred", True),
    ("quotas", True),
    ("limit", 1),
    ("full", True),
]
STANDS_NOT = [
    ("high_watermark", LARGE + 1),
    ("last_stable_offset", LARGE),
    ("log_start_offset", LARGE),
    ("tail", LARGE),
    ("zstd", True),
    ("aborted", LARGE),
    ("compacted", True),
    ("client", "another"),
]


@pytest.mark.parametrize(("what", "value"), STANDS_AGAINST)
@pytest.mark.parametrize("in_session", [False, True])
async def test_what_stands_against_it_is_seen_and_nothing_has_happened(
    twins, what, value, in_session, monkeypatch
):
    for _ in range(3):
        twins.fetch(LARGE, in_session)
    twins.change(what, value)
    if what == "full":
        assert twins.fetch(LARGE, in_session), "which the kernel does not take"
    states = []
    answer = prepared.answer_prepared

    def note(link, frame):
        before = copy.deepcopy(twins.short.state())
        has_gone = answer(link, frame)
        states.append((before, copy.deepcopy(twins.short.state())))
        return has_gone

    monkeypatch.setattr("tests.proxy.hitting.answer_prepared", note)
    assert not twins.fetch(LARGE, in_session)
    assert states[0][0] == states[0][1]


@pytest.mark.parametrize(("what", "value"), STANDS_NOT)
@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_what_changes_but_does_not_stand_against_it_is_told(
    twins, what, value, isolation_level
):
    for _ in range(2):
        twins.fetch(LARGE, isolation_level=isolation_level)
    twins.change(what, value)
    assert twins.fetch(LARGE, isolation_level=isolation_level)
    said = fetch.scan_response(twins.short.sent[-1], 13).partitions[0]
    assert bool(said.aborted) == (what == "aborted" and isolation_level == 1)


@pytest.mark.parametrize(("over", "goes"), [(0, False), (1, True)])
async def test_at_the_process_bound_it_is_held_as_any_other(twins, over, goes):
    twins.fetch(LARGE)
    twins.change("limit", len(build_fetch(LARGE)) + over)
    assert twins.fetch(LARGE) is goes
    assert twins.short.broker.requests.pauses == (not goes)


async def test_who_is_held_or_reads_beside_or_has_a_request_before_goes_the_general_way(twins):
    twins.fetch(LARGE)
    twins.each(lambda world: world.link.wire.hold_reading("a test"))
    assert not twins.fetch(LARGE)
    twins.each(lambda world: world.link.wire.release_reading("a test"))
    assert twins.fetch(LARGE)
    twins.each(lambda world: world.link.reads.by_key.update({("x", 0): None}))
    assert not twins.short._decide(twins.short.link, build_fetch(LARGE))
    twins.each(lambda world: world.link.reads.by_key.clear())
    assert not twins.fetch(END) and not twins.fetch(LARGE), "a place behind a Fetch that waits"
    assert len(twins.short.link.replies) == 2


@pytest.mark.parametrize("asked", [{"session": (0, 0)}, {"session": (5, 1)}, {"session": (0, 3)}])
async def test_a_session_that_begins_or_is_not_there_is_for_the_general_way(twins, asked):
    twins.session = asked["session"]
    twins.fetch(LARGE, in_session=False)
    for _ in range(2):
        twins.session = asked["session"]
        assert not twins.fetch(LARGE, in_session=True)


async def test_a_session_is_taken_up_only_where_it_stands_and_by_whom_it_is_known(twins):
    for _ in range(3):
        twins.fetch(LARGE, in_session=True)
    session_id, epoch = twins.session
    twins.session = session_id, epoch - 1
    assert not twins.fetch(LARGE, in_session=True), "a duplicate is told its error"
    twins.session = session_id, epoch
    assert twins.fetch(LARGE, in_session=True)
    frame = build_fetch(LARGE, session=twins.session)
    twins.each(lambda world: world.other.wire.data_received(frame))
    twins.session = session_id, twins.session[1] + 1
    assert not twins.fetch(LARGE, in_session=True), "it was another connection's"
    assert twins.fetch(LARGE, in_session=True)


@pytest.mark.parametrize("min_bytes", [0, 1, 25_000, 25_001, 250_000, 250_001])
@pytest.mark.parametrize("partition_max_bytes", [1, 25_000, 1 << 20])
@pytest.mark.parametrize("max_wait_ms", [0, 500])
async def test_enough_is_what_it_is_on_the_general_way(
    twins, min_bytes, partition_max_bytes, max_wait_ms
):
    is_enough = max_wait_ms == 0 or min_bytes <= 1 or min_bytes <= min(25_000, partition_max_bytes)
    for goes in (False, is_enough):
        went = twins.fetch(
            LARGE,
            min_bytes=min_bytes,
            partition_max_bytes=partition_max_bytes,
            max_wait_ms=max_wait_ms,
            max_bytes=30_000,
        )
        assert went is goes
        assert twins.each(World.leave)


async def test_what_the_kernel_does_not_take_is_counted_when_it_has_and_stays_pinned_until_then(
    twins,
):
    twins.fetch(LARGE)
    lines = len(twins.short.lines)
    twins.change("full", True)
    assert twins.fetch(LARGE)
    assert twins.short.cache.statistics().pinned_bytes > 0 and len(twins.short.lines) == lines
    twins.change("later", 2.5)
    assert not twins.fetch(LARGE), "one is before it"
    twins.change("full", False)
    assert twins.short.cache.statistics().pinned_bytes == 0 and len(twins.short.lines) == lines + 2
    assert twins.short.lines[lines].total_ms == 2500
    assert twins.fetch(LARGE)


@pytest.mark.parametrize("offset", [0, LARGE])
async def test_what_never_leaves_is_counted_as_such_and_let_go(twins, offset):
    twins.fetch(offset)
    twins.change("full", True)
    assert twins.fetch(offset)
    twins.each(World.end)
    assert twins.short.broker.counters.undelivered_partitions == 1
    assert twins.short.cache.statistics().pinned_bytes == 0


@pytest.fixture
def slow():
    """A world whose socket has room for a part of an answer; the rest waits in the transport."""
    world = World(True, verify_ratio=0.0, room_bytes=64 << 10)
    for correlation_id in (1, 2):
        world.receive(build_fetch(LARGE, correlation_id=correlation_id))
    assert world.short == 1
    world.sent.clear()
    world.transport.stick()
    return world


def read_hop(world):
    traffic = world.broker.counters.responses_out[api.FETCH]
    return traffic.frames, traffic.size_bytes


async def test_what_the_kernel_takes_a_part_of_is_sent_on_and_counted_once_it_has_left(slow):
    (frames, size_bytes), lines = read_hop(slow), len(slow.lines)
    slow.receive(build_fetch(LARGE, correlation_id=3))
    assert slow.short == 2
    assert (
        slow.cache.statistics().pins > 0
        and len(slow.lines) == lines
        and read_hop(slow)[0] == frames
    )
    assert slow.link.wire.unsent_bytes > 0
    slow.change("full", False)
    by_transport, by_descriptor = slow.sent  # which is read last
    answer = by_descriptor + by_transport
    assert read_hop(slow) == (frames + 1, size_bytes + len(answer))
    said = fetch.scan_response(answer, 13).partitions[0]
    assert answer[said.start : said.end] == read(slow.cache, slow.partition.slot, LARGE)
    assert slow.cache.statistics().pins == 0 and len(slow.lines) == lines + 1
    assert slow.lines[-1].bytes == said.end - said.start and slow.link.wire.unsent_bytes == 0


async def test_what_the_kernel_took_a_part_of_and_never_leaves_is_not_counted(slow):
    frames, lines = read_hop(slow)[0], len(slow.lines)
    slow.receive(build_fetch(LARGE, correlation_id=3))
    slow.end()
    assert slow.broker.counters.undelivered_partitions == 1
    assert slow.cache.statistics().pins == 0
    assert (read_hop(slow)[0], len(slow.lines)) == (frames, lines)


async def test_who_has_closed_is_met_by_the_transport(slow):
    slow.transport.theirs.close()
    slow.receive(build_fetch(LARGE, correlation_id=3))
    assert slow.short == 2 and slow.link.wire.unsent_bytes > 0
    (answer,) = slow.transport._stream
    said = fetch.scan_response(answer, 13).partitions[0]
    assert said.end - said.start == 250_000, "the transport has all of it, and meets the error"
    slow.end()
    assert slow.cache.statistics().pins == 0


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
async def test_what_is_more_than_one_piece_leaves_piece_by_piece_and_the_arena_waits_for_it(
    room_bytes, monkeypatch
):
    monkeypatch.setattr(Sender, "send", None)  # not past the line, where it could not be copied out
    twins = Twins(sizes=(150_000,), arena_bytes=64 << 20, room_bytes=room_bytes)
    asked = {"max_bytes": 4 << 20, "partition_max_bytes": 4 << 20}
    twins.fetch(0, **asked)
    assert twins.fetch(0, **asked) and sum(map(len, twins.short.sent)) > 2 * PIECE_BYTES
    twins.change("full", True)
    assert twins.fetch(0, **asked)
    twins.each(lambda world: world.cache.evict_to(0))
    twins.each(lambda world: world.transport.drain())
    twins.change("full", False)
    assert b"".join(twins.short.sent[-2:])[8:] == b"".join(twins.short.sent[:2])[8:]
    assert twins.short.cache.statistics().pinned_bytes == 0


@pytest.mark.parametrize(("over", "is_copied"), [(0, True), (1, False)])
async def test_few_bytes_are_copied_out_at_once(over, is_copied):
    twins = Twins(sizes=(COPIED_BYTES + over,))
    twins.fetch(0, partition_max_bytes=1)
    twins.change("full", True)
    assert twins.fetch(0, partition_max_bytes=1)
    assert (twins.short.cache.statistics().pinned_bytes == 0) is is_copied


async def test_what_may_not_be_pinned_is_charged(twins):
    twins.fetch(10)
    twins.each(lambda world: setattr(world.cache._a, "pin_limit_bytes", 0))
    twins.change("full", True)
    assert twins.fetch(10)
    assert twins.short.broker.responses.in_flight_bytes > COPIED_BYTES
    twins.change("full", False)
    assert twins.short.broker.responses.in_flight_bytes == 0


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
OFFSETS = st.sampled_from((0, 1, 5, 9, 10, 12, 15, 17, 19, 20, 21, 28, 29, 30))
FETCHES = st.tuples(st.just("fetch"), OFFSETS)
CHANGES = st.one_of(
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
    st.tuples(st.just("full"), st.booleans()),
    st.tuples(st.sampled_from(("epoch", "led_epoch")), st.integers(4, 6)),
    st.tuples(st.just("later"), st.sampled_from((0.5, 30.0, 50.0))),
    st.tuples(st.just("limit"), st.sampled_from((10, 1 << 30))),
    st.tuples(st.just("client"), st.sampled_from((None, "d"))),
    st.tuples(st.just("forget"), st.none()),
)
SCRIPTS = st.lists(
    st.one_of(*[FETCHES] * 6, CHANGES, st.tuples(st.just("shape"), SHAPES)), min_size=5, max_size=14
)


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
@given(SHAPES, SCRIPTS)
@settings(max_examples=examples(40), deadline=None)
def test_whatever_is_asked_and_changes_both_ways_say_count_and_log_the_same(
    room_bytes, shape, script
):
    async def play(shape):
        twins = Twins(room_bytes=room_bytes)
        for what, value in [("fetch", 0), ("fetch", 1), *script]:
            if what == "shape":
                shape = value
            elif what != "fetch":
                twins.change(what, value)
            else:
                twins.fetch(value, **shape)
                if not twins.each(World.leave):
                    break  # it is the broker's to say
        twins.each(World.end)

    asyncio.run(play(shape))
