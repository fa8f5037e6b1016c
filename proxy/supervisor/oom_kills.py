"""OOM kills: how many processes of this cgroup the kernel has killed for want of memory.

Owns the kernel's count. Must not know who was killed. The kernel counts before it sends SIGKILL
(`__oom_kill_process`), so that who finds a killed child finds the count, too.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxy.config.memory import list_cgroup_files, read_text


def count_oom_kills(root: Path = Path("/")) -> int:
    """Kills so far in the nearest cgroup that tells, v2 or v1; 0 if none does. `root` is for tests."""
    for path in list_cgroup_files(root, "memory.events", "memory.oom_control"):
        found = re.search(r"^oom_kill ([0-9]{1,18})$", read_text(path), re.MULTILINE)
        if found:
            return int(found[1])
    return 0
