"""Queues and refusals together, as Produce uses them: one connection, a slow topic.

`Handler` is the order of calls in small: plan, offer, plan again when admitted, remember when refused.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.limits import FixedLimit
from isolation.queues import QueueRule, Queues
from isolation.refusals import (
    MOST_IN_FLIGHT,
    PartitionVerdict,
    RefusedSequences,
    SequencedBatch,
    plan_refusal,
)
from isolation.tickets import State, Waits
from tests.isolation.queued_item import Item

RULE = QueueRule(data_queues=1, max_waiting=2, max_wait_s=1.0, release_after_s=0.5)


class Handler:
    """Idempotent Produces of one connection to one partition, one record each."""

    def __init__(self):
        self.queues: Queues[Item] = Queues(RULE, FixedLimit(100), lambda: FixedLimit(1))
        self.sequences = RefusedSequences()
        self.now_s = 0.0
        self.ordinal = 0
        self.forwarded = []  # in order
        self.in_service = []
        self.answered = 0
        self.refused = []  # replies on their way, in order

    def plan(self, ordinal, sequence, is_refused):
        batches = [SequencedBatch("t", 0, 7, 0, sequence)]
        plan = plan_refusal(
            batches,
            lambda _batch: is_refused,
            self.sequences,
            ordinal=ordinal,
            acks=-1,
            is_transactional=False,
        )
        return batches, plan

    def decide(self, ordinal, sequence, is_refused):
        """Whether a request is refused, now that it is to be forwarded or refused."""
        batches, plan = self.plan(ordinal, sequence, is_refused)
        assert not (plan.must_wait or plan.must_close)
        self.sequences.apply(batches, plan, ordinal, self.now_s)
        if plan.verdicts == (PartitionVerdict.REFUSE,):
            self.refused.append(sequence)
        return plan.refuses

    def receive(self, sequence):
        self.ordinal += 1
        ordinal = self.ordinal
        if not self.queues.order_key_waits("c") and self.plan(ordinal, sequence, False)[1].refuses:
            self.decide(ordinal, sequence, False)
            return
        item = Item((ordinal, sequence), size_bytes=1, waits=Waits.ACKS)
        state = self.queues.offer(item, self.now_s, "c")
        if state is State.REFUSED:
            self.decide(ordinal, sequence, True)
        elif state is State.ADMITTED:
            self.admitted([item])

    def admitted(self, items):
        while items:
            item = items.pop(0)
            ordinal, sequence = item.name
            if self.decide(ordinal, sequence, False):
                items += self.queues.finished(item, self.now_s, None)
            else:
                self.forwarded.append(sequence)
                self.in_service.append(item)

    def answer(self):
        if self.in_service:
            self.answered += 1
            self.admitted(self.queues.finished(self.in_service.pop(0), self.now_s, 0.01))

    def wait(self, delay_s):
        self.now_s += delay_s
        turn = self.queues.turn(self.now_s)
        for item in turn.expired:
            ordinal, sequence = item.name
            self.decide(ordinal, sequence, True)
        self.admitted(turn.admitted)


def test_refused_and_expired_batches_return_in_order():
    handler = Handler()
    for sequence in range(3):
        handler.receive(sequence)
    handler.now_s = 0.4
    handler.receive(3)
    assert (handler.forwarded, handler.refused) == ([0], [3]), "two wait, which is the bound"
    handler.wait(0.6)
    assert (handler.forwarded, handler.refused) == ([0, 1], [3, 2]), "1 got the slot released early"
    for sequence in (3, 4):
        handler.receive(sequence)
    assert handler.refused == [3, 2, 3, 4], "2 has yet to return"
    for sequence in (2, 3, 4):
        handler.receive(sequence)
        handler.answer()
    handler.answer()
    handler.answer()
    assert handler.forwarded == [0, 1, 2, 3, 4]
    assert len(handler.sequences) == 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["send", "answer", "refusal", "wait"]), max_size=120),
    st.integers(1, 10),
)
def test_broker_gets_each_sequence_once_in_order(steps, total):
    """As many in flight as an idempotent producer may have (max.in.flight.requests.per.connection)."""
    handler, to_send = Handler(), list(range(total))
    for step in steps + ["send", "answer", "refusal", "wait"] * 60:
        in_flight = total - len(to_send) - handler.answered
        if step == "send" and to_send and in_flight < MOST_IN_FLIGHT:
            handler.receive(to_send.pop(0))
        elif step == "answer":
            handler.answer()
        elif step == "wait":
            handler.wait(0.4)
        elif step == "refusal" and handler.refused:
            to_send = sorted([handler.refused.pop(0), *to_send])
    assert handler.forwarded == list(range(total))
