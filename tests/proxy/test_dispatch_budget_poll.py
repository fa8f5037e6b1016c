"""Budgets of the Python functions that a turn of the hot poll calls: its response and the next request.

Owns the budgets of a turn in which one partition has news, at 1, 16 and 300 hot ones. It must not know how long a call
takes. Calls into C and the standard library are not counted.
"""

from functools import partial

import pytest

from proxy.replica_fetcher.fetcher import SWEEP_S
from tests.proxy.replica_fetcher.poll_connection import END, Hot, build_answer, shown
from tests.proxy.tracing import count_calls

WARM = 3
TURN_CALLS = 108
NEWS_CALLS = 35
SILENT_CALLS = 50
SWEEP_CALLS = 2.1
"""For each hot partition, twice a second."""


@pytest.mark.parametrize("count", [1, 16, 300])
def test_a_turn_with_news_of_one_partition(count: int) -> None:
    hot = Hot(count)
    for _ in range(WARM):
        hot.link.on_answer(hot.build_news())
    hot.clock_s += 0.2
    hot.link.on_answer(hot.build_news())
    hot.clock_s += 0.9  # beyond the leases but for what this turn renews
    sent = len(hot.link.requests)
    answer = hot.build_news()
    calls = count_calls(lambda: hot.link.on_answer(answer))
    assert len(hot.link.requests) == sent + 1
    assert hot.link.named == [0]
    assert len(hot.link.frames[-1]) < 200
    assert all(hot.leases())

    assert calls <= TURN_CALLS


def test_each_further_partition_with_news() -> None:
    """Its HW has grown: another Forebay's, or this one's, producer has written."""
    counts = []
    for news in (1, 17):
        hot = Hot(300)
        answer = build_answer(*(shown(index, END + 1) for index in range(news)))
        counts.append(count_calls(partial(hot.link.on_answer, answer)))
    assert (counts[1] - counts[0]) / 16 <= NEWS_CALLS


@pytest.mark.parametrize("count", [1, 16, 300])
def test_a_turn_without_news(count: int) -> None:
    hot = Hot(count)
    hot.link.answer()
    answer = build_answer()
    calls = count_calls(lambda: hot.link.on_answer(answer))
    assert hot.link.named == []

    assert calls <= SILENT_CALLS


def test_the_sweep_of_all_members() -> None:
    counts = []
    for count in (1, 301):
        hot, answer = Hot(count), build_answer()
        hot.clock_s += SWEEP_S

        def sweep(hot: Hot = hot, answer: bytes = answer) -> None:
            hot.broker.replica_fetcher.tick(hot.clock_s)
            hot.link.on_answer(answer)

        counts.append(count_calls(sweep))

    assert (counts[1] - counts[0]) / 300 <= SWEEP_CALLS
