"""Threads that heed file modes, though their process may be root's.

Owns the giving up of two rights of root. Must not know what runs without them. Invariants: rights belong to a thread,
so that other threads keep theirs; a process that is started from such a thread has them neither.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION_3 = 0x20080522
PR_CAPBSET_DROP = 24
CAPABILITIES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capability.h: with them, root passes file modes by."""
T = TypeVar("T")


def heed_modes(action: Callable[[], T]) -> T:
    """Return what `action` returns in a thread that may read and write what its user's modes allow; or raise so."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _give_up()
            results.append(action())
        except BaseException as error:  # raised where the caller waits
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _give_up() -> None:
    """Clear the rights of this thread (capset(2)), and what root's programs would get back (capabilities(7))."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert library.capget(header, sets) == 0
    for capability in CAPABILITIES:
        library.prctl(
            PR_CAPBSET_DROP, capability, 0, 0, 0
        )  # EPERM: of a user who has no rights to lose
        for place in range(3):
            sets[place] &= ~(1 << capability)
    assert library.capset(header, sets) == 0
