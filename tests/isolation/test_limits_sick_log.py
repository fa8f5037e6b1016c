"""Queues and limits by default, before a model broker with a sick log.

`Model` has the handler threads that all topics share. A request of the sick topic holds one while it waits for the log,
which works on one request at a time (UnifiedLog's lock around append and flush).
"""

from heapq import heappop, heappush

import pytest

from isolation.queues import QueueRule, Queues
from isolation.tickets import State, Waits
from proxy.config.isolation import Isolation, build_limit
from tests.isolation.queued_item import Item

HANDLERS = 8
PRODUCERS, THINK_S = 16, 0.2
CONFIG = Isolation()


class Model:
    """Producers of one topic, each with one acks=all request at a time, before a broker; time jumps to what is next."""

    def __init__(self, service_s):
        rule = QueueRule(
            2, max_wait_s=CONFIG.max_queue_wait_s, release_after_s=CONFIG.release_after_s
        )
        self.queues: Queues[Item] = Queues(
            rule, build_limit(CONFIG.control_slots), lambda: build_limit(CONFIG.data_slots)
        )
        self.service_s = service_s
        self.now_s = self.free_s = 0.0
        self.number = 0
        self.events = []
        self.at_broker = self.refused = self.answered = 0
        self.most = []  # (when, requests at the broker)

    def at(self, when_s, what, *args):
        self.number += 1
        heappush(self.events, (when_s, self.number, what, args))

    def send(self):
        item = Item(size_bytes=1, waits=Waits.ACKS)
        state = self.queues.offer(item, self.now_s)
        if state is State.ADMITTED:
            self.go([item])
        elif state is State.REFUSED:
            self.refuse([item])
        self.look()

    def go(self, items):
        for item in items:
            self.at_broker += 1
            self.most.append((self.now_s, self.at_broker))
            self.free_s = max(self.free_s, self.now_s) + self.service_s(self.now_s)
            self.at(self.free_s, self.answer, item, self.now_s)

    def answer(self, item, sent_s):
        self.at_broker -= 1
        self.answered += 1
        self.go(self.queues.finished(item, self.now_s, self.now_s - sent_s))
        self.at(self.now_s + THINK_S, self.send)
        self.look()

    def refuse(self, items):
        self.refused += len(items)
        for _ in items:
            self.at(self.now_s + 0.1, self.send)

    def look(self):
        turn = self.queues.turn(self.now_s)
        self.refuse(turn.expired)
        self.go(turn.admitted)
        due_s = self.queues.next_due_s(self.now_s)
        if due_s is not None:
            self.at(max(due_s, self.now_s + 0.001), self.tick, due_s)

    def tick(self, due_s):
        if self.queues.next_due_s(self.now_s) == due_s or due_s <= self.now_s:
            turn = self.queues.turn(self.now_s)
            self.refuse(turn.expired)
            self.go(turn.admitted)

    def run(self, until_s):
        while self.events and self.events[0][0] < until_s:
            self.now_s, _, what, args = heappop(self.events)
            what(*args)

    def most_at_broker(self, from_s):
        return max(count for when_s, count in self.most if when_s >= from_s)


def started(service_s):
    model = Model(service_s)
    for index in range(PRODUCERS):
        model.at(index * THINK_S / PRODUCERS, model.send)
    return model


@pytest.mark.parametrize("sick_s", [0.1, 0.3, 1.0, 3.0])
def test_sick_log_leaves_handlers_to_others(sick_s):
    model = started(lambda now_s: 0.002 if now_s < 30 else sick_s)
    model.run(200)
    assert model.most_at_broker(30) <= HANDLERS - 2
    assert model.answered > 100 / sick_s / 2, "the sick topic gets on as fast as its log does"


def test_healthy_log_refuses_nothing_and_keeps_slots():
    model = started(lambda _now: 0.002)
    model.run(200)
    assert model.refused == 0
    assert model.answered > 200 * PRODUCERS / (THINK_S + 0.05)


def test_sick_log_recovers():
    model = started(lambda now_s: 1.0 if 30 < now_s < 60 else 0.002)
    model.run(70)
    refused, answered = model.refused, model.answered
    model.run(100)
    assert model.refused == refused
    assert model.answered - answered > 30 * PRODUCERS / (THINK_S + 0.05)
