"""The keys of `isolation`: queues toward the broker, their slots, the rules for refusals, and
quotas.

Owns types, defaults, limits and meaning of these keys. Must not read anything.
docs/configuration.md is generated from this file.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from isolation.limits import AdaptiveLimit, AdaptiveRule, FixedLimit, Limit
from isolation.peers import Peers
from proxy.config.section import Section
from proxy.config.units import GIB, MIB, Count, Duration, Size

Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Slots(Section):
    """Slots: requests that may be at work in the broker at a time. `floor` = `ceiling`: a fixed number."""

    floor: Count = Field(
        default=2,
        ge=1,
        le=10_000,
        description="Least number of slots, however slow responses become.",
    )
    initial: Count = Field(
        default=6, ge=1, le=10_000, description="Number of slots at start, until latency is known."
    )
    ceiling: Count = Field(default=64, ge=1, le=10_000, description="Greatest number of slots.")


class ControlSlots(Section):
    """Slots of the control queue; as `isolation.dataSlots`, with other defaults: a fixed number."""

    floor: Count = Field(default=1000, ge=1, le=10_000, description="Least number of slots.")
    initial: Count = Field(default=1000, ge=1, le=10_000, description="Number of slots at start.")
    ceiling: Count = Field(default=1000, ge=1, le=10_000, description="Greatest number of slots.")


def build_limit(slots: Slots | ControlSlots, peers: Peers | None = None) -> Limit:
    """The limit of a queue's slots: adaptive between floor and ceiling, fixed if they are equal.
    `initial` is clamped to that range. `peers`: what the limits toward one broker share; None: nothing.
    """
    if slots.floor == slots.ceiling:
        return FixedLimit(slots.floor)
    initial = min(max(slots.initial, slots.floor), slots.ceiling)
    rule = AdaptiveRule(floor=slots.floor, ceiling=slots.ceiling, initial=initial)
    return AdaptiveLimit(rule, peers)


class QuotaConfig(Section):
    """Limits of the topics or clients of one pattern; each topic or client has its own account."""

    pattern: Pattern = Field(
        description="Pattern of topic names or client ids, with `*` and `?`; the first match counts."
    )
    in_flight_bytes: Size = Field(
        default=0, ge=0, le=64 * GIB, description="Bytes of unanswered Produces. 0: no limit."
    )
    fetch_rate_bytes: Size = Field(
        default=0,
        ge=0,
        le=64 * GIB,
        description="Record bytes fetched a second, from memory or from the broker. 0: no limit.",
    )


class Isolation(Section):
    """Queues by topic, slots toward the broker and refusals: a slow topic does not delay others."""

    enabled: bool = Field(
        default=True, description="`false`: every request is sent to the broker at once."
    )
    data_queues: Count = Field(
        default=16,
        ge=1,
        le=1024,
        description="Queues for Produce and Fetch, by topic. Control requests have a queue of their own.",
    )
    max_queue_wait_s: Duration = Field(
        default=3.0,
        ge=0.0,
        le=60.0,
        description="Time that a request waits for a slot before it is refused, if no request of its queue is "
        "answered meanwhile; five times that in all.",
    )
    queue_requests: Count = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        description="Waiting requests of each queue. Further ones are refused.",
    )
    queue_size_bytes: Size = Field(
        default=32 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="Bytes of the waiting requests of each queue. Further ones are refused.",
    )
    release_after_s: Duration = Field(
        default=0.5,
        ge=0.0,
        le=60.0,
        description="Time after which a long poll, or a Produce that waits for followers, gives its "
        "slot back.",
    )
    hang_after_s: Duration = Field(
        default=5.0,
        ge=0.5,
        le=600.0,
        description="Age of a topic's oldest unanswered request at which the topic hangs. Its "
        "requests are then refused at once until a probe is answered.",
    )
    data_slots: Slots = Field(default_factory=Slots, description="Slots of each data queue.")
    control_slots: ControlSlots = Field(
        default_factory=ControlSlots, description="Slots of the control queue."
    )
    topic_quotas: tuple[QuotaConfig, ...] = Field(
        default=(), max_length=256, description="Limits of topics, by name pattern."
    )
    client_quotas: tuple[QuotaConfig, ...] = Field(
        default=(), max_length=256, description="Limits of clients, by client id pattern."
    )
