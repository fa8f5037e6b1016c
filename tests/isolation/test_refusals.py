"""Refusals: their effect on later batches, and the table at its limit."""

import pytest

from isolation.refusals import (
    MOST_IN_FLIGHT,
    SEQUENCES,
    PartitionVerdict,
    Plan,
    RefusedSequences,
    SequencedBatch,
    plan_refusal,
)

PASS, REFUSE = PartitionVerdict.PASS, PartitionVerdict.REFUSE


class Connection:
    """One connection's Produces, in the order of arrival."""

    def __init__(self, limit=1000):
        self.sequences = RefusedSequences(limit)
        self.ordinal = 0

    def produce(self, *batches, refused=(), acks=-1, transactional=False, ordinal=None, now_s=0.0):
        if ordinal is None:
            self.ordinal = ordinal = self.ordinal + 1
        plan = plan_refusal(
            batches,
            lambda batch: batch.topic in refused,
            self.sequences,
            ordinal=ordinal,
            acks=acks,
            is_transactional=transactional,
        )
        self.sequences.apply(batches, plan, ordinal, now_s)
        return plan

    def one(self, sequence, epoch=0, **more):
        """The verdict on one batch of producer 7 in partition t-0."""
        (verdict,) = self.produce(SequencedBatch("t", 0, 7, epoch, sequence), **more).verdicts
        return verdict

    def plain(self, **more):
        """The verdict on one batch without a producer id in t-0."""
        (verdict,) = self.produce(SequencedBatch("t", 0), **more).verdicts
        return verdict


def test_batches_behind_a_refused_one_are_refused():
    link = Connection()
    assert link.one(4) is PASS
    assert link.one(5, refused={"t"}) is REFUSE
    assert [link.one(6), link.one(7)] == [REFUSE, REFUSE]
    assert [link.one(5), link.one(6), link.one(7)] == [PASS, PASS, PASS]
    assert len(link.sequences) == 0
    assert link.sequences.statistics()["by_order"] == 2


def test_other_partitions_producers_and_connections_are_not_concerned():
    link = Connection()
    link.one(5, refused={"t"})
    assert link.produce(
        SequencedBatch("t", 1, 7, 0, 6),
        SequencedBatch("u", 0, 7, 0, 6),
        SequencedBatch("t", 0, 8, 0, 6),
    ).verdicts == (
        PASS,
        PASS,
        PASS,
    )
    assert Connection().one(6) is PASS


def test_a_refused_batch_may_be_refused_again():
    link = Connection()
    for _ in range(3):
        assert link.one(5, refused={"t"}) is REFUSE
        assert link.one(6) is REFUSE
    assert link.one(5) is PASS
    assert link.one(6) is PASS


def test_higher_epoch_ends_refusals_a_lower_does_not():
    link = Connection()
    link.one(5, epoch=2, refused={"t"})
    assert link.one(9, epoch=1) is REFUSE
    assert link.one(0, epoch=3) is PASS
    assert link.one(6, epoch=2) is PASS, "the broker fences it"
    link.one(5, epoch=3, refused={"t"})
    assert link.one(0, epoch=4, refused={"t"}) is REFUSE
    assert link.one(5, epoch=3) is REFUSE
    assert link.one(0, epoch=4) is PASS


def test_retry_of_a_forwarded_batch_passes():
    link = Connection()
    link.one(5, refused={"t"})
    assert link.one(4) is PASS
    assert link.one(6) is REFUSE
    assert [link.one(5), link.one(6)] == [PASS, PASS]


def test_earlier_refused_batch_must_return_first():
    link = Connection()
    link.one(5, refused={"t"})
    assert link.one(4, refused={"t"}) is REFUSE
    assert link.one(5) is REFUSE
    assert [link.one(4), link.one(5)] == [PASS, PASS]


def test_sequences_wrap():
    link = Connection()
    last = SEQUENCES - 1
    link.one(last, refused={"t"})
    assert link.one(0) is REFUSE
    assert link.one(last - 1) is PASS
    assert link.one(last) is PASS
    assert link.one(1) is REFUSE
    assert [link.one(0), link.one(1)] == [PASS, PASS]
    assert len(link.sequences) == 0


def test_new_batch_does_not_pass_refused_ones():
    link = Connection()
    link.one(5, refused={"t"})
    assert [link.one(6), link.one(5)] == [REFUSE, PASS]
    assert link.one(7) is REFUSE, "6 has yet to return"
    assert [link.one(6), link.one(7)] == [PASS, PASS]
    assert len(link.sequences) == 0


def test_renumbering_client_is_not_stuck():
    def batch(sequence, records):
        return SequencedBatch("t", 0, 7, 0, sequence, records)

    link = Connection()
    link.produce(batch(10, 10), refused={"t"})
    assert link.produce(batch(20, 10)).verdicts == (REFUSE,)
    # A batch of 7 before them failed for good: TxnPartitionMap.adjustSequencesDueToFailedBatch.
    verdicts = [link.produce(batch(sequence, 10)).verdicts for sequence in (3, 13, 23, 33)]
    assert verdicts == [(PASS,)] * 4
    assert len(link.sequences) == 0


def test_batches_acknowledged_elsewhere_do_not_block():
    link = Connection()
    assert link.one(5, refused={"t"}) is REFUSE
    # The leader moved away, 5 to 29 were acknowledged there, and it came back to the same connection.
    assert [link.one(30) for _ in range(MOST_IN_FLIGHT)] == [REFUSE] * (MOST_IN_FLIGHT - 1) + [PASS]
    assert [link.one(31), link.one(32)] == [PASS, PASS]
    assert len(link.sequences) == 0


@pytest.mark.parametrize("before", range(MOST_IN_FLIGHT))
def test_batches_after_another_leaders_pass_in_order(before):
    link = Connection()
    assert link.one(5, refused={"t"}) is REFUSE
    assert [link.one(6 + i) for i in range(before)] == [REFUSE] * before
    # All of that was acknowledged elsewhere. The client has five in flight, and repeats what is refused in its order.
    passed, waiting = [], list(range(30, 40))
    for _ in range(8):
        verdicts = [link.one(sequence) for sequence in waiting[:MOST_IN_FLIGHT]]
        passed += [one for one, verdict in zip(waiting, verdicts, strict=False) if verdict is PASS]
        waiting = [one for one in waiting if one not in passed]
    assert passed == list(range(30, 40)), "a gap would be out of order for the broker"
    assert len(link.sequences) == 0


def test_batches_in_flight_never_pass_refused_ones():
    link = Connection()
    for _ in range(3):
        assert link.one(5, refused={"t"}) is REFUSE
        assert [link.one(sequence) for sequence in (6, 7, 8, 9)] == [REFUSE] * (MOST_IN_FLIGHT - 1)
    for sequence in (5, 6, 7):
        assert link.one(sequence) is PASS
        assert [link.one(later) for later in range(sequence + 2, sequence + 6)] == [REFUSE] * 4


def test_returned_producer_may_be_refused_again():
    link = Connection()
    link.one(5, refused={"t"})
    for _ in range(MOST_IN_FLIGHT - 1):
        link.one(30)
    assert link.one(30, refused={"t"}) is REFUSE
    assert [link.one(31), link.one(30), link.one(31)] == [REFUSE, PASS, PASS]
    assert len(link.sequences) == 0


def test_without_producer_id_earlier_arrivals_are_refused():
    link = Connection()
    assert link.plain(refused={"t"}) is REFUSE
    assert [link.plain(), link.plain()] == [REFUSE, REFUSE]
    link.sequences.reply_left(1, last_received=4)
    assert link.plain(ordinal=4) is REFUSE, "received before, though decided after"
    link.sequences.reply_left(2, last_received=5)
    assert link.plain(ordinal=5) is PASS
    assert link.plain(ordinal=4) is PASS, "nothing is remembered any more"
    assert len(link.sequences) == 0


def test_without_producer_id_retry_may_be_refused():
    link = Connection()
    link.plain(refused={"t"})
    link.sequences.reply_left(1, last_received=1)
    assert link.plain(refused={"t"}) is REFUSE
    assert link.plain() is REFUSE
    link.sequences.reply_left(2, last_received=3)
    assert link.plain() is PASS


def test_transaction_is_refused_whole_others_by_topic():
    batches = (SequencedBatch("t", 0, 7, 0, 5), SequencedBatch("u", 0, 7, 0, 8))
    assert Connection().produce(*batches, refused={"t"}).verdicts == (REFUSE, PASS)
    link = Connection()
    assert link.produce(*batches, refused={"t"}, transactional=True).verdicts == (REFUSE, REFUSE)
    assert link.produce(SequencedBatch("u", 0, 7, 0, 9), transactional=True).verdicts == (REFUSE,)
    assert link.produce(*batches, transactional=True).verdicts == (PASS, PASS)


def test_transaction_with_one_refused_batch_fails_whole():
    link = Connection()
    link.one(5, refused={"t"}, transactional=True)
    batches = (SequencedBatch("t", 0, 7, 0, 6), SequencedBatch("u", 0, 7, 0, 0))
    assert link.produce(*batches, transactional=True).verdicts == (REFUSE, REFUSE)


def test_acks_0_waits_and_is_never_refused():
    link = Connection()
    plan = link.produce(SequencedBatch("t", 0), refused={"t"}, acks=0)
    assert plan == Plan((PASS,), must_wait=True)
    link.plain(refused={"t"})
    assert link.produce(SequencedBatch("t", 0), acks=0) == Plan((PASS,))


def test_full_table_refuses_known_producers_only():
    link = Connection(limit=2)
    link.produce(SequencedBatch("t", 0, 7, 0, 5), SequencedBatch("t", 1, 7, 0, 5), refused={"t"})
    plan = link.produce(SequencedBatch("t", 2, 7, 0, 5), refused={"t"})
    assert plan.must_wait
    assert not plan.must_close
    assert len(link.sequences) == 2
    assert link.one(6) is REFUSE
    assert link.one(5, refused={"t"}) is REFUSE
    assert [link.one(5), link.one(6)] == [PASS, PASS]
    assert link.produce(SequencedBatch("t", 2, 7, 0, 5), refused={"t"}) == Plan((REFUSE,))
    assert link.sequences.statistics() == {"awaited": 2, "by_order": 1, "at_limit": 1}


def test_full_table_closes_a_transactions_connection():
    link = Connection(limit=1)
    link.one(5, refused={"t"}, transactional=True)
    plan = link.produce(
        SequencedBatch("t", 0, 7, 0, 6), SequencedBatch("u", 0, 7, 0, 0), transactional=True
    )
    assert (plan.must_wait, plan.must_close) == (False, True)
    assert len(link.sequences) == 1


def test_full_table_forgets_old_refusals():
    link = Connection(limit=2)
    link.one(5, refused={"t"}, now_s=0.0)
    assert link.one(6, now_s=1e6) is REFUSE
    link.produce(SequencedBatch("u", 0, 7, 0, 5), refused={"u"}, now_s=10.0)
    late = SequencedBatch("v", 0, 7, 0, 5)
    assert link.produce(late, refused={"v"}, now_s=599.9).must_wait
    assert link.produce(late, refused={"v"}, now_s=600.0).must_wait, "it makes room for the next"
    assert link.produce(late, refused={"v"}, now_s=600.0) == Plan((REFUSE,))
    assert link.one(6) is PASS


def test_planning_has_no_effect():
    link = Connection()
    batch = SequencedBatch("t", 0, 7, 0, 5)
    for _ in range(2):
        plan = plan_refusal(
            [batch], lambda _batch: True, link.sequences, ordinal=1, acks=-1, is_transactional=False
        )
        assert (plan.refuses, plan.passes) == (True, False)
    assert len(link.sequences) == 0
