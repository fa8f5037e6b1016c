"""A Fetch that waited at the tail leaves by a shorter way where it repeats the one before: nothing tells which way."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch
from proxy.fetch import delayed_fetch
from proxy.fetch.response import COPIED_BYTES
from proxy.fetch.sessions.context import FINAL_EPOCH
from tests.kit.cache_batches import read
from tests.kit.examples import examples
from tests.proxy.fetch.test_prepared import SHAPES, VERSIONS, Twins
from tests.proxy.hitting import END, World, build_fetch

SIZES = (100, 1_000, COPIED_BYTES, COPIED_BYTES + 1, 30_000)


@pytest.fixture
def singles(monkeypatch):
    """What was answered the shorter way."""
    answered = []
    build_single = delayed_fetch.build_single

    def build(record, *said):
        answered.append(record.link)
        build_single(record, *said)

    monkeypatch.setattr(delayed_fetch, "build_single", build)
    return answered


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
async def test_who_repeats_a_fetch_at_the_tail_goes_it_and_gets_the_records(
    singles, version, isolation_level, size
):
    twins, asked = Twins(), {"version": version, "isolation_level": isolation_level}
    for offset in range(END, END + 3):
        twins.fetch(offset, **asked)
        twins.each(lambda world: world.arrive(size))
        whole = b"".join(twins.short.sent[twins._heard :])
        said = fetch.scan_response(whole, version).partitions[0]
        assert whole[said.start : said.end] == read(
            twins.short.cache, twins.short.partition.slot, offset
        )
    assert singles == [twins.short.link] * 2, "the first of a kind is read"
    assert twins.short.cache.statistics().pinned_bytes == 0


@pytest.mark.parametrize(
    ("asked", "what", "value"),
    [
        ({"in_session": True}, None, None),
        ({"min_bytes": 2}, None, None),
        ({}, "later", 3599.9),
        ({}, "epoch", 6),
        ({}, "old_format", True),
        ({}, "full", True),
    ],
)
async def test_who_does_not_leaves_as_before(singles, asked, what, value):
    twins = Twins()
    for offset in (END, END + 1):
        twins.fetch(offset, **asked)
        if offset > END and what:
            twins.change(what, value)
        twins.each(lambda world: world.arrive(1_000))
        twins.change("full", False)
        twins.each(World.leave)
    assert len(singles) == (what == "full")


async def test_who_ends_a_session_is_answered_without_one(singles):
    twins = Twins()
    for number, offset in enumerate((END, END + 1, END + 2)):
        frame = build_fetch(offset, correlation_id=number, session=(7, FINAL_EPOCH))
        twins.each(lambda world, frame=frame: world.receive(frame))
        twins.each(lambda world: world.arrive(1_000))
        assert fetch.scan_response(twins.short.sent[-1], 13).session_id == 0
    assert twins.short.short == len(singles) == 0


async def test_what_stands_before_it_or_was_aborted_is_told(singles):
    twins = Twins()
    for offset, aborted in ((END, None), (END + 1, END + 1)):
        twins.fetch(offset, isolation_level=1)
        twins.each(lambda world, aborted=aborted: world.arrive(1_000, aborted))
    said = fetch.scan_response(twins.short.sent[-1], 13).partitions[0]
    assert said.aborted == [(9, END - 1)] and len(singles) == 1
    twins.fetch(END + 2)
    twins.fetch(END + 2)
    twins.each(lambda world: world.arrive(1_000))
    assert twins.short.link.replies.oldest is None


CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(("last_stable_offset", "log_start_offset", "high_watermark")),
            st.integers(0, END),
        ),
        st.tuples(
            st.sampled_from(("frozen", "compacted", "zstd", "old_format", "full")), st.booleans()
        ),
        st.tuples(st.just("epoch"), st.integers(4, 6)),
        st.tuples(st.just("later"), st.sampled_from((0.5, 50.0, 70.0))),
        st.tuples(st.just("client"), st.sampled_from((None, "d"))),
    ),
    max_size=3,
)


@given(SHAPES, CHANGES, st.sampled_from(SIZES), st.sampled_from((None, END, 3)))
@settings(max_examples=examples(50), deadline=None)
def test_whatever_changes_while_it_waits_both_ways_say_count_and_log_the_same(
    shape, changes, size, aborted
):
    async def play():
        twins = Twins()
        for offset in (0, END, END + 1):
            twins.fetch(offset, **shape)
            for what, value in changes if offset > END else ():
                twins.change(what, value)
            if offset:
                twins.each(lambda world: world.arrive(size, aborted))
            if not twins.each(World.leave):
                break
        twins.each(World.end)

    asyncio.run(play())
