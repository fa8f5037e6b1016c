"""The row of a partition: its state that C reads and changes, too (native/rows.h).

Owns the memory of a row, and how Python reads a word of it. Must not know what the words mean:
`LeaderState`, `Partition`, `Transactions`, `Recompression` and `StoredRuns` own them. Invariant: a row
lives as long as any object that holds it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from proxy.partitions._rows import ffi, lib

T = TypeVar("T")
RUN_ROWS = lib
"""The functions of C that change the run of stored batches in a row: `RunRows` of accounting/stored_runs.py."""
NO_ROW = ffi.NULL
"""Stands for the row of a partition that is not stored."""


def open_row(slot: int = -1, fidelity: Any = ffi.NULL) -> Any:
    """Return a new row (`pt_row *`), in which all is unknown. `slot`: number in the cache, -1 if it
    has none. `fidelity`: that of the topic (`pt_fidelity *`), which must live as long as the row.
    Raises MemoryError.
    """
    row = lib.pt_new_row(slot, fidelity)
    if row == ffi.NULL:
        raise MemoryError("no memory for a partition's row")
    return ffi.gc(row, lib.pt_free_row)


class Word(Protocol[T]):
    """A field of the row as an attribute of its owner."""

    def __get__(self, owner: object, kind: type[object]) -> T: ...
    def __set__(self, owner: object, value: T) -> None: ...


def word(name: str, kind: type[T]) -> Word[T]:
    """Return the property that reads and writes the field `name` of `self.row`, a `kind`. The read
    runs in C.
    """
    assert kind in (bool, int, float)

    def write(owner: Any, value: object) -> None:
        setattr(owner.row, name, value)

    return cast("Word[T]", property(attrgetter(f"row.{name}"), write))
