"""The share of the processors' time that a hypervisor took away while something was measured.

Owns what the first line of /proc/stat says. Must not know what is measured, nor what is done about it. Invariants: time
of guests counts once (the kernel counts it as user time too); a kernel that does not tell has nothing stolen.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
STEAL = 7
"""Index of `steal` behind the word `cpu` (proc(5)); what follows are parts of `user` and `nice`."""


class Ticks(NamedTuple):
    """Clock ticks of all processors since the machine began: all of them, and those that were stolen."""

    total: int
    stolen: int


def scan_cpu(text: str) -> Ticks:
    """The first line of `text`, /proc/stat's: `cpu user nice system idle iowait irq softirq steal ...`."""
    fields = [int(field) for field in text.partition("\n")[0].split()[1 : STEAL + 2]]
    return Ticks(sum(fields), fields[STEAL] if len(fields) > STEAL else 0)


def read_cpu() -> Ticks:
    """As of now."""
    return scan_cpu(STAT.read_text())


def share(before: Ticks, after: Ticks) -> float:
    """The stolen share of the time between, 0 to 1; 0 where no tick has passed."""
    total = after.total - before.total
    return max(after.stolen - before.stolen, 0) / total if total > 0 else 0.0
