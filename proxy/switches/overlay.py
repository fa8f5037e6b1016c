"""Overlay: the configuration that is in force under some overrides. Pure.

Owns how each switch changes the configuration, and why one cannot. Must not know how a value is applied. Invariants:
* the configuration that was read is never changed, so that an end of all overrides is an end of their effect.
* what a process cannot become without a restart is not put in force: the override is left out, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.config.live_keys import AtStart, explain_mode, explain_queues
from proxy.config.model import CacheMode, Config, TopicModeConfig
from proxy.switches.override import ON, Override

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.switches.state import SwitchState


@dataclass(frozen=True, slots=True)
class Overlaid:
    """`config`: of the process, and of all connections but a `share` that has `trial` (None: all have `config`).
    `problems`: why an override is left out, by its place.
    """

    config: Config
    trial: Config | None
    share: float
    problems: Mapping[tuple[str, str, str], str]


def overlay(config: Config, state: SwitchState, at_start: AtStart) -> Overlaid:
    """The configuration `config` under the overrides of `state`, for a process that was started so."""
    problems: dict[tuple[str, str, str], str] = {}
    wholes: list[Override] = []
    trial = None
    for one in state.overrides:
        if problem := explain_override(config, one, at_start):
            problems[one.place] = problem
        elif one.is_trial:
            trial = one
        else:
            wholes.append(one)
    whole = _put_all(config, wholes)
    if trial is None:
        return Overlaid(whole, None, 0.0, problems)
    others = [one for one in wholes if one.place != trial.place]
    return Overlaid(whole, _put_all(config, [*others, trial]), trial.share, problems)


def explain_override(config: Config, override: Override, at_start: AtStart) -> str:
    """Why an override cannot be in force in a process that was started so; "" if it can."""
    if override.listener:
        entry = next((one for one in config.listeners if one.name == override.listener), None)
        if entry is None:
            names = ", ".join(one.name for one in config.listeners)
            return f"there is no listener {override.listener}; there are {names}"
        if entry.pass_through:
            return f"listener {override.listener} passes all bytes unread already (passThrough)"
    if override.switch == "cache":
        return explain_mode(at_start.mode, override.value)
    if override.switch == "isolation":
        return explain_queues(at_start, override.value == ON)
    return ""


def _put_all(config: Config, overrides: Iterable[Override]) -> Config:
    for one in overrides:
        config = _put(config, one)
    return config


def _put(config: Config, one: Override) -> Config:
    match one.switch:
        case "cache":
            return _put_mode(config, one)
        case "throttle":
            section = config.throttle.model_copy(update={"enabled": one.value == ON})
            return config.model_copy(update={"throttle": section})
        case "isolation":
            isolation = config.isolation.model_copy(update={"enabled": one.value == ON})
            return config.model_copy(update={"isolation": isolation})
        case "verify":
            cache = config.cache.model_copy(update={"verify_ratio": float(one.value)})
            return config.model_copy(update={"cache": cache})
        case "log":
            return config.model_copy(
                update={"log": config.log.model_copy(update={"level": one.value})}
            )
        case _:
            return config  # `bypass` overrides no key: the supervisor pipes


def _put_mode(config: Config, one: Override) -> Config:
    mode: CacheMode = one.value  # type: ignore[assignment]  # the switch takes no other
    if one.listener:
        listeners = tuple(
            entry.model_copy(update={"cache_mode": mode}) if entry.name == one.listener else entry
            for entry in config.listeners
        )
        return config.model_copy(update={"listeners": listeners})
    if one.topic:
        first = TopicModeConfig.model_construct(pattern=one.topic, mode=mode)
        modes = (first, *config.cache.topic_modes)
        return config.model_copy(
            update={"cache": config.cache.model_copy(update={"topic_modes": modes})}
        )
    return config.model_copy(update={"cache": config.cache.model_copy(update={"mode": mode})})
