"""Isolation switched off and on again: who waits goes on in order, no topic hangs, nothing is lost count of."""

from typing import Any

import pytest

from proxy.scheduling.request_scheduler import OPEN_SLOTS
from tests.proxy.played_scheduler import Link, held, make_broker
from tests.proxy.scheduling.test_request_scheduler import Asking, queue


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    return make_broker(monkeypatch)


def switch(broker: Any, enabled: bool) -> None:
    broker.scheduler.set_rules(broker.config.isolation.model_copy(update={"enabled": enabled}))


def test_who_waits_goes_on_in_order_and_slots_come_back(broker: Any) -> None:
    log: list[str] = []
    first, same = Link(broker), Link(broker)
    asked = [Asking(broker, first, log, "1")]
    asked += [Asking(broker, same, log, name, is_ordered=True) for name in ("2", "3")]
    assert [line for line in log if "begins" in line] == ["1 begins"]
    switch(broker, enabled=False)
    asked.append(Asking(broker, same, log, "4", is_ordered=True))
    begun = [line for line in log if "begins" in line]
    assert begun == ["1 begins", "2 begins", "3 begins", "4 begins"]
    assert queue(broker)["slots"] == OPEN_SLOTS
    assert broker.scheduler.report()["enabled"] is False
    switch(broker, enabled=True)
    asked.append(Asking(broker, Link(broker), log, "5"))
    assert log[-1] != "5 ends", "four are in service, and there is one slot again"
    for one in asked[:4]:
        broker.scheduler.answered(one.entry)
    assert log[-1] == "5 ends"
    broker.scheduler.answered(asked[4].entry)
    assert (held(broker), queue(broker)["in_use"]) == (0, 0)
    assert (len(broker.scheduler.lines), len(broker.scheduler._of_connection)) == (0, 0)


def test_a_topic_that_hangs_is_asked_at_once_and_hangs_again_only_by_its_age(broker: Any) -> None:
    link = Link(broker)
    link.produce(("slow", 0, -1))
    broker.clock.advance(broker.scheduler.hang_after_s + 1)
    broker.scheduler.tick(broker.clock.now)
    assert broker.scheduler.report()["topics"]["hanging"] == 1
    switch(broker, enabled=False)
    assert broker.scheduler.report()["topics"]["hanging"] == 0
    other = Link(broker)
    other.produce(("slow", 0, -1))
    assert other.seen() == [[("slow", 0)]], "it is not refused"
    broker.clock.advance(3600)
    broker.scheduler.tick(broker.clock.now)
    assert broker.scheduler.report()["topics"]["hanging"] == 0
    switch(broker, enabled=True)
    for one in (link, other):
        one.reply()
    assert held(broker) == 0
