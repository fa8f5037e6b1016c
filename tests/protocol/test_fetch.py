"""Fetch as read, against kio, every version."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch
from protocol.api import FETCH
from protocol.errors import BadFrame
from protocol.primitives import INT32_PAIR
from tests.kit.examples import examples
from tests.kit.fetch_messages import scan_in_c
from tests.protocol import oracle

VERSIONS = oracle.versions(FETCH)
DEFAULT_MAX_BYTES = 0x7FFFFFFF


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_a_request_of_kio_is_scanned(version, data):
    body = data.draw(oracle.requests(FETCH, version))
    frame = oracle.request_frame(body)

    scanned = scan_in_c(frame)

    replica_id = body.replica_state.replica_id if version >= 15 else body.replica_id
    assert scanned.replica_id == replica_id
    assert scanned.max_wait_ms == oracle.milliseconds(body.max_wait)
    assert scanned[2:5] == (body.min_bytes, body.max_bytes, body.isolation_level)
    assert scanned.session_id == getattr(body, "session_id", 0)
    assert scanned.session_epoch == getattr(body, "session_epoch", -1)
    assert scanned.rack_id == getattr(body, "rack_id", "")
    assert [tuple(p) for p in scanned.partitions] == asked_of(body)
    assert scanned.forgotten == forgotten_of(body)
    if version < 7:
        assert scanned.session_at == -1
    else:
        pair = frame[scanned.session_at :][:8]
        assert pair == INT32_PAIR.pack(scanned.session_id, scanned.session_epoch)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_a_response_of_kio_is_scanned(version, data):
    body = data.draw(oracle.responses(FETCH, version))
    frame = oracle.response_frame(body)

    scanned = fetch.scan_response(frame, version)

    assert scanned.throttle_time_ms == oracle.milliseconds(body.throttle_time)
    assert scanned.error_code == int(getattr(body, "error_code", 0))
    assert scanned.session_id == getattr(body, "session_id", 0)
    assert [readable(frame, p) for p in scanned.partitions] == answered_in(body)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(5), deadline=None)
@given(data=st.data())
def test_of_a_response_that_lacks_its_last_records_the_rest_is_scanned(version, data):
    body = data.draw(oracle.responses(FETCH, version))
    frame = oracle.response_frame(body)
    whole = fetch.scan_response(frame, version)
    last = whole.partitions[-1] if whole.partitions and body.responses[-1].partitions else None

    edges = [0, len(frame)]
    if last is not None and last.start >= 0:
        edges = [last.start - 2, last.start - 1, last.start, last.end - 1, last.end]
    for received in {*edges, data.draw(st.integers(0, len(frame)))}:
        try:
            found = fetch.scan_response_head(frame[:received], version, len(frame))
        except BadFrame:
            found = None
        if last is not None and last.start <= received < last.end:
            without_hints = last._replace(diverging=None, current_leader=None)
            assert found == whole._replace(partitions=[*whole.partitions[:-1], without_hints])
        else:
            assert found is None


def asked_of(body):
    """FetchPartition's fields of each partition in kio's request, defaults for what its version lacks."""
    return [
        (
            oracle.topic_of(topic, "topic"),
            p.partition,
            getattr(p, "current_leader_epoch", -1),
            p.fetch_offset,
            getattr(p, "last_fetched_epoch", -1),
            getattr(p, "log_start_offset", -1),
            p.partition_max_bytes,
        )
        for topic in body.topics
        for p in topic.partitions
    ]


def forgotten_of(body):
    """(topic, partition) of each partition that kio's request forgets."""
    return [
        (oracle.topic_of(topic, "topic"), partition)
        for topic in getattr(body, "forgotten_topics_data", ())
        for partition in topic.partitions
    ]


def answered_in(body):
    """What `readable` makes of each partition, from kio's response."""
    return [_answer(topic, p) for topic in body.responses for p in topic.partitions]


def _answer(topic, p):
    aborted = p.aborted_transactions
    return (
        oracle.topic_of(topic, "topic"),
        p.partition_index,
        int(p.error_code),
        p.high_watermark,
        p.last_stable_offset,
        getattr(p, "log_start_offset", -1),
        getattr(p, "preferred_read_replica", -1),
        _pair(p, "diverging_epoch", "epoch", "end_offset", lambda pair: pair[0] >= 0),
        _pair(p, "current_leader", "leader_id", "leader_epoch", lambda pair: pair != (-1, -1)),
        None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted],
        p.records,
    )


def _pair(partition, name, first, second, is_meant):
    struct = getattr(partition, name, None)
    if struct is None:
        return None
    pair = (getattr(struct, first), getattr(struct, second))
    return pair if is_meant(pair) else None


def readable(frame, partition):
    """A scanned partition with the records' bytes instead of their span."""
    *values, start, end = partition
    return (*values, None if (start, end) == (-1, -1) else frame[start:end])


def response_v16(partition_tags):
    """A Fetch response v16 of one partition (id 01..., 0; HW 9) with these tagged fields and no records."""
    partition = bytes.fromhex(
        "00000000 0000 0000000000000009 0000000000000009 0000000000000000 00 ffffffff 01"
    )
    body = (
        bytes.fromhex("0000002a 00 00000000 0000 00000000 02") + bytes([1] * 16) + b"\2" + partition
    )
    body += partition_tags + b"\0\0"
    return len(body).to_bytes(4, "big") + body


def test_hints_of_an_answer_are_read_among_unknown_tags():
    tags = bytes.fromhex(
        "04 00 0d 00000003 0000000000000007 00 01 09 00000001 00000005 00 02 01 00 63 02 beef"
    )

    (partition,) = fetch.scan_response(response_v16(tags), 16).partitions

    assert partition.diverging == (3, 7)
    assert partition.current_leader == (1, 5)
    assert partition.aborted is None
    assert partition.start == partition.end > 0


@pytest.mark.parametrize("tags", ["01 00 0b 00000003 00000000000007", "01 01 07 00000001 000005"])
def test_a_hint_too_short_for_its_fields_is_refused(tags):
    with pytest.raises(BadFrame, match=r"bytes where \d+ are needed"):
        fetch.scan_response(response_v16(bytes.fromhex(tags)), 16)


def test_a_negative_diverging_epoch_is_none():
    tags = bytes.fromhex("01 00 0d ffffffff ffffffffffffffff 00")

    assert fetch.scan_response(response_v16(tags), 16).partitions[0].diverging is None
