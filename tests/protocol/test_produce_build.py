"""Produce as written and cut, read back by kio, every version; the frames cut and mended are kio's."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol import produce_build
from protocol.api import PRODUCE
from protocol.errors import BadFrame
from protocol.header import peek_request
from protocol.produce_build import Refused
from tests.kit import produce_messages
from tests.kit.examples import examples
from tests.protocol import oracle
from tests.protocol.test_produce import VERSIONS

INT32 = oracle.SCALARS["int32"]
NOT_ENOUGH_REPLICAS = 19
EVERY = pytest.mark.parametrize("version", VERSIONS)


def topics(version):
    if version >= 13:
        return st.sampled_from([bytes(15) + b"\1", bytes(15) + b"\2"])
    return st.sampled_from(["t", "topic-é", "x" * 249])


def refusals(version):
    return st.lists(
        st.builds(Refused, topics(version), INT32, st.sampled_from([19, 87])), max_size=5
    )


def answered_in(body):
    """(topic, partition response) in order, of kio's body."""
    return [
        (oracle.topic_of(topic), one)
        for topic in body.responses
        for one in topic.partition_responses
    ]


def assert_refused(found, refused, version):
    topic, one = found
    assert (topic, one.index, int(one.error_code)) == tuple(refused)
    assert (one.base_offset, one.log_append_time) == (-1, None)
    assert version < 5 or one.log_start_offset == -1
    assert version < 8 or (one.record_errors, one.error_message) == ((), None)


@EVERY
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_kio_reads_the_refusals(version, data):
    refused = data.draw(refusals(version))
    throttle_time_ms = data.draw(st.integers(0, 1000))

    frame = produce_build.build_refusal(version, 42, refused, throttle_time_ms)

    header, body = oracle.read_response(PRODUCE, version, frame)
    assert header.correlation_id == 42
    assert oracle.milliseconds(body.throttle_time) == throttle_time_ms
    found = answered_in(body)
    assert len(found) == len(refused)
    for one, wanted in zip(found, refused, strict=True):
        assert_refused(one, wanted, version)
    assert [p.error_code for p in produce_messages.scan_response(frame, version).partitions] == [
        one.error_code for one in refused
    ]


def test_consecutive_partitions_of_a_topic_share_its_entry():
    frame = produce_build.build_refusal(
        9, 1, [Refused("a", 0, 19), Refused("a", 1, 19), Refused("b", 0, 19)]
    )

    _, body = oracle.read_response(PRODUCE, 9, frame)
    assert [(t.name, len(t.partition_responses)) for t in body.responses] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(("version", "topic"), [(12, bytes(16)), (13, "t"), (13, b"short")])
def test_a_topic_in_the_wrong_form_is_the_callers_fault(version, topic):
    with pytest.raises(ValueError, match="names topics by"):
        produce_build.build_refusal(version, 1, [Refused(topic, 0, 19)])


def cut(body, keep):
    """What kio's request is after the cut, made without bytes."""
    flags = iter(keep)
    kept = []
    for topic in body.topic_data:
        partitions = tuple(one for one in topic.partition_data if next(flags))
        if partitions:
            kept.append(replace(topic, partition_data=partitions))
    return replace(body, topic_data=tuple(kept))


@EVERY
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_a_cut_request_is_what_kio_would_have_written(version, data):
    body = data.draw(oracle.requests(PRODUCE, version))
    partitions = sum(len(topic.partition_data) for topic in body.topic_data)
    assume(partitions)
    keep = data.draw(st.lists(st.booleans(), min_size=partitions, max_size=partitions).filter(any))
    kind = data.draw(st.sampled_from([bytes, bytearray, memoryview]))
    frame = kind(oracle.request_frame(body))

    buffers = produce_build.cut_request(frame, version, peek_request(frame).body_start, keep)

    assert b"".join(buffers) == oracle.request_frame(cut(body, keep))
    assert all(map(len, buffers)), "an empty buffer is written"


def two_partitions(records):
    """A Produce v3 of two partitions of one topic, with a byte behind the last field."""
    body = bytes.fromhex("0000 0003 00000001 ffff ffff 0001 00007530 00000001 0001 74 00000002")
    for index in range(2):
        body += index.to_bytes(4, "big") + len(records).to_bytes(4, "big") + records
    return (len(body) + 1).to_bytes(4, "big") + body + b"!"


def test_records_are_not_copied_and_trailing_bytes_are_left_out():
    frame = two_partitions(bytes(600))

    buffers = produce_build.cut_request(frame, 3, 14, [False, True])

    views = [one for one in buffers if isinstance(one, memoryview)]
    assert [(view.obj is frame, len(view)) for view in views] == [(True, 608)]
    whole = b"".join(buffers)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    (kept,) = produce_messages.scan_request(whole, 3, 14).partitions
    assert (kept.partition, kept.end) == (1, len(whole))


@pytest.mark.parametrize("keep", [[], [True], [False, False], [True, True, True]])
def test_flags_that_do_not_fit_are_the_callers_fault(keep):
    with pytest.raises(ValueError, match="flag"):
        produce_build.cut_request(two_partitions(b"r"), 3, 14, keep)


@EVERY
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_a_mended_answer_has_the_brokers_and_the_refused(version, data):
    answer = data.draw(oracle.responses(PRODUCE, version))
    refused = data.draw(refusals(version))
    kind = data.draw(st.sampled_from([bytes, bytearray, memoryview]))

    frame = produce_build.merge_response(kind(oracle.response_frame(answer, 7)), version, refused)

    header, body = oracle.read_response(PRODUCE, version, frame)
    assert header.correlation_id == 7
    assert replace(body, responses=()) == replace(answer, responses=())
    found, theirs = answered_in(body), answered_in(answer)
    assert [one for one in found if one in theirs] == theirs
    assert len(found) == len(theirs) + len(refused)
    for topic in {one.topic for one in refused}:
        own = [one for one in refused if one.topic == topic]
        of_topic = [one for one in found if one[0] == topic]
        for one, wanted in zip(of_topic[-len(own) :], own, strict=True):
            assert_refused(one, wanted, version)


def test_a_refused_partition_joins_its_topics_entry():
    answer = produce_build.build_refusal(11, 5, [Refused("a", 0, 0), Refused("b", 0, 0)], 100)

    merged = produce_build.merge_response(answer, 11, [Refused("b", 1, 19), Refused("c", 0, 19)])

    assert merged == produce_build.build_refusal(
        11,
        5,
        [Refused("a", 0, 0), Refused("b", 0, 0), Refused("b", 1, 19), Refused("c", 0, 19)],
        100,
    )


@pytest.mark.parametrize("version", [3, 9, 13])
def test_an_answer_that_ends_too_early_is_the_brokers_fault(version):
    topic = bytes(16) if version == 13 else "t"
    whole = produce_build.build_refusal(version, 5, [Refused(topic, 0, 0)])
    tags_bytes = 1 if version >= 9 else 0
    for end in range(8, len(whole) - tags_bytes):
        with pytest.raises(BadFrame):
            produce_build.merge_response(whole[:end], version, [Refused(topic, 1, 19)])
