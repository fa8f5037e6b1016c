"""Report of the switches: their state as samples, for a scrape of worker or supervisor. Pure.

Owns the join of state and metric names. Must not know the format of a scrape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxy.switches.override import KINDS
from proxy.switches.state import HAPPENINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.switches.state import SwitchState


class SwitchSample(NamedTuple):
    """One value: a metric's name, the values of its labels, and its number (`metrics.collector.Sample`)."""

    name: str
    labels: tuple[str, ...]
    value: float


def list_switch_samples(state: SwitchState, unix: float) -> Iterator[SwitchSample]:
    """All samples of a state; `unix` is the Unix time."""
    for name in KINDS:
        number = sum(one.switch == name for one in state.overrides)
        yield SwitchSample("forebay_switches", (name,), number)
    oldest = min((one.set_at for one in state.overrides), default=unix)
    yield SwitchSample("forebay_switch_age_seconds", (), max(0.0, unix - oldest))
    trial = state.trial
    yield SwitchSample("forebay_switch_share", (), 1.0 if trial is None else trial.share)
    for happening, count in zip(HAPPENINGS, state.counts, strict=True):
        yield SwitchSample("forebay_switch_changes_total", (happening,), count)
