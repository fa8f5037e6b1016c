"""Transactions of one partition, case by case; `test_transactions_model` has long scripts."""

import pytest

from protocol.control_batch import ControlType
from proxy.partitions.transactions import Transactions
from tests.protocol.markers import build_control
from tests.proxy.transactional_log import log_of

LIMIT, PATIENCE_S = 8, 5
A, B, C = 1, 2, 3


def followed(log):
    """A follower that has seen the whole log."""
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    transactions.observed(*log.read(0, len(log.entries)))
    return transactions


@pytest.mark.parametrize(
    ("steps", "stable"),
    [
        ([("append",), ("append",)], 2),
        ([("append",), ("data", A)], 1),
        ([("data", A), ("commit", A)], 2),
        ([("data", A), ("abort", A)], 2),
        ([("data", A), ("data", B), ("commit", A)], 1),
        ([("data", A), ("data", B), ("commit", B)], 0),
        ([("data", A, 3), ("data", A), ("commit", A), ("data", A)], 5),
        ([("abort", A), ("commit", B)], 2),
    ],
)
def test_the_stable_offset_is_the_first_open_transaction(steps, stable):
    log = log_of(*steps)

    assert (
        followed(log).last_stable_offset(log.high_watermark) == stable == log.last_stable_offset()
    )


@pytest.mark.parametrize(
    ("high_watermark", "stable"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 5), (6, 6)]
)
def test_marker_counts_below_the_high_watermark(high_watermark, stable):
    """ProducerStateManager.unreplicatedTxns: markers at or above the HW leave a transaction unstable."""
    log = log_of(("append",), ("data", A), ("append",), ("append",), ("commit", A), ("append",))

    assert followed(log).last_stable_offset(high_watermark) == stable


def test_nothing_is_known_at_first():
    transactions = Transactions(LIMIT, PATIENCE_S)

    assert (transactions.known_from, transactions.end) == (-1, -1)
    assert transactions.last_stable_offset(10) is None
    assert transactions.aborted(0, 1) is None
    assert transactions.aborted(5, 5) == []


def test_greatest_shown_lso_counts_without_batches():
    transactions = Transactions(LIMIT, PATIENCE_S)
    for stable in (7, 5):
        transactions.shown(9, stable, 0, 0)

    assert transactions.last_stable_offset(10) == 7
    assert transactions.last_stable_offset(6) == 6


@pytest.mark.parametrize(
    ("fetch_offset", "end_offset", "aborted"),
    [
        (0, 1, []),
        (0, 2, [(A, 1)]),
        (2, 3, [(A, 1), (B, 2)]),
        (4, 5, [(A, 1), (B, 2)]),
        (5, 6, [(B, 2)]),
        (6, 7, [(B, 2)]),
        (7, 8, []),
        (7, 9, [(A, 8)]),
        (9, 10, [(A, 8)]),
        (10, 10, []),
    ],
)
def test_aborted_lists(fetch_offset, end_offset, aborted):
    """A marker at the fetch offset counts, a first offset at the end does not (collectAbortedTxns)."""
    log = log_of(
        ("append",),
        ("data", A),
        ("data", B),
        ("append",),
        ("abort", A),
        ("append",),
        ("abort", B),
        ("append",),
        ("data", A),
        ("abort", A),
    )

    assert followed(log).aborted(fetch_offset, end_offset) == aborted
    expected = [(one.producer_id, one.first) for one in log.aborted(fetch_offset, end_offset)]
    assert sorted(aborted) == sorted(expected) or fetch_offset == end_offset


def test_extra_aborted_entry_would_drop_committed_records():
    """Why a list is never too long: the consumer waits for a marker that it does not read."""
    log = log_of(("data", A), ("abort", A), ("data", A), ("commit", A))

    assert log.consume(2, 4, followed(log).aborted(2, 4)) == [2]
    assert log.consume(2, 4, [(A, 0)]) == []


def test_open_transaction_makes_later_lists_unknown():
    log = log_of(("append",), ("data", A), ("append",))
    transactions = followed(log)

    assert transactions.aborted(0, 1) == []
    assert transactions.aborted(0, 2) is None
    assert transactions.aborted(0, 4) is None


def test_epochs_of_producers_do_not_matter():
    """KIP-890: each marker bears the next epoch; a coordinator that fences or times out does so, too."""
    log = log_of(("data", A), ("data", A), ("append",), ("data", A), ("append",))
    buf, batches, start, end = log.read(0, 5)
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    epochs = iter((0, 0, 1, 1, 2))
    batches = [batch._replace(producer_epoch=next(epochs)) for batch in batches]
    for at, type_ in ((2, ControlType.ABORT), (4, ControlType.COMMIT)):
        marker = build_control(at, bytes((0, 0, 0, type_)), producer=(A, at // 2))
        batches[at] = batches[at]._replace(
            start=len(buf),
            end=len(buf) + len(marker),
            attributes=0x30,
            producer_id=A,
            record_count=1,
        )
        buf += marker

    transactions.observed(buf, batches, start, end)

    assert transactions.last_stable_offset(5) == 5
    assert transactions.aborted(0, 5) == [(A, 0)]


def test_a_hanging_transaction_waits_for_its_marker():
    """A late batch of a fenced producer opens a transaction that nobody ends (KIP-890's motive)."""
    log = log_of(("data", A), ("abort", A), ("data", A), ("append",), ("data", B), ("commit", B))
    transactions = followed(log)
    assert transactions.last_stable_offset(6) == 2
    assert transactions.aborted(0, 2) == [(A, 0)]

    log.abort(A)
    log.replicate()
    transactions.observed(*log.read(6, 7))

    assert transactions.last_stable_offset(7) == 7
    assert transactions.aborted(2, 7) == [(A, 2)]


def test_empty_ranges_are_passed():
    log = log_of(("data", A), ("abort", A))
    transactions = followed(log)
    transactions.observed(b"", [], 2, 40)

    assert transactions.end == 40
    assert transactions.last_stable_offset(40) == 40
    assert transactions.aborted(1, 40) == [(A, 0)]


def test_the_run_is_contiguous():
    """Acknowledgements arrive in any order, and markers only by the watch."""
    log = log_of(("data", A), ("abort", A), ("data", A), ("commit", A), ("append",))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    transactions.observed(*log.read(0, 1))
    transactions.observed(*log.read(2, 3))
    transactions.observed(*log.read(4, 5))
    assert (transactions.end, transactions.last_stable_offset(5)) == (1, 0)

    transactions.observed(*log.read(3, 4))
    assert (transactions.end, transactions.statistics().pieces) == (1, 1)
    transactions.observed(*log.read(1, 2))

    assert (transactions.end, transactions.last_stable_offset(5)) == (5, 5)
    assert transactions.aborted(0, 5) == [(A, 0)]
    assert transactions.statistics()[3:] == (0, 0)


def test_overlapping_piece_counts_from_the_runs_end():
    """Else the transaction of 2 would be listed twice."""
    log = log_of(("append",), ("append",), ("data", A), ("abort", A), ("append",))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    transactions.observed(*log.read(2, 5))
    transactions.observed(*log.read(0, 4))

    assert (transactions.end, transactions.last_stable_offset(5)) == (5, 5)
    assert transactions.aborted(0, 5) == [(A, 2)]
    assert transactions.statistics() == (0, 1, 0, 0, 0)


def test_a_run_without_history_begins_anew_at_once():
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(4, 4, 0, 0)
    transactions.shown(9, 9, 0, 0)

    assert (transactions.known_from, transactions.end) == (9, 9)


@pytest.mark.parametrize("begin", [2, 3])
def test_run_begins_at_the_shown_lso(begin):
    log = log_of(("data", A), ("abort", A), ("data", B), ("append",), ("abort", B))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.observed(*log.read(0, 5))
    transactions.shown(begin, begin, 0, 0)

    assert (transactions.known_from, transactions.end) == (begin, 5)
    assert transactions.aborted(begin - 1, 5) is None
    assert transactions.aborted(begin, 5) == [(B, 2)]


@pytest.mark.parametrize("is_seen", [False, True])
def test_earlier_transactions_are_in_no_list(is_seen):
    """A began below the LSO that was shown and ended above it, below the HW: the broker lists it for a fetch between,
    with an offset that nobody has seen; or for a fetch that has nothing of it.
    """
    between = ("data", A) if is_seen else ("append",)
    log = log_of(
        ("data", A), ("data", B), between, ("abort", A), ("commit", B), ("data", A), ("abort", A)
    )
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(5, 1, 0, 0)
    transactions.observed(*log.read(1, 7))

    assert [(one.first, one.marker) for one in log.aborted(1, 5)] == [(0, 3)]
    assert (transactions.known_from, transactions.listed_end(1)) == (4, 1)
    assert (transactions.aborted(1, 5), transactions.aborted(4, 7)) == (None, [(A, 5)])
    assert transactions.last_stable_offset(7) == 7


def test_transaction_ended_above_hw_began_in_run():
    log = log_of(("append",), ("data", A), ("append",), ("abort", A))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(3, 1, 0, 0)
    transactions.observed(*log.read(1, 4))

    assert (transactions.known_from, transactions.aborted(1, 4)) == (1, [(A, 1)])


@pytest.mark.parametrize(("stable", "begins"), [(5, False), (6, True)])
def test_lso_at_the_log_start_proves_nothing(stable, begins):
    """UnifiedLog.maybeIncrementFirstUnstableOffset shows the log start for what is open below it."""
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(9, stable, 5, 0)

    assert (transactions.known_from == stable) is begins
    assert transactions.last_stable_offset(9) == stable


def test_deleted_open_transaction_holds_the_log_start():
    log = log_of(("append",), ("data", A), ("append",), ("append",))
    transactions = followed(log)

    transactions.advance_start(3)

    assert transactions.last_stable_offset(4) == 3
    assert transactions.aborted(3, 4) is None


def test_a_log_start_beyond_the_run_ends_it():
    transactions = followed(log_of(("data", A), ("abort", A)))
    transactions.advance_start(2)
    assert (transactions.known_from, transactions.end) == (2, 2)

    transactions.advance_start(3)

    assert (transactions.known_from, transactions.last_stable_offset(9)) == (-1, 3)


def test_truncation_makes_all_unknown_until_an_lso():
    log = log_of(("data", A), ("abort", A), ("data", A), ("append",))
    transactions = followed(log)
    transactions.observed(b"", [], 6, 9)
    transactions.truncate(3)
    assert transactions.last_stable_offset(3) is None
    assert transactions.aborted(0, 1) is None
    assert transactions.statistics() == (0, 0, 0, 0, 0)

    transactions.shown(3, 2, 0, 0)

    assert (transactions.known_from, transactions.last_stable_offset(3)) == (2, 2)


def test_pieces_are_cut_by_a_truncation():
    log = log_of(("append",), ("data", A), ("abort", A), ("append",))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.observed(*log.read(1, 4))
    transactions.truncate(2)
    transactions.shown(1, 1, 0, 0)

    assert transactions.end == 2
    assert transactions.last_stable_offset(9) == 1


@pytest.mark.parametrize(
    ("waited_s", "begins_anew"), [(PATIENCE_S - 0.1, False), (PATIENCE_S, True)]
)
def test_a_hole_that_stays_is_left_behind(waited_s, begins_anew):
    log = log_of(("data", A), ("abort", A), ("append",), ("append",), ("append",))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    transactions.observed(*log.read(0, 2))
    transactions.observed(*log.read(3, 5))
    transactions.shown(4, 4, 0, 10)
    transactions.shown(5, 5, 0, 10 + waited_s)

    assert (transactions.known_from == 5) is begins_anew
    assert (transactions.aborted(0, 2) == [(A, 0)]) is not begins_anew
    assert transactions.last_stable_offset(5) == 5


def test_progress_is_no_hole():
    """The LSO shown is ahead of what is observed all the time, while batches keep coming."""
    log = log_of(*[("append",)] * 9)
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    for at in range(8):
        transactions.observed(*log.read(at, at + 1))
        transactions.shown(at + 2, at + 2, 0, at * PATIENCE_S)

    assert (transactions.known_from, transactions.end) == (0, 8)


@pytest.mark.parametrize(("key", "known"), [(None, False), (b"\0", False), (b"\0\0\0\7", True)])
def test_unreadable_marker_ends_the_run(key, known):
    """Emptied or garbled; a type that Kafka adds one day ends nothing and is ignored, as clients do."""
    log = log_of(("append",), ("data", A), ("append",))
    transactions = followed(log)
    batch = log.read(0, 1)[1][0]
    marker = build_control(3, key, producer=(A, 0))
    batch = batch._replace(
        base_offset=3,
        last_offset=3,
        end=len(marker),
        attributes=0x30,
        producer_id=A,
        record_count=bool(key),
    )

    transactions.observed(marker, [batch], 3, 4)

    assert (transactions.known_from == 0) is known
    assert transactions.statistics().open == known


def test_history_that_nobody_wants_is_forgotten():
    transactions = followed(log_of(("data", A), ("abort", A), ("data", A), ("abort", A)))

    transactions.forget_before(2)
    transactions.forget_before(9)

    assert (transactions.known_from, transactions.statistics().aborted) == (2, 1)
    assert transactions.aborted(2, 4) == [(A, 2)]


def test_lso_above_its_hw_counts_as_hw():
    """UnifiedLog.lastStableOffset reads the HW after it saw nothing open: what was appended between may be. What had
    ended by then may have begun below the older HW: no run begins there.
    """
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(10, 14, 0, 0)

    assert transactions.end == -1
    assert transactions.last_stable_offset(20) == 10


def test_lists_are_known_below_open_transactions():
    log = log_of(("append",), ("data", A), ("abort", A), ("append",), ("data", B), ("append",))
    transactions = followed(log)

    assert [transactions.listed_end(offset) for offset in (0, 3, 4, 5)] == [4, 4, 4, 5]
    assert transactions.aborted(0, 4) == [(A, 1)]
    assert transactions.aborted(0, 5) is None
    assert Transactions(LIMIT, PATIENCE_S).listed_end(7) == 7


def test_lists_are_known_from_where_the_run_begins():
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(5, 5, 0, 0)
    transactions.observed(b"", (), 5, 9)

    assert [transactions.listed_end(offset) for offset in (4, 5, 8, 9, 12)] == [4, 9, 9, 9, 12]
