"""Partitions as the keeper shows them to its workers.

Owns when a row is shown, and the numbers of shared leases. Must not know workers. Invariants:
* what ends the validity of stored bytes is shown before the arena changes (`withdraw`), and a new epoch
  as soon as it is known (`show`). What has left a shared lease is shown before an answer can renew that
  (`note_learned`). All else is shown at the latest in the event loop's next turn (`mark`), and what has no
  mark with the next tick (`sweep`).
* a lease's number is given again only when nobody holds that lease any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from proxy.keeper.segment import LEASES
from proxy.partitions._rows import ffi, lib
from proxy.partitions.leader_state import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from proxy.keeper.segment import RowMemory
    from proxy.partitions.table import Partition

PLACE_MASK: Final[int] = lib.PT_PLACE_MASK
"""A slot's lowest bits are its place (blockcache/native/pyfastcache.h, FC_SLOT_BITS)."""
NONE_ABORTED: Final = ffi.NULL


def find_place(slot: int) -> int:
    """The place of a slot: no two open ones have the same."""
    return slot & PLACE_MASK


class ShownPartitions:
    """The rows that are shown. `after` is called when marked rows have been shown: who is told of them
    reads them.
    """

    def __init__(self, segment: RowMemory, after: Callable[[], object]) -> None:
        self.segment = segment
        self._after = after
        self._marked: dict[Partition, None] = {}
        self._is_flushing = False
        self._leases: WeakValueDictionary[int, Lease] = WeakValueDictionary()
        self._last = 0
        self.shown = 0
        """Rows that were written."""

    def open_lease(self) -> Lease:
        """Return a lease to be shared by partitions, which workers see. If all numbers are in use it has
        none, and is shown with each partition.
        """
        place = None
        for step in range(1, LEASES + 1):
            number = (self._last + step) % LEASES
            if number not in self._leases:
                place = number, self.segment.leases + number
                self._last = number
                break
        lease = Lease(float("-inf"), is_shared=True, place=place)
        if place is not None:
            self._leases[place[0]] = lease
        return lease

    def show(self, partition: Partition) -> None:
        """Show it now."""
        if not partition.is_followed:
            return
        transactions = partition.transactions
        aborted, count = NONE_ABORTED, 0
        if transactions.holds_any:
            aborted, count = _list_aborted(transactions.list_aborted())
        self.shown += lib.pt_show(
            partition.row,
            self.segment.find(find_place(partition.slot)),
            partition.leader_state.lease.number,
            partition.last_stable_offset(),
            partition.recalling is not None,
            aborted,
            count,
        )

    def withdraw(self, partition: Partition) -> None:
        """Have nobody serve what was found in the arena before now: stored bytes are about to go."""
        lib.pt_show_end(self.segment.find(find_place(partition.slot)))

    def forget(self, partition: Partition) -> None:
        """Show that it is followed no more."""
        self._marked.pop(partition, None)
        lib.pt_show(
            partition.row,
            self.segment.find(find_place(partition.slot)),
            -1,
            -1,
            False,
            NONE_ABORTED,
            0,
        )

    def mark(self, partition: Partition) -> None:
        """Show it in the event loop's next turn."""
        self._marked[partition] = None
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def note_learned(self, partition: Partition) -> None:
        """Mark it. Show it at once where it has a lease of its own: its row may name a shared one, which the answer
        that is being learned renews for all.
        """
        if not partition.leader_state.lease.is_shared:
            self.show(partition)
        self.mark(partition)

    def flush(self) -> None:
        """Show all that is marked."""
        self._is_flushing = False
        marked, self._marked = self._marked, {}
        for partition in marked:
            self.show(partition)
        self._after()

    def sweep(self, partitions: Iterable[Partition]) -> None:
        """Show all that has changed."""
        for partition in partitions:
            self.show(partition)


def _list_aborted(aborted: Iterable[tuple[int, int, int, int]]) -> tuple[Any, int]:
    known = list(aborted)[-lib.PT_SHOWN_ABORTED - 1 :]
    return (ffi.new("pt_aborted[]", known), len(known)) if known else (NONE_ABORTED, 0)
