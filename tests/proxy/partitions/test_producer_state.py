"""Produced batches that may be duplicates at the broker."""

import pytest
from proxy.partitions._rows import ffi, lib

from proxy.partitions.partition_row import open_row
from proxy.partitions.producer_state import CHECKS, DuplicateCheck

NUM_BATCHES_TO_RETAIN = lib.PT_RETAINED
SEQUENCES = 1 << 31

UNDECIDED, NOT_DUPLICATE, RESENT = (
    DuplicateCheck.UNDECIDED,
    DuplicateCheck.NOT_DUPLICATE,
    DuplicateCheck.RESENT,
)


class ProducerLedger:
    """The producers of one partition, as its row has them."""

    def __init__(self, limit=1000):
        self.row = open_row()
        self.row.ledger.limit = limit

    def __len__(self):
        return self.row.ledger.count

    def note(self, *batch):
        return CHECKS[lib.pt_note_producer(ffi.addressof(self.row, "ledger"), *batch)]


def send(ledger, sequences, *, leader_epoch=0, producer_id=7, producer_epoch=0, count=10):
    return [ledger.note(leader_epoch, producer_id, producer_epoch, s, count) for s in sequences]


def warm(ledger, first=0, **names):
    """Five batches of ten records; the sequence that follows."""
    starts = [(first + 10 * i) % SEQUENCES for i in range(NUM_BATCHES_TO_RETAIN)]
    assert send(ledger, starts, **names) == [UNDECIDED] * NUM_BATCHES_TO_RETAIN
    return (first + 10 * NUM_BATCHES_TO_RETAIN) % SEQUENCES


def test_first_five_batches_may_be_retries():
    ledger = ProducerLedger()
    assert NUM_BATCHES_TO_RETAIN == 5
    following = warm(ledger)
    assert send(ledger, [following, following + 10]) == [NOT_DUPLICATE, NOT_DUPLICATE]


def test_batches_without_producer_id_are_no_duplicates():
    ledger = ProducerLedger()
    assert send(ledger, [-1, -1], producer_id=-1, producer_epoch=-1) == [
        NOT_DUPLICATE,
        NOT_DUPLICATE,
    ]
    assert len(ledger) == 0


@pytest.mark.parametrize("back", [10, 20, 50, 1000])
def test_repeated_sequence_changes_nothing(back):
    ledger = ProducerLedger()
    following = warm(ledger, 1000)
    assert send(ledger, [following]) == [NOT_DUPLICATE]
    assert send(ledger, [following + 10 - back]) == [RESENT]
    assert send(ledger, [following + 10]) == [NOT_DUPLICATE]


def test_a_gap_starts_the_five_again():
    ledger = ProducerLedger()
    following = warm(ledger)
    after = warm(ledger, following + 1)
    assert send(ledger, [after]) == [NOT_DUPLICATE]


@pytest.mark.parametrize("before_wrap", [5, 10, 45, 50])
def test_sequences_wrap_at_two_to_the_31(before_wrap):
    ledger = ProducerLedger()
    following = warm(ledger, SEQUENCES - before_wrap)
    assert following == 50 - before_wrap
    assert send(ledger, [following]) == [NOT_DUPLICATE]


def test_the_last_sequence_is_followed_by_zero():
    ledger = ProducerLedger()
    send(ledger, [SEQUENCES - 60 + 10 * i for i in range(5)])
    assert send(ledger, [SEQUENCES - 10, 0]) == [NOT_DUPLICATE, NOT_DUPLICATE]
    assert send(ledger, [SEQUENCES - 10]) == [RESENT]  # behind, though the greater number
    assert send(ledger, [10]) == [NOT_DUPLICATE]


def test_a_new_producer_epoch_starts_again():
    ledger = ProducerLedger()
    following = warm(ledger)
    assert send(ledger, [following]) == [NOT_DUPLICATE]
    after = warm(ledger, producer_epoch=1)
    assert send(ledger, [after], producer_epoch=1) == [NOT_DUPLICATE]
    assert len(ledger) == 1


def test_a_new_leader_epoch_starts_every_producer_again():
    ledger = ProducerLedger()
    for producer_id in (7, 8):
        warm(ledger, producer_id=producer_id)
    assert send(ledger, [50], producer_id=7, leader_epoch=1) == [UNDECIDED]
    assert len(ledger) == 1
    assert send(ledger, [50], producer_id=8, leader_epoch=1) == [UNDECIDED]


def test_producers_do_not_share_sequences():
    ledger = ProducerLedger()
    following = warm(ledger, producer_id=7)
    warm(ledger, producer_id=8)
    assert send(ledger, [following], producer_id=7) == [NOT_DUPLICATE]


def test_full_ledger_forgets_the_least_recent_producer():
    ledger = ProducerLedger(limit=2)
    warm(ledger, producer_id=1)
    warm(ledger, producer_id=2)
    assert len(ledger) == 2
    assert send(ledger, [50], producer_id=1) == [
        NOT_DUPLICATE
    ]  # so 2 is the one not seen for longest
    assert send(ledger, [0], producer_id=3) == [UNDECIDED]
    assert len(ledger) == 2
    assert send(ledger, [60], producer_id=1) == [NOT_DUPLICATE]
    assert send(ledger, [50], producer_id=2) == [UNDECIDED]
    assert len(ledger) == 2


def test_negative_sequences_make_no_replay_fresh():
    """A broker refuses them (LogValidator.validateBatch); the next batch is compared with the last one still."""
    ledger = ProducerLedger()
    following = warm(ledger)
    assert send(ledger, [following]) == [NOT_DUPLICATE]
    far_ahead = following - (1 << 30) - 10
    assert send(ledger, [far_ahead]) == [UNDECIDED]
    assert NOT_DUPLICATE not in send(ledger, [far_ahead] * 10 + [0, following])
