"""A member that librdkafka would let wait for ever comes back; one that it retries for stays."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError

from tests.chaos.history import Group
from tests.chaos.readers import CLASSIC, NOT_CLOSED, Member, close

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


class Told:
    """What `poll` gives for an error; `words` as in librdkafka's rdkafka_assignment.c."""

    def __init__(self, code: int, words: str) -> None:
        self._error = KafkaError(code, words)

    def error(self) -> KafkaError:
        return self._error


@pytest.mark.parametrize(
    ("words", "comes_back"),
    [
        (
            'Failed to fetch committed offsets for partitions in group "g": Broker: Not coordinator',
            True,
        ),
        ('Failed to fetch committed offset for group "g" topic t [0]: Broker: Unknown topic', True),
        ("FindCoordinator response error: Broker: Not coordinator", False),
    ],
)
def test_a_member_without_offsets_comes_back(words: str, comes_back: bool) -> None:
    member = Member(Group("g", ("t",), False), "unused:1", CLASSIC)
    member._take(cast("Message", Told(KafkaError.NOT_COORDINATOR, words)))
    assert member.errors == {"NOT_COORDINATOR": 1}
    assert member._leaving.is_set() is comes_back


class Closing:
    """A consumer that has closed when `event` says so."""

    def __init__(self, event: threading.Event) -> None:
        self.close = event.wait


def test_a_consumer_that_does_not_close_holds_nobody_up() -> None:
    event = threading.Event()
    errors: dict[str, int] = {}
    close(cast("Consumer", Closing(event)), errors, within_s=0.05)
    assert errors == {NOT_CLOSED: 1}
    event.set()
    close(cast("Consumer", Closing(event)), errors)
    assert errors == {NOT_CLOSED: 1}
