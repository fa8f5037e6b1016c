"""The bars: what must hold, as functions of figures. No files, no clocks.

Owns every limit of the proof and the rules that make a run invalid. Must not know how a figure was measured.
Invariants: a bar that was not measured is neither held nor broken; a round in which the plain broker suffers
less than a hundredfold proves nothing, nor one whose laggards a cache served, nor one of Forebay's in which a
hypervisor kept the processors to itself (of other arms it is told: no bar is about them); every bar is held in
every round or it is broken; a disk with a limit has bars of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.pollution.arms import FOREBAY, PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Figures = Mapping[str, Any]

DAMAGE = 100.0  # the plain broker's produce p99 under pollution, in units of its quiet one
STOLEN = 0.005  # of the processors' time in any phase: half of what a p99 is made of
CACHED = 1.1  # laggards' bytes for each byte that the disk read
STEADY, STEADY_MS = 1.3, 10.0
SETTLED = 0.05
SHARE = 0.85
FAIR = 0.2
FAIR_S = 40.0  # the settled part of a minute of pollution
CAUGHT_UP_S = 1.0
PAUSE_STEADY, LIMITED_PAUSE_STEADY = 1.5, 2.0
KNOWN_S = 40.0  # until the limit of a volume is recognised
LEVEL = 0.1
ISOLATED = 1.5
HANG = 10.0


class Bar(NamedTuple):
    """`held`: None where it was not measured. `said`: the figures, every round's."""

    name: str
    held: bool | None
    said: str


def is_steady(quiet_ms: float, polluted_ms: float) -> bool:
    """At most 1.3 times quiet, or quiet + 10 ms, whichever is more."""
    return polluted_ms <= max(STEADY * quiet_ms, quiet_ms + STEADY_MS)


def rate_at(sweep: Sequence[tuple[float, float]], target: float) -> float | None:
    """The rate at which an open-loop sweep of (rate, utilisation) reaches `target`; None: it never does.

    Between two steps it is a straight line; utilisation below its neighbours' is noise and is raised.
    """
    points = []
    highest = 0.0
    for rate, util in sorted(sweep):
        highest = max(highest, util)
        points.append((rate, highest))
    for (rate, util), (next_rate, next_util) in pairwise([(0.0, 0.0), *points]):
        if util <= target <= next_util and next_util > util:
            return rate + (next_rate - rate) * (target - util) / (next_util - util)
    return None


def is_fair(rates: Sequence[float]) -> bool:
    """No two differ by more than a fifth of the larger."""
    return max(rates) - min(rates) <= FAIR * max(rates)


def is_stolen(one: Figures) -> bool:
    """Whether too much of the processors' time was taken away in a phase of an arm, or in one of isolation."""
    return bool(max(one["stolen"].values()) > STOLEN)


def is_disturbed(one: Figures) -> bool:
    """Whether bars are about this arm and too much was taken away from it."""
    return str(one["arm"]) == FOREBAY and is_stolen(one)


def describe_stolen(one: Figures) -> str:
    """How much of it, in which phase."""
    said = ", ".join(f"{share:.1%} ({phase})" for phase, share in one["stolen"].items())
    return f"round {one['round']}, {one['arm']}: the hypervisor took of the processors' time {said}"


def find_invalid(arms: Sequence[Figures]) -> list[str]:
    """Why the run proves nothing; empty: it does."""
    reasons = [describe_stolen(one) for one in arms if is_disturbed(one)]
    for one in arms:
        at = f"round {one['round']}, {one['arm']}"
        laggards, disk = one["laggards_mb_s"], one["disk_polluted"].get("read_mb_s", 0.0)
        if laggards > CACHED * disk:
            reasons.append(f"{at}: laggards got {laggards} MB/s from a disk that read {disk}")
        if one["arm"] == PLAIN:
            quiet, polluted = (_p99(one, phase, "produce_ms") for phase in ("quiet", "polluted"))
            if polluted < DAMAGE * quiet:
                reasons.append(
                    f"{at}: produce p99 {quiet} -> {polluted} ms, less than a hundredfold"
                )
    return reasons


def judge(
    arms: Sequence[Figures], sweep: Sequence[tuple[float, float]], target: float
) -> list[Bar]:
    """Every bar over the arm `forebay` of all rounds; the isolation bar is judged apart."""
    rounds = [one for one in arms if one["arm"] == FOREBAY]
    judge_disk = _judge_limited if any("limit" in one for one in rounds) else _judge_paced
    return [
        _each(
            rounds, "produce p99 under pollution, ms", lambda one: _judge_steady(one, "produce_ms")
        ),
        _each(
            rounds,
            "tailing end-to-end p99 under pollution, ms",
            lambda one: _judge_steady(one, "end_to_end_ms"),
        ),
        _each(rounds, "bytes of tailing consumers not from memory", _judge_tail_misses),
        *judge_disk(rounds, sweep, target),
    ]


def _judge_paced(
    rounds: Sequence[Figures], sweep: Sequence[tuple[float, float]], target: float
) -> list[Bar]:
    """The bars of a disk whose utilisation follows its load."""
    wanted = rate_at(sweep, target) if sweep else None
    return [
        _each(
            rounds,
            f"utilisation within {SETTLED} of {target}",
            lambda one: _judge_settled(one["settled_utils"], target),
        ),
        _each(
            rounds,
            f"laggards' share of the target's rate ({_mb(wanted)})",
            lambda one: _judge_rate(one, wanted),
        ),
        *_judge_laggards(rounds, PAUSE_STEADY),
    ]


def _judge_limited(rounds: Sequence[Figures], _: object, target: float) -> list[Bar]:
    """The bars of a volume with a limit: its utilisation says little, the share carried of the limit all."""
    return [
        _each(
            rounds,
            "seconds until the limit was known, and its level in units of the disk's",
            _judge_limit,
        ),
        _each(
            rounds,
            f"carried within {SETTLED} of {target} of the limit",
            lambda one: _judge_settled(one["limit"]["shares"], target),
        ),
        *_judge_laggards(rounds, LIMITED_PAUSE_STEADY),
    ]


def _judge_laggards(rounds: Sequence[Figures], pause_steady: float) -> list[Bar]:
    return [
        _each(rounds, "laggards' rates, MB/s each", _judge_fair),
        _each(rounds, "seconds to catch up after a pause of 25 s", _judge_caught_up),
        _each(
            rounds,
            "produce p99 while it catches up, ms",
            lambda one: _judge_pause_steady(one, pause_steady),
        ),
    ]


def judge_isolation(rounds: Sequence[Figures]) -> list[Bar]:
    """Beside a topic on a slow log directory: the healthy topic's produce p99, and heartbeats, with Forebay."""
    chosen = [one for one in rounds if one["arm"] == FOREBAY]
    return [
        _each(chosen, "produce p99 of the healthy topic beside a sick one, ms", _judge_isolated),
        _each(chosen, "heartbeats late beside a sick topic", _judge_heartbeats),
    ]


def find_harmless(rounds: Sequence[Figures]) -> list[str]:
    """Rounds that prove nothing about isolation: disturbed ones, and those in which the plain broker did not hang."""
    return [describe_stolen(one) for one in rounds if is_disturbed(one)] + [
        f"round {one['round']}, isolation: the plain broker did not hang"
        for one in rounds
        if one["arm"] == PLAIN and _isolated(one) <= HANG * ISOLATED
    ]


def _each(
    rounds: Sequence[Figures], name: str, rule: Callable[[Figures], tuple[bool | None, str]]
) -> Bar:
    found = [rule(one) for one in rounds]
    measured = [held for held, _ in found if held is not None]
    return Bar(
        name, all(measured) if measured else None, "; ".join(said for _, said in found if said)
    )


def _judge_steady(one: Figures, key: str) -> tuple[bool | None, str]:
    quiet, polluted = _p99(one, "quiet", key), _p99(one, "polluted", key)
    return is_steady(quiet, polluted), f"{quiet} -> {polluted}"


def _judge_tail_misses(one: Figures) -> tuple[bool | None, str]:
    missed = one.get("tail_miss_bytes")
    return (None, "") if missed is None else (missed == 0, str(missed))


def _judge_settled(means: Sequence[float], target: float) -> tuple[bool | None, str]:
    held = all(round(abs(mean - target), 3) <= SETTLED for mean in means) if means else None
    return held, " ".join(map(str, means))


def _judge_limit(one: Figures) -> tuple[bool | None, str]:
    """The kernel limits reads alone; a recognised limit has the writes beside them."""
    limit, disk = one["limit"], one["disk_polluted"]
    if limit["mb_s"] is None:
        return False, "never"
    beside = disk["write_mb_s"] if limit["source"] == "recognised" else 0.0
    level = limit["mb_s"] / (limit["read_limit_mb_s"] + beside)
    held = limit["known_s"] <= KNOWN_S and round(abs(level - 1), 3) <= LEVEL
    return held, f"{limit['known_s']} ({limit['source']}), {level:.2f}"


def _judge_rate(one: Figures, wanted: float | None) -> tuple[bool | None, str]:
    got = sum(one["laggards_settled_mb_s"])
    return (got >= SHARE * wanted, f"{got / wanted:.0%}") if wanted else (None, f"{got:.1f} MB/s")


def _judge_fair(one: Figures) -> tuple[bool | None, str]:
    rates = one["laggards_settled_mb_s"]
    measured = one["settled_s"] >= FAIR_S and max(rates) > 0
    return (is_fair(rates) if measured else None), f"{min(rates)} to {max(rates)}"


def _judge_caught_up(one: Figures) -> tuple[bool | None, str]:
    if "pause" not in one:
        return None, ""
    seconds = one["pause"]["caught_up_s"]
    return seconds is not None and seconds <= CAUGHT_UP_S, str(seconds)


def _judge_pause_steady(one: Figures, steady: float) -> tuple[bool | None, str]:
    if "pause" not in one:
        return None, ""
    quiet, paused = _p99(one, "quiet", "produce_ms"), _p99(one, "pause", "produce_ms")
    return paused <= steady * quiet, f"{quiet} -> {paused}"


def _isolated(one: Figures) -> float:
    """The healthy topic's p99 beside the sick one, in units of its quiet one."""
    return float(one["healthy_sick_ms"].get("p99", 0.0) / one["healthy_quiet_ms"].get("p99", 1.0))


def _judge_isolated(one: Figures) -> tuple[bool | None, str]:
    quiet, sick = (one[f"healthy_{phase}_ms"].get("p99") for phase in ("quiet", "sick"))
    return _isolated(one) <= ISOLATED, f"{quiet} -> {sick}"


def _judge_heartbeats(one: Figures) -> tuple[bool | None, str]:
    return one["heartbeats_late"] == 0, str(one["heartbeats_late"])


def _p99(one: Figures, phase: str, key: str) -> float:
    return float(one[phase][key].get("p99", 0.0))


def _mb(rate: float | None) -> str:
    return "no sweep" if rate is None else f"{rate:.1f} MB/s"
