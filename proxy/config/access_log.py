"""The keys of `accessLog`.

Owns types, defaults, limits and meaning of these keys. Must not read anything.
docs/configuration.md is generated from this file.
"""

from pydantic import Field

from proxy.config.section import Path, Section
from proxy.config.units import GIB, KIB, MIB, Count, Size


class AccessLogConfig(Section):
    """JSON lines about Fetches and stored batches ([metrics.md](metrics.md)); read by `forebay audit`."""

    directory: Path | None = Field(
        default=None, description="Directory for the files. Unset: no access log."
    )
    rotate_size_bytes: Size = Field(
        default=256 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Size at which a file is closed and compressed.",
    )
    keep_size_bytes: Size = Field(
        default=4 * GIB,
        ge=MIB,
        le=64 * 1024 * GIB,
        description="Size of all files together. Beyond it the oldest are deleted.",
    )
    keep_files: Count = Field(
        default=1_000,
        ge=2,
        le=1_000_000,
        description="Number of files, the current one included. Beyond it the oldest are deleted.",
    )
    queue_lines: Count = Field(
        default=100_000,
        ge=1_000,
        le=10_000_000,
        description="Lines that wait for the disk; one that names several partitions counts as so many."
        " Further ones are dropped and counted.",
    )
