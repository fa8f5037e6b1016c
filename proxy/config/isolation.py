"""The keys of `isolation`: queues toward the broker, their slots, the rules for refusals, and
quotas.

Owns types, defaults, limits and meaning of these keys. Must not read anything.
docs/configuration.md is generated from this file.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from isolation.limits import AdaptiveLimit, AdaptiveRule, FixedLimit, Limit
from proxy.config.section import Section
from proxy.config.units import GIB, MIB, Count, Duration, Size

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Slots(Section):
    """Requests that may be at work in the broker at a time. `floor` = `ceiling`: a fixed number."""

    floor: Count = Field(default=2, ge=1, le=10_000, description="Never fewer, however slow answers become.")
    initial: Count = Field(default=6, ge=1, le=10_000, description="At start, until latency is known.")
    ceiling: Count = Field(default=64, ge=1, le=10_000, description="Never more.")


def build_limit(slots: Slots) -> Limit:
    """The limit of a queue's slots: adaptive between floor and ceiling, fixed if they are equal.
    `initial` is clamped to that range.
    """
    if slots.floor == slots.ceiling:
        return FixedLimit(slots.floor)
    initial = min(max(slots.initial, slots.floor), slots.ceiling)
    return AdaptiveLimit(AdaptiveRule(floor=slots.floor, ceiling=slots.ceiling, initial=initial))


class Quota(Section):
    """Limits of the topics or clients of one pattern; each topic or client has its own account."""

    pattern: Pattern = Field(
        description="Topic names or client ids, `*` and `?` allowed; the first that matches counts."
    )
    in_flight_bytes: Size = Field(
        default=0, ge=0, le=64 * GIB, description="Bytes of Produces that are not answered yet; 0: no limit."
    )
    fetch_rate_bytes: Size = Field(
        default=0,
        ge=0,
        le=64 * GIB,
        description="Record bytes a second, from memory or from the broker; 0: no limit.",
    )


class Isolation(Section):
    """One slow topic hangs nothing else: queues by topic, slots toward the broker, refusals."""

    enabled: bool = Field(default=True, description="`false`: every request goes to the broker at once.")
    data_queues: Count = Field(
        default=16, ge=1, le=1024, description="Queues for Produce and Fetch, by topic; control has its own."
    )
    max_queue_wait_s: Duration = Field(
        default=3.0, ge=0.0, le=60.0, description="How long a request waits for a slot before it is refused."
    )
    queue_requests: Count = Field(
        default=1000, ge=0, le=1_000_000, description="Requests that wait, in each queue; beyond it, refused."
    )
    queue_size_bytes: Size = Field(
        default=32 * MIB, ge=MIB, le=64 * GIB, description="Their bytes, in each queue; beyond it, refused."
    )
    release_after_s: Duration = Field(
        default=0.5,
        ge=0.0,
        le=60.0,
        description="A long poll, or a wait for followers, gives its slot back after this long.",
    )
    hang_after_s: Duration = Field(
        default=5.0,
        ge=0.5,
        le=600.0,
        description="A topic whose oldest request is unanswered for this long hangs: it is refused at once "
        "until a probe is answered.",
    )
    data_slots: Slots = Field(default_factory=Slots, description="Slots of each data queue.")
    control_slots: Slots = Field(
        default_factory=lambda: Slots(floor=1000, initial=1000, ceiling=1000), description="Slots of control."
    )
    topic_quotas: tuple[Quota, ...] = Field(default=(), max_length=256, description="Limits of topics.")
    client_quotas: tuple[Quota, ...] = Field(default=(), max_length=256, description="Limits of clients.")
