"""State of the switches: all overrides in force, what was dropped, and how often each thing happened. Pure.

Owns the rules by which one state follows another. Must not know where it is kept, or what an override does.
Invariants:
* at most OVERRIDES_LIMIT overrides, one of a place; at most one of them is a trial.
* a trial ends in all connections having its value, or in the configured value; never in between.
* overrides that this build does not know are kept as they are, for a worker of another build.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from proxy.switches.override import Override, SwitchRefused, dump_override, load_override

if TYPE_CHECKING:
    from collections.abc import Mapping

OVERRIDES_LIMIT: Final = 32
DROPS_KEPT: Final = 16
"""Drops of topics that a worker may be behind; one that is behind by more drops all topics."""
Happening = Literal["set", "reset", "widened", "expired", "reverted", "dropped"]
HAPPENINGS: Final[tuple[Happening, ...]] = (
    "set",
    "reset",
    "widened",
    "expired",
    "reverted",
    "dropped",
)


class Drop(NamedTuple):
    """The topics of `pattern` are to be dropped from the cache. `number`: of all drops, from 1."""

    number: int
    pattern: str


@dataclass(frozen=True, slots=True)
class SwitchState:
    """`overrides`: in force, the oldest first. `foreign`: those of another build, as JSON values. `drops`: the last
    ones. `counts`: how often each happening was. `reverted`: why the last trial was ended; "" if none was.
    """

    overrides: tuple[Override, ...] = ()
    foreign: tuple[Mapping[str, Any], ...] = ()
    drops: tuple[Drop, ...] = ()
    counts: tuple[int, ...] = (0,) * len(HAPPENINGS)
    reverted: str = ""

    @property
    def trial(self) -> Override | None:
        """The override that only a share of the connections has; None: there is none."""
        return next((one for one in self.overrides if one.is_trial), None)

    @property
    def dropped(self) -> int:
        """The number of the last drop; 0: there was none."""
        return self.drops[-1].number if self.drops else 0

    def count(self, happening: Happening) -> int:
        """How often it has happened."""
        return self.counts[HAPPENINGS.index(happening)]

    def is_on(self, switch: str, listener: str) -> bool:
        """Whether an on-off switch is on for a listener: by its own override, else by the process's."""
        values = {one.listener: one.value for one in self.overrides if one.switch == switch}
        return values.get(listener, values.get("", "off")) == "on"

    # -- what follows ------------------------------------------------------------------------------

    def set(self, override: Override) -> SwitchState:
        """Put an override in force, in place of that of its place. Raises SwitchRefused at a bound."""
        others = tuple(one for one in self.overrides if one.place != override.place)
        if len(others) + len(self.foreign) >= OVERRIDES_LIMIT:
            raise SwitchRefused(f"{OVERRIDES_LIMIT} switches are set: reset some first")
        if override.is_trial and any(one.is_trial for one in others):
            raise SwitchRefused("another switch has a share of the connections: one at a time")
        return replace(self, overrides=(*others, override)).counted("set")

    def reset(self, switch: str = "", listener: str = "", topic: str = "") -> SwitchState:
        """End all overrides, or those of a switch, a listener or a topic pattern."""
        wanted = {"switch": switch, "listener": listener, "topic": topic}
        wanted = {name: value for name, value in wanted.items() if value}
        kept = tuple(
            one
            for one in self.overrides
            if any(getattr(one, name) != value for name, value in wanted.items())
        )
        if not wanted:
            kept = ()
        foreign = self.foreign if wanted else ()
        ended = len(self.overrides) - len(kept) + len(self.foreign) - len(foreign)
        return replace(self, overrides=kept, foreign=foreign).counted("reset", ended)

    def advance(self, now: float) -> SwitchState:
        """The state at `now`, in seconds of CLOCK_BOOTTIME: itself unless something was due."""
        state, kept = self, []
        for one in self.overrides:
            if one.ends_at is not None and now >= one.ends_at:
                state = state.counted("expired")
                continue
            if one.widen_at is not None and now >= one.widen_at:
                state = state.counted("widened")
                kept.append(replace(one, share=1.0, widen_at=None))
                continue
            kept.append(one)
        return self if state is self else replace(state, overrides=tuple(kept))

    def revert(self, reason: str) -> SwitchState:
        """End the trial: all connections have the configured value again. Itself without a trial."""
        if self.trial is None:
            return self
        kept = tuple(one for one in self.overrides if not one.is_trial)
        return replace(self, overrides=kept, reverted=reason).counted("reverted")

    def drop(self, pattern: str) -> SwitchState:
        """Ask for the topics of a pattern to be dropped from the cache."""
        drops = (*self.drops, Drop(self.dropped + 1, pattern))[-DROPS_KEPT:]
        return replace(self, drops=drops).counted("dropped")

    def find_drops(self, seen: int) -> list[str]:
        """The patterns of all drops after number `seen`; "*" if they are not all known."""
        new = [one for one in self.drops if one.number > seen]
        if new and new[0].number > seen + 1:
            return ["*"]
        return [one.pattern for one in new]

    def counted(self, happening: Happening, times: int = 1) -> SwitchState:
        """The state after `times` such happenings."""
        place = HAPPENINGS.index(happening)
        counts = (*self.counts[:place], self.counts[place] + times, *self.counts[place + 1 :])
        return replace(self, counts=counts)


EMPTY: Final = SwitchState()


def pack_state(state: SwitchState) -> bytes:
    """The bytes of a state, for `unpack_state` of any build."""
    return json.dumps(
        {
            "overrides": [*map(dump_override, state.overrides), *state.foreign],
            "drops": state.drops,
            "counts": dict(zip(HAPPENINGS, state.counts, strict=True)),
            "reverted": state.reverted,
        }
    ).encode()


def unpack_state(packed: bytes) -> SwitchState:
    """What `pack_state` was given. Raises ValueError if these are no such bytes."""
    content = json.loads(packed)
    loaded = [(values, load_override(values)) for values in content["overrides"]]
    return SwitchState(
        tuple(one for _, one in loaded if one is not None),
        tuple(values for values, one in loaded if one is None),
        tuple(Drop(*one) for one in content["drops"]),
        tuple(content["counts"].get(name, 0) for name in HAPPENINGS),
        content["reverted"],
    )
