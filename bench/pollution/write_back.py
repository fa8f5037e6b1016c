"""The kernel's write-back, evened out for a run: a second's worth each second, not half a minute's at once.

Owns the two settings of the virtual memory's (Documentation/admin-guide/sysctl/vm.rst) and that they are put back, by
the next run where this one was killed. Must not know what runs. Invariant: what stood before is on disk before
anything is changed.

Why: what a producer has written lies dirty for half a minute and then goes to the disk in one burst, behind which the
journal's commit stands, and with it appends, on the broker alone too. A burst that falls into one phase and not
into the other is no laggard's doing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

SETTINGS = {"dirty_expire_centisecs": 500, "dirty_writeback_centisecs": 100}
SYSCTL = Path("/proc/sys/vm")
SUFFIX = ".vm"


def even_out(stack: ExitStack, kept: Path, sysctl: Path = SYSCTL) -> None:
    """Change the settings until the stack closes; `kept` holds what they were. OSError where this may not be done."""
    kept.write_text(json.dumps({name: (sysctl / name).read_text() for name in SETTINGS}))
    stack.callback(put_back, kept, sysctl)
    for name, value in SETTINGS.items():
        (sysctl / name).write_text(f"{value}\n")


def put_back(kept: Path, sysctl: Path = SYSCTL) -> None:
    """As `kept` has it, which is removed."""
    for name, value in json.loads(kept.read_text()).items():
        (sysctl / name).write_text(value)
    kept.unlink()
