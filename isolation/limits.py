"""How many requests of a queue may be in service at the broker: a fixed number, or one that follows latency.

Owns: the limit's number and how it moves. Must not know: queues, requests, which of them waited on purpose
(the caller hands in latencies of service only). Invariants: floor <= limit <= ceiling; the limit moves once a
window, never on one sample; it grows only on windows in which half of it was busy, and shrinks otherwise.

AdaptiveLimit is of the gradient kind (Netflix concurrency-limits, TCP Vegas): where twice the requests only
take twice as long, more slots bring nothing but a queue inside the broker, on handler threads that all
topics share. A limit far from what is allowed doubles with each window; near it, the limit grows by a share of
its root. A log whose fsyncs are serial is held at a handful of slots; a topic whose acknowledgements merely wait
for followers, at whatever concurrency, keeps its slots. While two are stuck, only the floor is let in.
The latency without a queue is not known, it is the least window of the last minute or two, measured anew by a
short dip (as BBR does for its round-trip time).

A machine that is busy makes all queues slower. What they share (`peers`) is taken out of a limit's latency before it is
judged: it moves no limit, and while there is any, no dip is made, which would measure it.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Protocol

from isolation.peers import Peers


class Limit(Protocol):
    """What a queue asks of its limit."""

    @property
    def floor(self) -> int:
        """Requests that may always be in service."""
        ...

    def slots_at(self, now_s: float, oldest_s: float = 0.0) -> int:
        """Requests that may be in service, two of which have been unanswered for `oldest_s`."""
        ...

    def sample(self, now_s: float, latency_s: float, in_use: int, ok: bool) -> None:
        """A request was answered after `latency_s` of service while `in_use` slots were taken; `ok` is False
        if it timed out or was dropped.
        """
        ...

    def replaced_by(self, other: "Limit") -> "Limit":
        """What limits from now on, where `other` was configured in its place: itself with the other's rule, if both
        are of one kind, so that what it has learnt stays.
        """
        ...

    def statistics(self) -> dict[str, float]:
        """Its state, to be shown: the limit in slots, at least."""
        ...


class FixedLimit:
    """A number that does not move."""

    __slots__ = ("_slots",)

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a limit of {slots} slots lets nothing through")
        self._slots = slots

    @property
    def floor(self) -> int:
        """The number."""
        return self._slots

    def slots_at(self, now_s: float, oldest_s: float = 0.0) -> int:
        """The number."""
        return self._slots

    def sample(self, now_s: float, latency_s: float, in_use: int, ok: bool) -> None:
        """Nothing is learnt."""

    def replaced_by(self, other: Limit) -> Limit:
        """The other."""
        return other

    def statistics(self) -> dict[str, float]:
        """The limit, in slots."""
        return {"slots": self._slots}


DROPPED_SHRINKS = 0.7
SHRINKS_AT_MOST = 0.5  # in one window
UNFELT_S = 0.01
"""A mean latency in seconds up to which no limit shrinks: nobody behind such requests waits longer than they do."""
SLOW_S = 0.1  # a quiet latency above this: each slot is a handler lost for so long, so they are granted with care
SLOW_TOLERANCE = 1.5
UNUSED_LEAST = 6.0  # slots that nobody uses are taken back to these: the day the disk hangs, all are filled at once
STALLED_TIMES = 10.0  # the quiet latency, and the request is stuck; between these two
STALLED_LEAST_S, STALLED_MOST_S = 0.05, 0.5
QUIET_ASSUMED_S = 0.025  # until the quiet latency is known
LATENCY_LEAST_S = 1e-6
DIP_SAMPLES = 3  # a dip costs throughput: it ends with fewer samples than a window
DIP_MAX_WINDOWS = 3  # of `window_max_s`: the old requests are to finish, and a few new ones


@dataclass(frozen=True, slots=True)
class AdaptiveRule:
    """`tolerance`: how many times the quiet latency is still no queue. `window_s` and `window_samples`: a
    window ends when both are reached, or at `window_max_s` with what there is. `quiet_for_s`: how long a
    quiet latency is believed before it is measured anew.
    """

    floor: int = 2
    ceiling: int = 64
    initial: int = 8
    tolerance: float = 2.0
    smoothing: float = 0.3
    window_s: float = 0.1
    window_samples: int = 10
    window_max_s: float = 2.0
    quiet_for_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.initial <= self.ceiling:
            raise ValueError(f"not 1 <= {self.floor} <= {self.initial} <= {self.ceiling}")
        if (
            self.tolerance < 1
            or not 0 < self.smoothing <= 1
            or self.quiet_for_s <= DIP_MAX_WINDOWS * self.window_max_s
        ):
            raise ValueError(
                "tolerance >= 1, 0 < smoothing <= 1 and quiet_for_s > 3 * window_max_s are needed"
            )


class AdaptiveLimit:
    """A limit that follows measured latency between a floor and a ceiling."""

    def __init__(self, rule: AdaptiveRule | None = None, peers: Peers | None = None) -> None:
        """`peers`: what the limits toward one broker share; None: it is judged by its own past."""
        self.rule = rule or AdaptiveRule()
        self._peers = peers or Peers()
        self._shared = 1.0  # slowdown that the peers have, too, at the last window's end
        self._window_least_s = min(self.rule.window_s, self.rule.window_max_s)
        self._limit = float(self.rule.initial)
        self._quiet_s: float | None = None
        self._quiet_until_s = 0.0
        self._dip_until_s: float | None = None
        self._drained_s: float | None = None
        self._begun_s: float | None = None
        self._count = self._used = self._dropped = 0
        self._sum_s = 0.0
        self._windows = self._dips = self._shrunk = 0

    @property
    def floor(self) -> int:
        """The rule's."""
        return self.rule.floor

    def slots_at(self, now_s: float, oldest_s: float = 0.0) -> int:
        """Requests that may be in service; the floor while a dip lasts, at most three `window_max_s`, and while
        two are stuck: latencies tell of a disk that hangs only after its requests were answered, and by
        then they would all be there.
        """
        if self._dip_until_s is not None and now_s < self._dip_until_s:
            return self.rule.floor
        if oldest_s > STALLED_LEAST_S and oldest_s > self._stuck_after_s():
            return self.rule.floor
        return int(self._limit)

    def _stuck_after_s(self) -> float:
        quiet_s = QUIET_ASSUMED_S if self._quiet_s is None else self._quiet_s
        after_s = min(max(STALLED_TIMES * quiet_s, STALLED_LEAST_S), STALLED_MOST_S)
        return max(after_s, self.rule.tolerance * quiet_s) * self._shared

    def sample(self, now_s: float, latency_s: float, in_use: int, ok: bool) -> None:
        """See `Limit`. Latencies of waiting (long polls, followers) do not belong here."""
        if self._dip_until_s is not None and not self._counts_in_dip(now_s, latency_s, in_use):
            return
        if self._begun_s is None:
            self._begun_s = now_s
        self._count += 1
        self._sum_s += latency_s if latency_s > LATENCY_LEAST_S else LATENCY_LEAST_S
        if in_use > self._used:
            self._used = in_use
        if not ok:
            self._dropped += 1
        if now_s - self._begun_s >= self._window_least_s:
            self._may_end_window(now_s, now_s - self._begun_s)

    def _may_end_window(self, now_s: float, length_s: float) -> None:
        wanted = self.rule.window_samples if self._dip_until_s is None else DIP_SAMPLES
        if (
            self._count >= wanted and length_s >= self.rule.window_s
        ) or length_s >= self.rule.window_max_s:
            self._end_window(now_s, length_s)

    def _counts_in_dip(self, now_s: float, latency_s: float, in_use: int) -> bool:
        """Whether a request was sent after the slots of before the dip had emptied, so that it met no queue of
        theirs. A dip in which that did not happen ends without having learnt anything.
        """
        if now_s >= (self._dip_until_s or 0.0):
            self._believe(now_s, latency_s if self._quiet_s is None else self._quiet_s)
            return True
        if self._drained_s is None and in_use <= self.rule.floor:
            self._drained_s = now_s
        return self._drained_s is not None and now_s - latency_s >= self._drained_s

    def _end_window(self, now_s: float, length_s: float) -> None:
        mean_s, used, dropped = self._sum_s / self._count, self._used, self._dropped
        busy = (
            self._sum_s / length_s if length_s > 0 else used
        )  # on average over time (Little): bursts are short
        self._new_window()
        self._windows += 1
        if self._quiet_s is not None:
            self._peers.note(self, mean_s / self._quiet_s, now_s)
        self._shared = self._peers.slowdown_beside(self, now_s)
        if dropped:
            self._shrunk += 1
            self._set(self._limit * DROPPED_SHRINKS)
            return
        if self._measures_quiet(now_s, mean_s, used) or self._quiet_s is None:
            return
        is_slow = self._quiet_s > SLOW_S
        tolerance = min(self.rule.tolerance, SLOW_TOLERANCE) if is_slow else self.rule.tolerance
        allowed_s = max(tolerance * self._quiet_s * self._shared, UNFELT_S)
        gradient = max(SHRINKS_AT_MOST, min(1.0, allowed_s / mean_s))
        growth, share = sqrt(self._limit) * (0.5 if is_slow else 1), self.rule.smoothing
        if mean_s <= allowed_s / 2 and not is_slow:
            growth, share = self._limit, 1.0
        wanted = self._limit * gradient + growth
        if wanted > self._limit and busy < int(self._limit) / 2:
            wanted, share = min(self._limit, max(UNUSED_LEAST, 3.0 * busy)), self.rule.smoothing
        self._shrunk += wanted < self._limit
        self._set(self._limit + share * (wanted - self._limit))

    def _measures_quiet(self, now_s: float, mean_s: float, used: int) -> bool:
        """Keep the quiet latency; True for a window that must not move the limit, being of a dip or before
        one.
        """
        is_shared = self._quiet_s is not None and self._shared > self.rule.tolerance
        if self._dip_until_s is not None:
            self._believe(now_s, self._quiet_s if is_shared and self._quiet_s else mean_s)
            return True
        if self._quiet_s is not None and mean_s <= self._quiet_s:
            self._believe(now_s, mean_s)
            return False
        due = self._quiet_s is None or now_s >= self._quiet_until_s
        if due and is_shared:
            return False  # what would be measured is what all share
        if due and used <= self.rule.floor:
            self._believe(now_s, mean_s)
            return False
        if due:
            self._dip_until_s = now_s + DIP_MAX_WINDOWS * self.rule.window_max_s
            self._dips += 1
        return due

    def _new_window(self) -> None:
        self._begun_s = None
        self._count = self._used = self._dropped = 0
        self._sum_s = 0.0

    def _believe(self, now_s: float, quiet_s: float) -> None:
        """A quiet latency that has become long, and much longer than it was: whether it is one that concurrency
        lengthens is found out from the floor, not from slots that were granted for a fast one.
        """
        if self._quiet_s is not None and quiet_s > max(SLOW_S, self.rule.tolerance * self._quiet_s):
            self._limit = float(self.rule.floor)
        self._quiet_s = quiet_s
        self._dip_until_s = self._drained_s = None
        self._quiet_until_s = now_s + self.rule.quiet_for_s

    def replaced_by(self, other: Limit) -> Limit:
        """Itself, within the bounds of another adaptive limit; else the other."""
        if not isinstance(other, AdaptiveLimit):
            self._peers.forget(self)
            return other
        self.rule = other.rule
        self._window_least_s = min(self.rule.window_s, self.rule.window_max_s)
        self._set(self._limit)
        return self

    def _set(self, limit: float) -> None:
        self._limit = max(float(self.rule.floor), min(float(self.rule.ceiling), limit))

    def statistics(self) -> dict[str, float]:
        """The limit in slots, the quiet latency in seconds (-1 if unknown), the slowdown that peers share, counts."""
        return {
            "slots": int(self._limit),
            "shared_slowdown": self._shared,
            "quiet_s": -1.0 if self._quiet_s is None else self._quiet_s,
            "windows": self._windows,
            "dips": self._dips,
            "shrunk": self._shrunk,
        }
