"""A Fetch read against the one before it says what it would by itself, whatever changes from one to the next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch_again
from protocol.errors import BadFrame
from protocol.fetch import FetchPartition, scan_request
from protocol.fetch_again import KEPT_BYTES, FetchScanner
from protocol.fetch_build import build_request
from protocol.header import peek_request

IDS = 13


def build(
    version, *, correlation_id=1, client_id="g", session=(0, -1), offsets=(5,), forgotten=(), **more
):
    topic = bytes(range(16)) if version >= IDS else "orders"
    partitions = [
        FetchPartition(topic, i, more.get("epoch", 3), offset, -1, -1, 1 << 20)
        for i, offset in enumerate(offsets)
    ]
    return build_request(
        version,
        correlation_id,
        client_id,
        max_wait_ms=more.get("max_wait_ms", 500),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        partitions=partitions,
        forgotten=[(topic, index) for index in forgotten],
    )


def scan(frame):
    head = peek_request(frame)
    return scan_request(frame, head.api_version, head.body_start)


def scan_again(scanner, frame):
    head = peek_request(frame)
    return scanner.scan(frame, head.api_version, head.body_start)


REQUESTS = st.builds(
    build,
    st.sampled_from((4, 6, 7, 11, 12, 13, 16)),
    correlation_id=st.integers(0, 3),
    client_id=st.sampled_from(("g", "h")),
    session=st.tuples(st.integers(0, 1), st.integers(-1, 3)),
    offsets=st.sampled_from(((), (5,), (6,), (2**40,), (5, 6))),
    forgotten=st.sampled_from(((), (7,))),
    epoch=st.integers(-1, 1),
    max_wait_ms=st.sampled_from((500, 0)),
)


@given(st.lists(REQUESTS, min_size=2, max_size=6))
@settings(max_examples=150)
def test_a_line_of_requests_is_read_as_each_would_be_alone(frames):
    scanner = FetchScanner()
    for frame in frames:
        assert scan_again(scanner, frame) == scan(frame)


@pytest.mark.parametrize("version", [4, 7, 12, 13, 16])
@pytest.mark.parametrize("offsets", [(), (5,)])
def test_no_byte_that_changes_goes_unseen(version, offsets):
    before = build(version, offsets=offsets, session=(1, 2))
    body_start = peek_request(before).body_start
    for at in range(body_start, len(before)):
        changed = bytearray(before)
        changed[at] ^= 1
        scanner = FetchScanner()
        scan_again(scanner, before)
        try:
            expected = scan_request(bytes(changed), version, body_start)
        except BadFrame:
            with pytest.raises(BadFrame):
                scanner.scan(bytes(changed), version, body_start)
        else:
            assert scanner.scan(bytes(changed), version, body_start) == expected


@pytest.mark.parametrize("version", [4, 7, 13, 16])
def test_at_the_tail_only_what_changed_is_read(version, monkeypatch):
    scanner = FetchScanner()
    scan_again(scanner, build(version, session=(1, 1)))
    monkeypatch.setattr(fetch_again, "scan_request", None)
    following = build(version, correlation_id=2, session=(1, 2), offsets=(6,))
    assert scanner.read_again(following) == ([2, 2, 6] if version >= 7 else None)
    assert scan_again(scanner, following) == scan(following)


@given(st.lists(REQUESTS, min_size=2, max_size=6))
@settings(max_examples=150)
def test_what_is_read_again_is_all_that_has_changed(frames):
    scanner, before_it = FetchScanner(), b""
    for frame in frames:
        again, alone, kept = scanner.read_again(frame), scan(frame), scanner.request
        if again is not None:
            assert kept is not None
            (one,), (before,) = alone.partitions, kept.partitions
            assert again == [
                peek_request(frame).correlation_id,
                alone.session_epoch,
                one.fetch_offset,
            ]
            assert one._replace(fetch_offset=before.fetch_offset) == before
            assert alone._replace(partitions=[before], session_epoch=kept.session_epoch) == kept
            head, last = peek_request(frame), peek_request(before_it)
            assert head._replace(correlation_id=last.correlation_id) == last
        assert scan_again(scanner, frame) == alone
        before_it = frame


@pytest.mark.parametrize("over", [0, 1])
def test_a_frame_beyond_the_bound_is_not_kept(over, monkeypatch):
    room = KEPT_BYTES - len(build(IDS, client_id=""))
    frame = build(IDS, client_id="c" * (room + over))
    assert len(frame) == KEPT_BYTES + over
    scanner = FetchScanner()
    scan_again(scanner, frame)
    scans = []

    def count_scan(*args):
        scans.append(1)
        return scan_request(*args)

    monkeypatch.setattr(fetch_again, "scan_request", count_scan)
    assert scan_again(scanner, frame) == scan(frame)
    assert len(scans) == over
