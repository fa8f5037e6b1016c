"""The limit on delayed Fetches, and its change."""

from typing import Any

from proxy.fetch.purgatory import Purgatory


class Waiting:
    """A delayed Fetch that leaves the purgatory when it is answered."""

    def __init__(self, purgatory: Purgatory, link: Any) -> None:
        self._purgatory, self._link = purgatory, link
        self.place: Any = object()
        self.answered = self.evaluated = 0
        self.held: list[Any] = []

    def leave(self) -> None:
        self.answered += 1
        self._purgatory.unpark(self._link, self)

    def evaluate_again(self) -> None:
        self.evaluated += 1

    def drop(self) -> None:
        self._purgatory.unpark(self._link, self)


def park(purgatory: Purgatory, link: Any) -> Waiting | None:
    fetch = Waiting(purgatory, link)
    return fetch if purgatory.park(link, fetch) else None


def test_a_smaller_limit_lets_who_waits_wait() -> None:
    purgatory = Purgatory(2)
    first, second = park(purgatory, "a"), park(purgatory, "b")
    assert first is not None and second is not None
    assert park(purgatory, "c") is None
    purgatory.set_limit(1)
    assert (purgatory.parked, first.answered, second.answered) == (2, 0, 0)
    first.leave()
    assert park(purgatory, "c") is None
    second.leave()
    assert park(purgatory, "c") is not None


def test_all_evaluate_again_when_memory_serves_otherwise() -> None:
    purgatory = Purgatory(10)
    waiting = [park(purgatory, link) for link in ("a", "a", "b")]
    purgatory.evaluate_all()
    assert [one.evaluated for one in waiting if one is not None] == [1, 1, 1]
    assert purgatory.parked == len(waiting)
