"""The keys of `throttle`: the disks, the load that counts as busy, the rates of misses.

Owns types, defaults, limits and meaning of these keys. Must not read anything.
docs/configuration.md is generated from this file.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from proxy.config.section import Name, Path, Section
from proxy.config.units import GIB, KIB, MIB, Count, Duration, Size


class Disk(Section):
    """One of the broker's log directories and the disk below it."""

    device: Name | None = Field(
        default=None,
        description="Name in `diskstatsFile`, for example nvme0n1; unset: the device that holds `directory`.",
    )
    directory: Path | None = Field(
        default=None,
        description="The log directory as this process sees it, mounted read-only: tells the device and the "
        "partitions on it.",
    )
    broker_directory: Path | None = Field(
        default=None,
        description="The log directory as the broker names it, where it is not mounted here: the broker is "
        "then asked which partitions lie there (DescribeLogDirs).",
    )


class Weight(Section):
    """The share of a group of clients."""

    client_id: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="Client id pattern, `*` and `?` allowed; the first that matches counts."
    )
    weight: float = Field(ge=0.01, le=100.0, description="Share against clients of weight 1.")


class Throttle(Section):
    """Lagging consumers wait while the broker's disk is busy."""

    enabled: bool = Field(default=True, description="`false`: no miss is ever delayed.")
    target: float = Field(
        default=0.6, ge=0.05, le=0.95, description="Share of a disk's time at which misses are held."
    )
    lag_threshold: Count = Field(
        default=0,
        ge=0,
        le=1_000_000_000_000,
        description="Records that a consumer must be behind before its misses may wait; only what memory "
        "does not hold any more is ever delayed.",
    )
    start_grace_s: Duration = Field(
        default=60.0,
        ge=0.0,
        le=3600.0,
        description="Of a partition whose history is first missed so soon after the start, what memory would hold had "
        "it not begun anew is not delayed. 0: it is.",
    )
    max_delay_s: Duration = Field(
        default=30.0, ge=0.1, le=3600.0, description="A miss that has waited this long goes regardless."
    )
    in_flight_s: Duration = Field(
        default=0.05,
        ge=0.001,
        le=10.0,
        description="Misses that are read from a disk at once, as a time at its rate, and always one: what "
        "a producer's write may find before it there.",
    )
    floor_bytes: Size = Field(
        default=MIB, ge=64 * KIB, le=GIB, description="Misses of a disk get at least this per second."
    )
    ceiling_bytes: Size = Field(
        default=16 * GIB, ge=MIB, le=64 * GIB, description="Misses of a disk get at most this per second."
    )
    sample_every_s: Duration = Field(
        default=0.5, ge=0.05, le=1.0, description="How often the disks are looked at."
    )
    busy_await_s: Duration = Field(
        default=0.002,
        ge=0.0,
        le=1.0,
        description="A disk whose requests take this long is as loaded as the share of time it works; one "
        "that answers faster is proportionally less. 0: the share alone counts.",
    )
    busy_in_flight: Count = Field(
        default=8, ge=1, le=65536, description="The same, by requests in flight; the greater counts."
    )
    busy_pressure: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="The same, by the share of time in which tasks wait for I/O; 0: not looked at.",
    )
    diskstats_file: Path = Field(default="/proc/diskstats", description="Where disks are read from.")
    pressure_file: Path = Field(
        default="/proc/pressure/io",
        description="Where I/O pressure is read from; the broker cgroup's io.pressure says more.",
    )
    waiting_requests: Count = Field(
        default=10_000, ge=1, le=1_000_000, description="Misses that wait, for each disk."
    )
    waiting_size_bytes: Size = Field(
        default=8 * GIB, ge=MIB, le=1024 * GIB, description="What they would read, for each disk."
    )
    disks: tuple[Disk, ...] = Field(
        default=(), max_length=64, description="The broker's disks; none: no miss is ever delayed."
    )
    weights: tuple[Weight, ...] = Field(
        default=(), max_length=256, description="Who gets more or less than an equal share."
    )
