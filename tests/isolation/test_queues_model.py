"""Any sequence of offers, answers, cancellations and turns keeps the invariants of the queues."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.classify import CONTROL
from isolation.limits import AdaptiveLimit, AdaptiveRule, FixedLimit
from isolation.queues import QueueRule, Queues
from isolation.tickets import State, Waits
from tests.isolation.queued_item import Item
from tests.kit.examples import examples

RULE = QueueRule(
    data_queues=2,
    max_waiting=3,
    max_waiting_bytes=40,
    max_wait_s=1.0,
    release_after_s=0.4,
    lingering_polls=2,
    unread=2,
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
        st.just("lift"),
        st.sampled_from([CONTROL, 0, 1]),
        st.sampled_from([None, "c", "d"]),
        st.sampled_from([Waits.NOTHING, Waits.ACKS]),
    ),
    st.tuples(st.sampled_from(["land", "drop"]), st.integers(0, 20), st.booleans()),
    st.tuples(
        st.sampled_from(["finish", "cancel", "release", "release_unread"]),
        st.integers(0, 20),
        st.booleans(),
    ),
    st.tuples(st.just("turn"), st.sampled_from([0.1, 0.5, 1.0])),
    st.tuples(st.just("change"), st.integers(0, 2)),
)


class Model:
    """Drives the queues and remembers every item, and per order key the order of offers not yet admitted. `lifted`:
    what is counted alone, until it lands or the queues ask for it.
    """

    def __init__(self):
        self.queues: Queues[Item] = Queues(
            RULE, FixedLimit(2), lambda: AdaptiveLimit(LIMIT), self.book
        )
        self.lifted = []
        self.now_s = 0.0
        self.items = []
        self.order_keys: dict[Any, list[Any]] = {"c": [], "d": []}

    def step(self, name, *args):
        getattr(self, name)(*args)
        self.check()

    def offer(self, queue, size_bytes, order_key, waits, never_refused):
        """It is admitted where `lift` would succeed in its queue, and there alone."""
        item = Item(
            None, queue, size_bytes, waits, never_refused, order_key=order_key, link=order_key
        )
        before = self.queues.statistics(self.now_s)[queue]
        has_slot = not before["waiting"] and before["in_use"] < before["slots"]
        is_next = order_key is None or not self.order_keys[order_key]
        state = self.queues.offer(item, self.now_s, order_key)
        assert (state is State.ADMITTED) is (has_slot and is_next)
        assert state is item.state and item.since_s == self.now_s
        assert state is not State.REFUSED or not never_refused
        self.items.append(item)
        if order_key is not None and state is not State.REFUSED:
            self.order_keys[order_key].append(item)
        if state is State.ADMITTED:
            self.admit([item])

    def lift(self, queue, order_key, waits):
        before = self.queues.statistics(self.now_s)[queue]
        has_slot = not before["waiting"] and before["in_use"] < before["slots"]
        is_next = order_key is None or not self.order_keys[order_key]
        is_lifted = self.queues.lift(self.queues.find(queue), order_key, self.now_s)
        assert is_lifted is (has_slot and is_next)
        if is_lifted:
            self.lifted.append(Item(None, queue, waits=waits, since_s=self.now_s))
        else:
            assert self.queues.statistics(self.now_s)[queue] == before

    def book(self):
        """What was lifted is in service from now on."""
        lifted, self.lifted = self.lifted, []
        self.items += lifted
        self.queues.note(lifted)

    def land(self, index, _ok):
        if self.lifted:
            item = self.lifted.pop(index % len(self.lifted))
            line = self.queues.find(item.queue)
            if self.now_s >= line.ages_at_s:  # as the scheduler does: such a one is noted first
                self.lifted.append(item)
                self.book()
                self.admit(self.queues.finished(item, self.now_s, 0.05))
                return
            self.queues.land(line, self.now_s, 0.05)
            self.admit(self.queues.admit_waiting(line, self.now_s))

    def drop(self, index, _ok):
        """Nothing waits for what was lifted just now."""
        if self.lifted and self.lifted[-1].since_s == self.now_s:
            line = self.queues.find(self.lifted[-1].queue)
            if not line.waiting:
                self.lifted.pop()
                self.queues.drop(line)

    def admit(self, items):
        for item in items:
            assert item.state is State.ADMITTED
            if item.order_key is not None:
                assert self.order_keys[item.order_key].pop(0) is item, "an order key was overtaken"

    def pick(self, index, *states):
        found = [item for item in self.items if item.state in states]
        return found[index % len(found)] if found else None

    def finish(self, index, ok):
        if (item := self.pick(index, State.ADMITTED)) is not None:
            self.admit(self.queues.finished(item, self.now_s, 0.05, ok))

    def cancel(self, index, _ok):
        item = self.pick(index, State.ADMITTED, State.WAITING)
        if item is not None:
            if item.state is State.WAITING and item.order_key is not None:
                self.order_keys[item.order_key].remove(item)
            self.admit(self.queues.cancel(item, self.now_s))

    def release(self, index, _ok):
        if (item := self.pick(index, State.ADMITTED)) is not None:
            self.admit(self.queues.release_early(item, self.now_s))

    def release_unread(self, index, _ok):
        if (item := self.pick(index, *State)) is not None:
            before = self.queues.statistics(self.now_s)[item.queue]["unread"]
            self.admit(self.queues.release_unread(item, self.now_s))
            after = self.queues.statistics(self.now_s)[item.queue]["unread"]
            assert before == after or (after == before + 1 and not item.holds_slot)

    def change(self, index):
        """Other rules: who waits or is served stays so."""
        before = [item.state for item in self.items]
        rule, limit = RULES[index]
        self.queues.set_rules(rule, FixedLimit(2), lambda: AdaptiveLimit(limit))
        assert [item.state for item in self.items] == before
        self.turn(0.0)

    def turn(self, delay_s):
        self.now_s += delay_s
        turn = self.queues.turn(self.now_s)
        self.admit(turn.admitted)
        for item in turn.expired:
            assert not item.never_refused
            if item.order_key is not None:
                self.order_keys[item.order_key].remove(item)
        due_s = self.queues.next_due_s(self.now_s)
        assert due_s is None or due_s > self.now_s, "a turn leaves nothing due"

    def check(self):
        for queue, said in self.queues.statistics(self.now_s).items():
            own = [item for item in self.items if item.queue == queue]
            lifted = sum(item.queue == queue for item in self.lifted)
            waiting = [item for item in own if item.state is State.WAITING]
            refusable = [item for item in waiting if not item.never_refused]
            assert said["in_use"] == sum(item.holds_slot for item in own) + lifted <= 4
            assert said["waiting"] == len(waiting)
            assert said["waiting_bytes"] == sum(item.size_bytes for item in waiting)
            assert len(refusable) <= RULE.max_waiting
            assert said["lingering_polls"] <= RULE.lingering_polls
            assert said["lingering_acks"] <= 4 * RULE.lingering_acks_per_slot
            admitted = [item for item in own if item.state is State.ADMITTED]
            assert said["unread"] <= RULE.unread
            lingering = said["lingering_polls"] + said["lingering_acks"] + said["unread"]
            assert len(admitted) + lifted == said["in_use"] + lingering


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
    model.book()
    for _ in range(len(model.items) + 1):
        model.step("finish", 0, True)
        model.step("turn", 0.5)
    assert all(one.state not in (State.ADMITTED, State.WAITING) for one in model.items)
    assert model.order_keys == {"c": [], "d": []}
    assert model.queues._order_keys == {}
