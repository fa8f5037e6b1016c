"""Producers against random refusals: no record is lost, doubled or reordered.

The model broker checks sequences as ProducerAppendInfo.checkSequence does: any first sequence is accepted
where it has no state, which is what refusals without an order rule would run into. The model client keeps five
requests in flight and repeats what was refused in order, as Java, librdkafka and franz-go do.
"""

from collections import deque
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.refusals import (
    NO_PRODUCER_ID,
    PartitionVerdict,
    RefusedSequences,
    SequencedBatch,
    plan_refusal,
)
from tests.kit.examples import examples

IN_FLIGHT = 5


class Log:
    """A partition: what was appended, in order."""

    def __init__(self):
        self.appended = []
        self.next_sequence = None

    def append(self, batch):
        """True for success, False for OUT_OF_ORDER_SEQUENCE_NUMBER."""
        if batch.producer_id != NO_PRODUCER_ID:
            if self.next_sequence is not None and batch.base_sequence != self.next_sequence:
                return batch.base_sequence < self.next_sequence  # a duplicate is a success
            self.next_sequence = batch.base_sequence + 1
        return True


def tell(full, _batch):
    """Whether the queue is full, whatever is asked of it."""
    return full


def run(choices, total, producer_id, in_flight):
    """Send numbers 0 to `total` through refusals and delays that `choices` draws; the log."""
    log, sequences = Log(), RefusedSequences()
    to_send = deque(range(total))
    received: deque[Any] = deque()
    replies: deque[Any] = deque()
    ordinal = decided = 0
    steps = 0
    unanswered: set[int] = set()
    while to_send or received or replies:
        steps += 1
        choice = next(choices) if steps < 2000 else steps % 3
        if choice == 0 and to_send and len(unanswered) < in_flight:
            number = to_send.popleft()
            unanswered.add(number)
            ordinal += 1
            received.append((ordinal, number))
        elif choice in (1, 3) and received:
            decided, number = received.popleft()  # one order key: in the order of arrival
            sequence = number if producer_id != NO_PRODUCER_ID else -1
            batch = SequencedBatch("t", 0, producer_id, 0, sequence)
            is_full = choice == 3
            plan = plan_refusal(
                [batch],
                partial(tell, is_full),
                sequences,
                ordinal=decided,
                acks=-1,
                is_transactional=False,
            )
            sequences.apply([batch], plan, decided, 0.0)
            if plan.verdicts == (PartitionVerdict.PASS,):
                assert log.append(batch), "OUT_OF_ORDER_SEQUENCE_NUMBER"
                log.appended.append(number)
                replies.append((decided, number, True))
            else:
                replies.append((decided, number, False))
        elif choice == 2 and replies:
            answered, number, ok = replies.popleft()
            unanswered.discard(number)
            if not ok:
                sequences.reply_left(answered, last_received=ordinal)
                to_send = deque(sorted((number, *to_send)))
    return log


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=50, max_size=300), st.integers(1, 12))
def test_an_idempotent_producer_loses_and_reorders_nothing(drawn, total):
    log = run(iter(drawn + [0, 1, 2] * 1000), total, 7, IN_FLIGHT)
    assert log.appended == list(range(total))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=50, max_size=300), st.integers(1, 12))
def test_one_request_in_flight_keeps_order_without_id(drawn, total):
    log = run(iter(drawn + [0, 1, 2] * 1000), total, NO_PRODUCER_ID, 1)
    assert log.appended == list(range(total))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=50, max_size=300), st.integers(1, 12))
def test_producer_without_id_loses_nothing(drawn, total):
    log = run(iter(drawn + [0, 1, 2] * 1000), total, NO_PRODUCER_ID, IN_FLIGHT)
    assert sorted(log.appended) == list(range(total))
