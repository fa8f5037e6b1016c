"""The keys of `supervisor`, `shutdown` and `log`: the processes, not their clients.

Owns types, defaults, limits and meaning of these keys. Must not read anything.
docs/configuration.md is generated from this file.
"""

from typing import Literal

from pydantic import Field

from proxy.config.section import Section
from proxy.config.units import Count, Duration


class SupervisorConfig(Section):
    """The process that starts the worker, replaces it, and pipes clients to the broker without it."""

    heartbeat_timeout_s: Duration = Field(
        default=3.0,
        ge=0.5,
        le=300.0,
        description="Silence of the worker's heartbeat after which it is killed and replaced. While it waits "
        "for a processor, only the processor time that it gets counts, for at most 20 times this.",
    )
    start_timeout_s: Duration = Field(
        default=60.0,
        ge=1.0,
        le=3600.0,
        description="Time from the start of a worker to its first heartbeat, which comes before the "
        "cache is allocated; at an upgrade in place, until the new worker accepts clients.",
    )
    crash_limit: Count = Field(
        default=3,
        ge=1,
        le=1000,
        description="Workers in a row that end within `crashWindow` of their start, but for those that "
        "others ended while they served. At the limit the "
        "supervisor pipes clients to the broker until a worker runs. TLS that ends at Forebay cannot "
        "be piped: such listeners close their connections.",
    )
    crash_window_s: Duration = Field(
        default=60.0,
        ge=1.0,
        le=86400.0,
        description="Life of a worker below which its end counts toward `crashLimit`.",
    )
    pipe_max_age_s: Duration = Field(
        default=60.0,
        ge=0.0,
        le=86400.0,
        description="Time within which pipes are closed once a worker runs again, spread evenly, so "
        "that their clients come back to the cache.",
    )


class Shutdown(Section):
    """Shutdown on SIGTERM."""

    grace_period_s: Duration = Field(
        default=25.0,
        ge=0.0,
        le=3600.0,
        description="Time to answer requests in flight; shorter than Kubernetes' own grace period (30s).",
    )


class Log(Section):
    """Forebay's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is written."
    )
    format: Literal["json", "text"] = Field(
        default="json", description="One JSON object a line, or plain text."
    )
    queue_lines: Count = Field(
        default=1000,
        ge=10,
        le=1_000_000,
        description="Lines that wait for standard error. Further ones are dropped and counted.",
    )
