"""Cache modes: what memory does for the Fetches of one connection, and for one topic of them. Pure.

Owns the join of `cache.mode`, `listeners[].cacheMode` and `cache.topicModes`, and of the share of connections that
have other values of them. Must not know connections or Fetches. Invariants:
* the lowest of process, listener and topic holds: `off`, `observe`, `serve`.
* a connection's share is its number's, so that a share of 5 % is one of twenty in a row, and stays the same ones.
* all connections that are treated alike have the same `CacheUse`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.model import CacheMode, Config, TopicModeConfig

RANK: Final[dict[CacheMode, int]] = {"off": 0, "observe": 1, "serve": 2}
TOPICS_LIMIT: Final = 4096
"""Topics whose mode is remembered. At the limit all are forgotten, and matched again."""
GOLDEN: Final = 0.6180339887498949
"""Multiples of the golden ratio, without their integers, are spread evenly over 0 to 1."""


def find_lowest(*modes: CacheMode) -> CacheMode:
    """The lowest of some modes; `serve` of none."""
    return min(modes, key=RANK.__getitem__, default="serve")


def find_place(number: int) -> float:
    """The place of a connection's number among all, from 0 to below 1: it is in a share above that."""
    return number * GOLDEN % 1.0


class TopicModes:
    """Modes of topics by their names."""

    __slots__ = ("_entries", "_known")

    def __init__(self, entries: Sequence[TopicModeConfig]) -> None:
        self._entries = tuple((one.pattern, one.mode) for one in entries)
        self._known: dict[str, CacheMode] = {}

    def find(self, name: str) -> CacheMode:
        """The mode of the first pattern that matches; `serve` if none does."""
        known = self._known.get(name)
        if known is not None:
            return known
        matches = (mode for pattern, mode in self._entries if fnmatchcase(name, pattern))
        found: CacheMode = next(matches, "serve")
        if len(self._known) >= TOPICS_LIMIT:
            self._known.clear()
        self._known[name] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class CacheUse:
    """What memory does for a connection. `topics`: the modes of single topics; None: none is below the connection's."""

    mode: CacheMode
    serves: bool
    observes: bool
    topics: TopicModes | None


class CacheModes:
    """The modes in force. `observes`: the estimate of hits is made for some connection or topic."""

    __slots__ = ("_rest", "_trial", "observes", "share")

    def __init__(self, config: Config, trial: Config | None = None, share: float = 0.0) -> None:
        """`trial`: the configuration of a `share` of the connections (0 to 1) in place of `config`; None: of none."""
        self._rest = _build_uses(config)
        self._trial = self._rest if trial is None else _build_uses(trial)
        self.share = 0.0 if trial is None else share
        every = [*self._rest.values(), *self._trial.values()]
        entries = [*config.cache.topic_modes, *(trial.cache.topic_modes if trial else ())]
        self.observes = any(one.observes for one in every) or any(
            one.mode == "observe" for one in entries
        )

    def find(self, listener: str, number: int) -> CacheUse:
        """The use of the connection of that number on a listener of that name."""
        return (self._trial if self.is_trial(number) else self._rest)[listener]

    def is_trial(self, number: int) -> bool:
        """Whether the connection of that number is in the share."""
        return self.share > 0 and find_place(number) < self.share


def _build_uses(config: Config) -> dict[str, CacheUse]:
    modes = config.cache.topic_modes
    topics = TopicModes(modes) if any(one.mode != "serve" for one in modes) else None
    found = {}
    for entry in config.listeners:
        mode = find_lowest(config.cache.mode, entry.cache_mode or "serve")
        found[entry.name] = CacheUse(mode, mode == "serve", mode == "observe", topics)
    return found
