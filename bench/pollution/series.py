"""What load processes write and the lab reads: rows of 64-bit numbers in a file.

Owns the form of these files and the times in them: nanoseconds of the monotonic clock, which all processes of
a machine share. Must not know what is measured. Invariant: a file is whole rows, or it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    from numpy.typing import NDArray

NS = 1_000_000_000


def write_rows(path: Path, rows: array[int]) -> None:
    """`rows`: 64-bit numbers, row after row."""
    with path.open("wb") as file:
        rows.tofile(file)


def read_rows(path: Path, columns: int) -> NDArray[np.int64]:
    """An array of (rows, columns). ValueError: not whole rows."""
    return np.fromfile(path, dtype=np.int64).reshape(-1, columns)
