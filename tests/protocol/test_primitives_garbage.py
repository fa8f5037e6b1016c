"""Whatever bytes come, the data path's scanners give a value or `BadFrame`, never anything else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch
from protocol.api import APIS, FETCH, PRODUCE
from protocol.batch import scan_batches
from protocol.errors import BadFrame
from protocol.header import peek_request
from tests.kit import produce_messages
from tests.kit.examples import examples
from tests.kit.fetch_messages import scan_in_c
from tests.protocol import oracle
from tests.protocol.batches import batch_v2


def scan_produce_request(frame, version):
    return produce_messages.scan_request(frame, version, peek_request(frame).body_start)


def scan_fetch_request(frame, _version):
    return scan_in_c(frame)


SCANS = {
    (PRODUCE, "request"): scan_produce_request,
    (PRODUCE, "response"): produce_messages.scan_response,
    (FETCH, "request"): scan_fetch_request,
    (FETCH, "response"): fetch.scan_response,
}
CASES = [
    pytest.param(key, kind, version, id=f"{APIS[key].name} {kind} {version}")
    for key, kind in SCANS
    for version in oracle.versions(key)
]
EDGES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF])


def made(key, kind, version):
    if kind == "request":
        return oracle.requests(key, version).map(oracle.request_frame)
    return oracle.responses(key, version).map(oracle.response_frame)


def check_spans(scanned, frame):
    """A span that is given lies in the frame."""
    for partition in scanned.partitions:
        if hasattr(partition, "start"):
            assert (partition.start, partition.end) == (-1, -1) or (
                4 < partition.start <= partition.end <= len(frame)
            )


@pytest.mark.parametrize(("key", "kind", "version"), CASES)
@settings(max_examples=examples(6), deadline=None)
@given(data=st.data())
def test_mutated_frames(key, kind, version, data):
    frame = bytearray(data.draw(made(key, kind, version)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(8, len(frame) - 1))] = data.draw(EDGES)
    try:
        scanned = SCANS[key, kind](frame, version)
    except BadFrame:
        return
    check_spans(scanned, frame)


@pytest.mark.parametrize(("key", "kind", "version"), CASES)
@settings(max_examples=examples(2), deadline=None)
@given(data=st.data())
def test_every_truncation_is_refused(key, kind, version, data):
    frame = data.draw(made(key, kind, version))
    for length in range(len(frame)):
        with pytest.raises(BadFrame):
            SCANS[key, kind](frame[:length], version)


@pytest.mark.parametrize(("key", "kind", "version"), CASES)
@settings(max_examples=examples(6), deadline=None)
@given(content=st.binary(min_size=8, max_size=60))
def test_arbitrary_bytes(key, kind, version, content):
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") if kind == "request" else b""
    frame = bytes(4) + head + content
    try:
        scanned = SCANS[key, kind](frame, version)
    except BadFrame:
        return
    check_spans(scanned, frame)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_mutated_batches(data):
    buf = bytearray(batch_v2(1) + batch_v2(2))
    for _ in range(data.draw(st.integers(1, 4))):
        buf[data.draw(st.integers(0, len(buf) - 1))] = data.draw(EDGES)
    end = data.draw(st.integers(0, len(buf)))
    try:
        found = scan_batches(buf, 0, end)
    except BadFrame:
        return
    assert all(batch.start < batch.end <= end for batch in found)
