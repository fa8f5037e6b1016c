"""Which mode holds for a connection and a topic, and which connections are in a share."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from proxy.config.cache_modes import RANK, TOPICS_LIMIT, CacheModes, find_lowest, find_place
from proxy.config.model import Config

if TYPE_CHECKING:
    from proxy.config.model import CacheMode

LISTENER = {"listen": "127.0.0.1:9092", "upstream": "127.0.0.1:19092"}
MODES: tuple[CacheMode, ...] = "serve", "observe", "off"


def build(listener: str | None, **cache: Any) -> Config:
    entry = LISTENER | ({} if listener is None else {"cacheMode": listener})
    tree = {"listeners": [entry], "cache": {"size": "64MiB", **cache}}
    return Config.model_validate(tree, by_alias=True, by_name=False)


@pytest.mark.parametrize(("process", "listener"), [*product(MODES, (*MODES, None))])
def test_the_lowest_of_process_and_listener_holds(process: CacheMode, listener: CacheMode) -> None:
    use = CacheModes(build(listener, mode=process)).find("default", 1)
    assert use.mode == find_lowest(process, listener or "serve")
    assert RANK[use.mode] == min(RANK[process], RANK[listener or "serve"])
    assert (use.serves, use.observes) == (use.mode == "serve", use.mode == "observe")


def test_the_first_pattern_of_a_topic_counts() -> None:
    entries = [{"pattern": "a*", "mode": "off"}, {"pattern": "*b", "mode": "observe"}]
    modes = CacheModes(build(None, topicModes=entries))
    topics = modes.find("default", 1).topics
    assert topics is not None
    assert [topics.find(name) for name in ("ab", "bb", "c", "A")] == [
        "off",
        "observe",
        "serve",
        "serve",
    ]
    assert modes.observes
    for number in range(3 * TOPICS_LIMIT):
        topics.find(f"c{number}")
    assert len(topics._known) <= TOPICS_LIMIT
    assert (
        CacheModes(build(None, topicModes=[{"pattern": "*", "mode": "serve"}]))
        .find("default", 1)
        .topics
        is None
    )


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.99, 1.0])
def test_a_share_is_spread_evenly_and_stays_the_same(share: float) -> None:
    modes = CacheModes(build(None), build("off"), share)
    chosen = [number for number in range(1, 1001) if modes.is_trial(number)]
    assert abs(len(chosen) - 1000 * share) <= 3
    for number in range(1, 1001):
        mode = "off" if number in set(chosen) else "serve"
        assert modes.find("default", number).mode == mode
    assert all(0 <= find_place(number) < 1 for number in range(10_000))
    assert not CacheModes(build(None)).is_trial(1)
