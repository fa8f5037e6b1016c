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
        description="Name in `diskstatsFile`, for example nvme0n1. Unset: the device that holds `directory`.",
    )
    directory: Path | None = Field(
        default=None,
        description="Log directory as this process sees it, mounted read-only. Forebay finds the "
        "device and the partitions by it.",
    )
    broker_directory: Path | None = Field(
        default=None,
        description="Log directory as the broker names it, where it is not mounted here. The broker "
        "is asked for its partitions (DescribeLogDirs).",
    )
    throughput_bytes: Size = Field(
        default=0,
        ge=0,
        le=64 * GIB,
        description="Bytes per second that the volume is provisioned for, reads and writes together. The"
        " share used of them is load, too. 0: not named.",
    )
    iops: Count = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="As `throughput`, in requests per second. If both are 0, the throttle looks for the"
        " limit itself.",
    )


class Weight(Section):
    """The share of a group of clients."""

    client_id: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="Pattern of client ids, with `*` and `?`; the first match counts."
    )
    weight: float = Field(ge=0.01, le=100.0, description="Share relative to clients of weight 1.")


class ThrottleConfig(Section):
    """Lagging consumers wait while the broker's disk is busy."""

    enabled: bool = Field(default=True, description="`false`: no miss is delayed.")
    target: float = Field(
        default=0.6, ge=0.05, le=0.95, description="Load of a disk that the throttle aims at."
    )
    lag_threshold: Count = Field(
        default=0,
        ge=0,
        le=1_000_000_000_000,
        description="Records that a consumer must be behind before its misses may wait. Only reads of"
        " history are ever delayed.",
    )
    start_grace_s: Duration = Field(
        default=60.0,
        ge=0.0,
        le=3600.0,
        description="Time after the start. For a partition whose history is first missed within it, "
        "records that memory would hold without the restart are not delayed. 0: they are.",
    )
    max_delay_s: Duration = Field(
        default=30.0,
        ge=0.1,
        le=3600.0,
        description="Longest wait of a miss; then it is sent regardless of the load.",
    )
    in_flight_s: Duration = Field(
        default=0.05,
        ge=0.001,
        le=10.0,
        description="Bytes of misses read from a disk at a time, as a time at the disk's rate, and at"
        " least one miss. A producer's write may wait for so much.",
    )
    floor_bytes: Size = Field(
        default=MIB,
        ge=64 * KIB,
        le=GIB,
        description="Least rate of a disk's misses, bytes per second.",
    )
    ceiling_bytes: Size = Field(
        default=16 * GIB,
        ge=MIB,
        le=64 * GIB,
        description="Greatest rate of a disk's misses, bytes per second.",
    )
    sample_every_s: Duration = Field(
        default=0.5, ge=0.05, le=1.0, description="Interval between samples of the disks."
    )
    busy_await_s: Duration = Field(
        default=0.002,
        ge=0.0,
        le=1.0,
        description="Mean request time at which a disk's load equals its utilisation; a faster disk "
        "has proportionally less load. 0: utilisation alone counts.",
    )
    busy_in_flight: Count = Field(
        default=8,
        ge=1,
        le=65536,
        description="As `busyAwait`, by requests in flight; the greatest load counts.",
    )
    busy_pressure: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="As `busyAwait`, by the share of time in which tasks wait for I/O. 0: not read.",
    )
    diskstats_file: Path = Field(
        default="/proc/diskstats", description="File with the disks' counters."
    )
    pressure_file: Path = Field(
        default="/proc/pressure/io",
        description="File with the I/O pressure; io.pressure of the broker's cgroup is more exact.",
    )
    waiting_requests: Count = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Waiting misses of each disk. Further ones are answered empty.",
    )
    waiting_size_bytes: Size = Field(
        default=8 * GIB,
        ge=MIB,
        le=1024 * GIB,
        description="Bytes that the waiting misses of each disk read at most.",
    )
    disks: tuple[Disk, ...] = Field(
        default=(),
        max_length=64,
        description="The broker's disks. Without any, no miss is delayed.",
    )
    weights: tuple[Weight, ...] = Field(
        default=(), max_length=256, description="Clients that get more or less than an equal share."
    )
