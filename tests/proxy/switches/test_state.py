"""How one state of the switches follows another: places, bounds, schedules, trials and drops."""

from __future__ import annotations

import pytest

from proxy.switches.override import Override, SwitchRefused
from proxy.switches.state import (
    DROPS_KEPT,
    EMPTY,
    OVERRIDES_LIMIT,
    Happening,
    SwitchState,
    pack_state,
    unpack_state,
)

OFF = Override("cache", "off")
TRIAL = Override("cache", "off", share=0.05, widen_at=10.0, ends_at=20.0)


def counted(state: SwitchState) -> dict[Happening, int]:
    names: tuple[Happening, ...] = "set", "reset", "widened", "expired", "reverted", "dropped"
    return {name: state.count(name) for name in names if state.count(name)}


def test_a_place_has_one_override() -> None:
    state = EMPTY.set(OFF).set(Override("cache", "serve")).set(Override("cache", "off", topic="a"))
    assert [(one.value, one.topic) for one in state.overrides] == [("serve", ""), ("off", "a")]
    assert counted(state) == {"set": 3}


def test_the_bound_is_kept_and_a_place_can_still_be_changed() -> None:
    state = EMPTY
    for number in range(OVERRIDES_LIMIT):
        state = state.set(Override("cache", "off", topic=f"t{number}"))
    with pytest.raises(SwitchRefused, match="reset some first"):
        state.set(OFF)
    assert len(state.set(Override("cache", "serve", topic="t0")).overrides) == OVERRIDES_LIMIT


def test_a_reset_ends_all_or_what_is_named() -> None:
    state = EMPTY.set(OFF).set(Override("cache", "off", topic="a")).set(Override("log", "debug"))
    assert state.reset("cache").overrides == (Override("log", "debug"),)
    assert len(state.reset(topic="a").overrides) == 2
    assert state.reset().overrides == ()
    assert counted(state.reset()) == {"set": 3, "reset": 3}


def test_a_trial_widens_then_ends() -> None:
    state = EMPTY.set(TRIAL)
    assert state.advance(9.9) is state
    (one,) = state.advance(10.0).overrides
    assert (one.share, one.widen_at, one.ends_at) == (1.0, None, 20.0)
    assert state.advance(10.0).advance(20.0).overrides == ()
    assert counted(state.advance(20.0)) == {"set": 1, "expired": 1}


def test_one_trial_at_a_time_which_a_fault_ends() -> None:
    state = EMPTY.set(Override("log", "debug")).set(TRIAL)
    with pytest.raises(SwitchRefused, match="one at a time"):
        state.set(Override("cache", "off", topic="a", share=0.5))
    assert state.trial == TRIAL
    ended = state.revert("bytes differ")
    assert (ended.overrides, ended.reverted) == ((Override("log", "debug"),), "bytes differ")
    assert ended.revert("again") is ended, "what all connections have is not ended"


def test_drops_are_found_by_who_is_behind() -> None:
    state = EMPTY.drop("a").drop("b")
    assert (state.find_drops(0), state.find_drops(1), state.find_drops(2)) == (
        ["a", "b"],
        ["b"],
        [],
    )
    for _ in range(DROPS_KEPT):
        state = state.drop("c")
    assert len(state.drops) == DROPS_KEPT
    assert state.find_drops(0) == ["*"], "it does not know which it has missed"
    assert state.find_drops(2) == ["c"] * DROPS_KEPT


def test_a_listener_follows_its_own_switch_then_the_process() -> None:
    state = EMPTY.set(Override("bypass", "on"))
    assert state.is_on("bypass", "a")
    assert not state.set(Override("bypass", "off", listener="a")).is_on("bypass", "a")
    assert state.set(Override("bypass", "off", listener="a")).is_on("bypass", "b")
    assert not EMPTY.is_on("bypass", "a")


def test_what_another_build_has_set_is_kept() -> None:
    state = EMPTY.set(TRIAL).drop("a").revert("x").set(OFF)
    assert unpack_state(pack_state(state)) == state
    packed = pack_state(state).replace(b'"switch": "cache"', b'"switch": "later"')
    later = unpack_state(packed)
    assert (later.overrides, len(later.foreign)) == ((), 1)
    assert unpack_state(pack_state(later)) == later
    assert later.reset("log").foreign == later.foreign
    assert later.reset().foreign == ()
