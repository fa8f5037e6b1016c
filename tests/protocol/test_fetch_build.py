"""Fetch as written, read back by kio, every version."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch, fetch_build
from protocol.api import FETCH
from protocol.fetch_build import FetchAnswer
from tests.kit.examples import examples
from tests.kit.fetch_messages import scan_in_c
from tests.protocol import oracle
from tests.protocol.test_fetch import VERSIONS, answered_in, asked_of, forgotten_of

INT32, INT64 = oracle.SCALARS["int32"], oracle.SCALARS["int64"]
PAIRS = st.tuples(INT64, INT64)


def topics(version):
    if version >= 13:
        return st.sampled_from([bytes(15) + b"\1", bytes(15) + b"\2"])
    return st.sampled_from(["t", "topic-é", "x" * 249])


def as_sent(version, partition):
    """A FetchPartition with the defaults of what the version cannot carry."""
    return partition._replace(
        current_leader_epoch=partition.current_leader_epoch if version >= 9 else -1,
        last_fetched_epoch=partition.last_fetched_epoch if version >= 12 else -1,
        log_start_offset=partition.log_start_offset if version >= 5 else -1,
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_kio_reads_the_requests(version, data):
    topic = topics(version)
    partitions = data.draw(
        st.lists(
            st.builds(fetch.FetchPartition, topic, INT32, INT32, INT64, INT32, INT64, INT32),
            max_size=4,
        )
    )
    forgotten = data.draw(st.lists(st.tuples(topic, INT32), max_size=4)) if version >= 7 else []
    names = ("max_wait_ms", "min_bytes", "max_bytes", "session_id", "session_epoch")
    values = {name: data.draw(INT32) for name in names}

    frame = fetch_build.build_request(
        version,
        42,
        "forebay",
        isolation_level=1,
        partitions=partitions,
        forgotten=forgotten,
        **values,
    )

    header, body = oracle.read_request(FETCH, version, frame)
    assert (header.correlation_id, header.client_id) == (42, "forebay")
    assert (body.replica_state.replica_id if version >= 15 else body.replica_id) == -1
    assert oracle.milliseconds(body.max_wait) == values["max_wait_ms"]
    assert (body.min_bytes, body.max_bytes, body.isolation_level) == (
        values["min_bytes"],
        values["max_bytes"],
        1,
    )
    assert asked_of(body) == [tuple(as_sent(version, p)) for p in partitions]
    assert forgotten_of(body) == forgotten
    if version >= 7:
        assert (body.session_id, body.session_epoch) == (
            values["session_id"],
            values["session_epoch"],
        )
    scanned = scan_in_c(frame)
    assert scanned.partitions == [as_sent(version, p) for p in partitions]


@st.composite
def answers(draw, topic):
    kind = draw(st.sampled_from([bytes, bytearray, memoryview]))
    records = [
        kind(part) for part in draw(st.lists(st.binary(min_size=1, max_size=70), max_size=3))
    ]
    return FetchAnswer(
        topic=draw(topic),
        partition=draw(INT32),
        error_code=draw(st.sampled_from([0, 1, 74])),
        high_watermark=draw(INT64),
        last_stable_offset=draw(INT64),
        log_start_offset=draw(INT64),
        aborted=draw(st.one_of(st.none(), st.lists(PAIRS, max_size=3))),
        records=records,
        records_bytes=sum(map(len, records)),
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_kio_reads_the_responses(version, data):
    given_answers = data.draw(st.lists(answers(topics(version)), max_size=4))
    throttle_time_ms, session_id = data.draw(st.integers(0, 1000)), data.draw(INT32)

    buffers = fetch_build.build_response(
        version,
        42,
        throttle_time_ms=throttle_time_ms,
        error_code=71,
        session_id=session_id,
        partitions=given_answers,
    )

    header, body = oracle.read_response(FETCH, version, b"".join(buffers))
    assert header.correlation_id == 42
    assert oracle.milliseconds(body.throttle_time) == throttle_time_ms
    if version >= 7:
        assert (int(body.error_code), body.session_id) == (71, session_id)
    assert answered_in(body) == [_as_answered(version, answer) for answer in given_answers]
    assert all(buffers), "an empty buffer is written"
    sent = {id(buffer) for buffer in buffers}
    assert all(id(part) in sent for answer in given_answers for part in answer.records), (
        "records are copied"
    )


def _as_answered(version, answer):
    log_start = answer.log_start_offset if version >= 5 else -1
    aborted = None if answer.aborted is None else list(answer.aborted)
    records = b"".join(answer.records)
    return (*answer[:5], log_start, -1, None, None, aborted, records)


def test_consecutive_partitions_of_a_topic_share_its_entry_and_keep_their_order():
    def answer(topic, partition):
        return FetchAnswer(topic, partition, 0, 5, 5, 0, None, (), 0)

    order = [("a", 2), ("a", 0), ("b", 1), ("a", 1)]
    (buffer,) = fetch_build.build_response(
        12,
        1,
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        partitions=[answer(*entry) for entry in order],
    )

    body = oracle.read_response(FETCH, 12, bytes(buffer))[1]
    assert [(t.topic, [p.partition_index for p in t.partitions]) for t in body.responses] == [
        ("a", [2, 0]),
        ("b", [1]),
        ("a", [1]),
    ]


def test_null_and_empty_lists_of_aborted_transactions_differ_on_the_wire():
    def built(aborted):
        answer = FetchAnswer("t", 0, 0, 5, 5, 0, aborted, (b"x",), 1)
        return b"".join(
            fetch_build.build_response(
                4, 1, throttle_time_ms=0, error_code=0, session_id=0, partitions=[answer]
            )
        )

    assert fetch.scan_response(built(None), 4).partitions[0].aborted is None
    assert fetch.scan_response(built([]), 4).partitions[0].aborted == []


@pytest.mark.parametrize(("version", "topic"), [(12, bytes(16)), (13, "t"), (13, bytes(15))])
def test_a_topic_of_the_wrong_kind_is_the_callers_mistake(version, topic):
    partition = fetch.FetchPartition(topic, 0, -1, 0, -1, -1, 1)
    with pytest.raises(ValueError, match="names topics by"):
        fetch_build.build_request(
            version,
            1,
            None,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            partitions=[partition],
        )


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_session_is_stamped_in_place(version):
    frame = bytearray(
        fetch_build.build_request(
            version,
            1,
            "c",
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=2,
            isolation_level=0,
            session_id=77,
            session_epoch=3,
            partitions=[],
        )
    )
    before = scan_in_c(frame)

    fetch_build.stamp_session(frame, before.session_at, 0, -1)

    after = scan_in_c(frame)
    assert after == before._replace(session_id=0, session_epoch=-1)


ANSWERS = st.lists(
    st.builds(
        FetchAnswer,
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from((0, 0, 0, 1, 6)),
        *[st.integers(-1, 2**63 - 1)] * 3,
        st.sampled_from((None, (), ((7, 8),), ((1, 2), (3, 4)))),
        st.just(()),
        st.sampled_from((0, 1, 126, 127, 128, 16_383, 16_384, 2**21, 2**28)),
    ),
    max_size=5,
)


@given(st.integers(4, 18), st.lists(ANSWERS, min_size=2, max_size=2))
def test_a_layout_serves_every_response_that_names_the_same_partitions(version, twice):
    """What differs from one to the next stands in no layout; a length that lies is what a frame without records has."""
    first, second = (
        [
            one._replace(topic=bytes([one.topic]) * 16 if version >= 13 else "t" * one.topic)
            for one in answers
        ]
        for answers in twice
    )
    second = [
        other._replace(topic=one.topic, partition=one.partition)
        for one, other in zip(first, [*second, *first], strict=False)
    ]
    layout = fetch_build.plan_layout(version, [one[:2] for one in first])
    for answers in (first, second):
        heads, cuts = fetch_build.build_heads(layout, 9, 1, 2, 3, answers)
        whole = b"".join(fetch_build.add_records((heads, cuts), [()] * len(cuts)))
        built = fetch_build.build_response(
            version, 9, throttle_time_ms=1, error_code=2, session_id=3, partitions=answers
        )
        assert whole == b"".join(built) == heads
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4 + sum(
            one.records_bytes for one in answers
        )
        assert len(cuts) == sum(one.records_bytes > 0 for one in answers)
