"""Any sequence of offers, answers, cancellations and turns keeps the invariants of the queues."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.classify import CONTROL
from isolation.limits import AdaptiveLimit, AdaptiveRule, FixedLimit
from isolation.queues import QueueRule, Queues
from isolation.tickets import State, Waits
from tests.kit.examples import examples

RULE = QueueRule(
    data_queues=2,
    max_waiting=3,
    max_waiting_bytes=40,
    max_wait_s=1.0,
    release_after_s=0.4,
    lingering_polls=2,
)
LIMIT = AdaptiveRule(
    floor=1, ceiling=4, initial=2, window_samples=2, window_max_s=0.5, quiet_for_s=5.0
)

RULES = (
    (RULE, LIMIT),
    (replace(RULE, max_waiting=1, max_waiting_bytes=10, max_wait_s=0.3), replace(LIMIT, ceiling=2)),
    (replace(RULE, max_wait_s=0.0, release_after_s=0.1), replace(LIMIT, floor=2)),
)
"""Rules within the bounds of the first, which `check` goes by."""

OFFERS = st.tuples(
    st.just("offer"),
    st.sampled_from([CONTROL, 0, 1]),
    st.integers(1, 30),
    st.sampled_from([None, "c", "d"]),
    st.sampled_from(Waits),
    st.booleans(),
)
STEPS = st.one_of(
    OFFERS,
    st.tuples(
        st.just("take"),
        st.sampled_from([CONTROL, 0, 1]),
        st.sampled_from([None, "c", "d"]),
        st.sampled_from([Waits.NOTHING, Waits.ACKS]),
    ),
    st.tuples(st.sampled_from(["finish", "cancel", "release"]), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("turn"), st.sampled_from([0.1, 0.5, 1.0])),
    st.tuples(st.just("change"), st.integers(0, 2)),
)


class Taken:
    """What went by `take`, its own ticket."""

    is_measured = True

    def __init__(self, queue, waits):
        self.queue, self.waits = queue, waits
        self.since_s, self.holds_slot = -1.0, False
        self.state: Any = None


class Model:
    """Drives the queues and remembers every ticket, and per order key the order of offers not yet admitted."""

    def __init__(self):
        self.queues = Queues(RULE, FixedLimit(2), lambda: AdaptiveLimit(LIMIT))
        self.now_s = 0.0
        self.tickets = []
        self.order_keys: dict[Any, list[Any]] = {"c": [], "d": []}

    def step(self, name, *args):
        getattr(self, name)(*args)
        self.check()

    def offer(self, queue, size_bytes, order_key, waits, never_refused):
        ticket = self.queues.offer(
            len(self.tickets),
            queue=queue,
            size_bytes=size_bytes,
            now_s=self.now_s,
            order_key=order_key,
            waits=waits,
            never_refused=never_refused,
        )
        assert ticket.state is not State.REFUSED or not never_refused
        self.tickets.append(ticket)
        if order_key is not None and ticket.state is not State.REFUSED:
            self.order_keys[order_key].append(ticket)
        if ticket.state is State.ADMITTED:
            self.admit([ticket])

    def take(self, queue, order_key, waits):
        """It goes where an offer would be admitted at once in that queue, and only there."""
        taken, before = Taken(queue, waits), self.queues.statistics(self.now_s)[queue]
        has_slot = not before["waiting"] and before["in_use"] < before["slots"]
        is_next = order_key is None or not self.order_keys[order_key]
        assert self.queues.take(taken, order_key, self.now_s) is (has_slot and is_next)
        if taken.state is State.ADMITTED:
            self.tickets.append(taken)
        else:
            assert self.queues.statistics(self.now_s)[queue] == before

    def admit(self, tickets):
        for ticket in tickets:
            assert ticket.state is State.ADMITTED
            if ticket.order_key is not None:
                assert self.order_keys[ticket.order_key].pop(0) is ticket, (
                    "an order key was overtaken"
                )

    def pick(self, index, *states):
        found = [ticket for ticket in self.tickets if ticket.state in states]
        return found[index % len(found)] if found else None

    def finish(self, index, ok):
        if (ticket := self.pick(index, State.ADMITTED)) is not None:
            self.admit(self.queues.finished(ticket, self.now_s, 0.05, ok))

    def cancel(self, index, _ok):
        ticket = self.pick(index, State.ADMITTED, State.WAITING)
        if ticket is not None:
            if ticket.state is State.WAITING and ticket.order_key is not None:
                self.order_keys[ticket.order_key].remove(ticket)
            self.admit(self.queues.cancel(ticket, self.now_s))

    def release(self, index, _ok):
        if (ticket := self.pick(index, State.ADMITTED)) is not None:
            self.admit(self.queues.release_early(ticket, self.now_s))

    def change(self, index):
        """Other rules: who waits or is served stays so."""
        before = [ticket.state for ticket in self.tickets]
        rule, limit = RULES[index]
        self.queues.set_rules(rule, FixedLimit(2), lambda: AdaptiveLimit(limit))
        assert [ticket.state for ticket in self.tickets] == before
        self.turn(0.0)

    def turn(self, delay_s):
        self.now_s += delay_s
        turn = self.queues.turn(self.now_s)
        self.admit(turn.admitted)
        for ticket in turn.expired:
            assert not ticket.never_refused
            if ticket.order_key is not None:
                self.order_keys[ticket.order_key].remove(ticket)
        due_s = self.queues.next_due_s(self.now_s)
        assert due_s is None or due_s > self.now_s, "a turn leaves nothing due"

    def check(self):
        for queue, said in self.queues.statistics(self.now_s).items():
            own = [ticket for ticket in self.tickets if ticket.queue == queue]
            waiting = [ticket for ticket in own if ticket.state is State.WAITING]
            refusable = [ticket for ticket in waiting if not ticket.never_refused]
            assert said["in_use"] == sum(ticket.holds_slot for ticket in own) <= 4
            assert said["waiting"] == len(waiting)
            assert said["waiting_bytes"] == sum(ticket.size_bytes for ticket in waiting)
            assert len(refusable) <= RULE.max_waiting
            assert said["lingering_polls"] <= RULE.lingering_polls
            assert said["lingering_acks"] <= 4 * RULE.lingering_acks_per_slot
            admitted = [ticket for ticket in own if ticket.state is State.ADMITTED]
            assert (
                len(admitted) == said["in_use"] + said["lingering_polls"] + said["lingering_acks"]
            )


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_the_invariants_hold_after_every_step(steps):
    model = Model()
    for step in steps:
        model.step(*step)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_everything_ends_when_the_broker_answers_everything(steps):
    model = Model()
    for step in steps:
        model.step(*step)
    for _ in range(len(model.tickets) + 1):
        model.step("finish", 0, True)
        model.step("turn", 0.5)
    assert all(t.state not in (State.ADMITTED, State.WAITING) for t in model.tickets)
    assert model.order_keys == {"c": [], "d": []}
    assert model.queues._order_keys == {}
