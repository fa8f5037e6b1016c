"""State of one partition's transactions is limited, and memory never serves without the dropped part."""

import pytest

from proxy.partitions.transactions import PIECES_LIMIT, Transactions
from tests.proxy.transactional_log import log_of

LIMIT, PATIENCE_S = 8, 5
A = 1


def followed(log):
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    transactions.observed(*log.read(0, len(log.entries)))
    return transactions


@pytest.mark.parametrize(("count", "known_from"), [(LIMIT, 0), (LIMIT + 1, 10)])
def test_aborted_transactions_are_bounded(count, known_from):
    """The oldest go, half of them at once; from the marker of the last that went on, all is known."""
    log = log_of(*[("data", A), ("abort", A)] * count)
    transactions = followed(log)

    assert transactions.known_from == known_from
    assert transactions.statistics().aborted == (LIMIT if known_from == 0 else LIMIT // 2)
    assert len(transactions.aborted(known_from, 2 * count)) == transactions.statistics().aborted


@pytest.mark.parametrize(("count", "known"), [(LIMIT, True), (LIMIT + 1, False)])
def test_open_transactions_are_bounded(count, known):
    log = log_of(("append",), *[("data", producer) for producer in range(count)])
    transactions = followed(log)

    assert (transactions.known_from == 0) is known
    assert transactions.statistics().open == (LIMIT if known else 0)
    assert transactions.last_stable_offset(count + 1) == (1 if known else 0)


@pytest.mark.parametrize(("count", "stable"), [(LIMIT, 3), (LIMIT + 1, 1)])
def test_decided_transactions_above_the_high_watermark_are_bounded(count, stable):
    """At the bound the two oldest are taken together: unstable until both are replicated."""
    log = log_of(("append",), *[("data", A), ("commit", A)] * count)
    transactions = followed(log)

    assert transactions.statistics().undelivered == LIMIT
    assert transactions.last_stable_offset(3) == stable
    assert transactions.last_stable_offset(5) == 5


@pytest.mark.parametrize(
    ("count", "kept"), [(PIECES_LIMIT, PIECES_LIMIT), (PIECES_LIMIT + 1, PIECES_LIMIT)]
)
def test_pieces_are_bounded(count, kept):
    transactions = Transactions(LIMIT, PATIENCE_S)
    for at in range(count):
        transactions.observed(b"", [], 10 * at, 10 * at + 1)

    assert transactions.statistics().pieces == kept


@pytest.mark.parametrize(("count", "kept"), [(LIMIT, LIMIT), (LIMIT + 1, LIMIT)])
def test_events_of_pieces_are_bounded(count, kept):
    log = log_of(*[("data", A), ("append",)] * count)
    transactions = Transactions(LIMIT, PATIENCE_S)
    for at in range(0, 2 * count, 2):
        transactions.observed(*log.read(at, at + 1))

    assert transactions.statistics().piece_events == kept


def test_lasting_hole_begins_a_later_run():
    """Pieces that fell victim to the bound are missing for good: the run begins anew at a later LSO."""
    log = log_of(("append",), ("append",), *[("data", A), ("commit", A)] * LIMIT, ("append",))
    transactions = Transactions(LIMIT, PATIENCE_S)
    transactions.shown(0, 0, 0, 0)
    transactions.observed(*log.read(0, 1))
    transactions.observed(*log.read(2, len(log.entries)))
    transactions.shown(log.end, log.end, 0, 0)
    transactions.shown(log.end, log.end, 0, PATIENCE_S)

    assert (transactions.known_from, transactions.end) == (log.end, log.end)
