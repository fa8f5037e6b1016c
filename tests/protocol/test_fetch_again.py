"""A Fetch read against the one before it says what it would by itself, whatever changes from one to the next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch_again
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
    """Header and content, against the template if the frame repeats it."""
    head = peek_request(frame)
    return scanner.read_again(frame) or (head, scanner.scan(frame, head))


def scan_alone(frame):
    return peek_request(frame), scan(frame)


REQUESTS = st.builds(
    build,
    st.sampled_from((4, 6, 7, 11, 12, 13, 16)),
    correlation_id=st.integers(0, 3),
    client_id=st.sampled_from(("g", "h")),
    session=st.tuples(st.integers(0, 1), st.integers(-1, 3)),
    offsets=st.sampled_from(((), (5,), (6,), (2**40,), (5, 6), (7, 8), (1, 2, 3))),
    forgotten=st.sampled_from(((), (7,))),
    epoch=st.integers(-1, 1),
    max_wait_ms=st.sampled_from((500, 0)),
)


@given(st.lists(REQUESTS, min_size=2, max_size=6))
@settings(max_examples=150)
def test_a_line_of_requests_is_read_as_each_would_be_alone(frames):
    scanner = FetchScanner()
    for frame in frames:
        assert scan_again(scanner, frame) == scan_alone(frame)


@pytest.mark.parametrize("version", [4, 7, 12, 13, 16])
@pytest.mark.parametrize("offsets", [(), (5,), (5, 6, 7)])
def test_no_byte_that_changes_goes_unseen(version, offsets):
    before = build(version, offsets=offsets, session=(1, 2))
    for at in range(len(before)):
        changed = bytearray(before)
        changed[at] ^= 1
        scanner = FetchScanner()
        scan_again(scanner, before)
        again = scanner.read_again(bytes(changed))
        if again is not None:
            assert again == scan_alone(bytes(changed))


@pytest.mark.parametrize("version", [4, 7, 13, 16])
@pytest.mark.parametrize("asked", [1, 16])
def test_at_the_tail_only_what_changed_is_read(version, asked, monkeypatch):
    scanner = FetchScanner()
    scan_again(scanner, build(version, session=(1, 1), offsets=(5,) * asked))
    monkeypatch.setattr(fetch_again, "scan_request", None)
    following = build(version, correlation_id=2, session=(1, 2), offsets=range(6, 6 + asked))
    for _ in range(2):
        assert scanner.read_again(following) == scan_alone(following)


@pytest.mark.parametrize("version", [4, 7, 13])
def test_a_request_that_names_a_partition_twice_or_forgets_one_is_no_template(version):
    scanner = FetchScanner()
    frame = build(version, offsets=(5, 6))
    at = frame.rindex((1).to_bytes(4, "big"), 0, frame.rindex((6).to_bytes(8, "big")))
    twice = frame[:at] + bytes(4) + frame[at + 4 :]
    assert [one.partition for one in scan(twice).partitions] == [0, 0]
    scan_again(scanner, twice)
    assert scanner.read_again(twice) is None
    if version >= 7:
        forgets = build(version, forgotten=(7,))
        scan_again(scanner, forgets)
        assert scanner.read_again(forgets) is None


@pytest.mark.parametrize("over", [0, 1])
def test_a_frame_beyond_the_bound_is_not_kept(over, monkeypatch):
    room = KEPT_BYTES - len(build(IDS, client_id=""))
    frame = build(IDS, client_id="c" * (room + over))
    assert len(frame) == KEPT_BYTES + over
    scanner = FetchScanner()
    scan_again(scanner, frame)
    scans, request = [], scan(frame)

    def count_scan(*args):
        scans.append(1)
        return scan_request(*args)

    monkeypatch.setattr(fetch_again, "scan_request", count_scan)
    assert scan_again(scanner, frame) == (peek_request(frame), request)
    assert len(scans) == over
