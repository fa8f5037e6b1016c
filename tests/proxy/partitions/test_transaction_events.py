"""Transaction events of batches, and the join of ranges out of order."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.batch import scan_batches
from protocol.control_batch import ControlType
from proxy.partitions.transaction_events import Event, Piece, TransactionEvent, merge, scan_events
from tests.protocol.batches import batch_v2, message_v1
from tests.protocol.markers import build_control, build_marker


def events_of(raw, from_offset=0):
    return scan_events(raw, scan_batches(raw, 0, len(raw)), from_offset)


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        (build_marker(7, ControlType.COMMIT, producer_id=3, producer_epoch=9), Event.COMMITTED),
        (build_marker(7, ControlType.ABORT, producer_id=3), Event.ABORTED),
        (build_control(7, None, producer=(3, 0)), Event.UNREADABLE),
        (build_control(7, b"\0", producer=(3, 0)), Event.UNREADABLE),
    ],
)
def test_markers(raw, event):
    assert events_of(raw) == [TransactionEvent(7, 3, event)]


@pytest.mark.parametrize(
    "raw",
    [
        batch_v2(),
        batch_v2(producer=(3, 0, 0)),
        message_v1(),
        build_control(7, b"\0\0\0\2", producer=(-1, -1)),
        build_control(7, b"\0\0\0\2", producer=(3, 0)),
    ],
    ids=["plain", "idempotent", "old", "leader change", "unknown type"],
)
def test_batches_without_transaction_events(raw):
    assert events_of(raw) == []


def test_data_begins_a_transaction_at_its_base_offset():
    raw = batch_v2(4, transactional=True, producer=(3, 0, 0))

    assert events_of(raw) == [TransactionEvent(0, 3, Event.BEGUN)]
    assert events_of(raw, 3) == [TransactionEvent(0, 3, Event.BEGUN)]
    assert events_of(raw, 4) == []


def begun(offset, producer_id=1):
    return TransactionEvent(offset, producer_id, Event.BEGUN)


def ended(offset, producer_id=1):
    return TransactionEvent(offset, producer_id, Event.ABORTED)


def piece(start, end, *events):
    made = Piece(start)
    made.extend(events, end)
    return made


def shape(pieces):
    return [(one.start, one.end, one.events) for one in pieces]


def test_only_first_batch_of_transaction_is_kept():
    made = piece(0, 9, begun(0), begun(2), begun(3, 2), ended(4), ended(5), begun(6), begun(7))

    assert made.events == [begun(0), begun(3, 2), ended(4), ended(5), begun(6)]


@pytest.mark.parametrize(
    ("added", "result"),
    [
        (piece(5, 8), [(5, 8, []), (10, 20, [begun(12)]), (30, 40, [ended(35)])]),
        (piece(22, 25), [(10, 20, [begun(12)]), (22, 25, []), (30, 40, [ended(35)])]),
        (piece(5, 10, begun(6)), [(5, 20, [begun(6)]), (30, 40, [ended(35)])]),
        (piece(20, 25), [(10, 25, [begun(12)]), (30, 40, [ended(35)])]),
        (piece(20, 30), [(10, 40, [begun(12), ended(35)])]),
        (piece(5, 50, begun(6), ended(35), begun(45)), [(5, 50, [begun(6), ended(35), begun(45)])]),
        (piece(12, 15, begun(12)), [(10, 20, [begun(12)]), (30, 40, [ended(35)])]),
    ],
)
def test_pieces_are_put_together(added, result):
    pieces = [piece(10, 20, begun(12)), piece(30, 40, ended(35))]

    assert shape(merge(pieces, added)) == result


def test_a_cut_piece_goes_on_from_there():
    part = piece(0, 9, begun(2), ended(5), begun(6)).cut(5)
    part.extend([begun(5), ended(6), begun(8)], 9)

    assert shape([part]) == [(0, 9, [begun(2), ended(6), begun(8)])]


SAID = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from((Event.BEGUN, Event.ABORTED))), max_size=12
)
RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=8)


@settings(max_examples=150)
@given(SAID, RANGES)
def test_the_order_of_arrival_is_of_no_consequence(said, ranges):
    """However a range came together, its events are those of the range read at once."""
    said = [TransactionEvent(offset, *what) for offset, what in enumerate(said)]

    def read(start, end):
        return piece(start, end, *(event for event in said if start <= event.offset < end))

    pieces: list[Piece] = []
    for start, end in ranges:
        pieces = merge(pieces, read(start, end))

    covered = {offset for start, end in ranges for offset in range(start, end)}
    assert {offset for one in pieces for offset in range(one.start, one.end)} == covered
    assert all(one.end < other.start for one, other in pairwise(pieces))
    assert shape(pieces) == shape([read(one.start, one.end) for one in pieces])
