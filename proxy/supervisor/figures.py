"""Figures: numbers of the supervisor that a worker or the keeper shows, in a page that both have mapped.

Owns the page and its order. Must not know what is counted when. Invariants: the supervisor alone writes, but for
CONNECTIONS, of which each worker writes its own; one aligned word at a time, so that no reader sees half of one; a
worker of another build reads by the names that came with it.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final, Literal

from proxy.config.model import MOST_WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FigureName = tuple[str, ...]
"""A metric's name, and the value of its label if it has one."""

Reason = Literal["exit", "signal", "hung", "oom"]
"""How a worker ended that was replaced."""
REASONS: Final[tuple[Reason, ...]] = ("exit", "signal", "hung", "oom")
RESTARTS: Final = "forebay_worker_restarts_total"
KEEPER_RESTARTS: Final = "forebay_keeper_restarts_total"
WORKERS: Final = "forebay_workers"
WORKERS_EXPECTED: Final = "forebay_workers_expected"
KEEPER_READY: Final = "forebay_keeper_ready"
UPGRADES: Final = "forebay_upgrades_total"
STARVATIONS: Final = "forebay_worker_starvations_total"
PIPES: Final = "forebay_pipes"
PIPES_TOTAL: Final = "forebay_pipes_total"
PIPES_REFUSED: Final = "forebay_pipes_refused_total"
FALLBACK: Final = "forebay_fallback"
BYPASSED: Final = "forebay_bypassed_listeners"
CONNECTIONS: Final = "forebay_worker_connections"
ABSENT: Final = -1
"""In place of the connections of a worker that accepts nobody."""
FIGURES: Final[tuple[FigureName, ...]] = (
    *((RESTARTS, reason) for reason in REASONS),
    *((KEEPER_RESTARTS, reason) for reason in REASONS),
    (WORKERS,),
    (WORKERS_EXPECTED,),
    (KEEPER_READY,),
    (UPGRADES, "done"),
    (UPGRADES, "failed"),
    (STARVATIONS,),
    (PIPES,),
    (PIPES_TOTAL,),
    (PIPES_REFUSED,),
    (FALLBACK,),
    (BYPASSED,),
    *((CONNECTIONS, str(number)) for number in range(1, MOST_WORKERS + 1)),
)

LABELS: Final = {
    RESTARTS: "reason",
    KEEPER_RESTARTS: "reason",
    UPGRADES: "upgrade",
    CONNECTIONS: "worker",
}
"""The label of each metric that has one."""


class Figures:
    """All figures; 0 at first, and no worker has connections."""

    __slots__ = ("_page", "_place", "_words", "fd", "names")

    def __init__(self, fd: int | None = None, names: Sequence[FigureName] = FIGURES) -> None:
        """`fd` None: a new page, of this process. `names`: of its words, in their order."""
        is_new = fd is None
        if fd is None:
            fd = os.memfd_create("forebay-figures")
            os.ftruncate(fd, mmap.PAGESIZE)
        self.fd = fd
        self.names = tuple(names)
        self._place = {name: index for index, name in enumerate(self.names)}
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._page).cast("q")
        if is_new:
            for name in self.list_connections():
                self[name] = ABSENT

    def __getitem__(self, name: FigureName) -> int:
        """The number of that name. KeyError: there is none."""
        return int(self._words[self._place[name]])

    def __setitem__(self, name: FigureName, value: int) -> None:
        """Write the number of that name."""
        self._words[self._place[name]] = value

    def list_connections(self) -> list[FigureName]:
        """The names of the workers' connections, in their order; none in the page of another build."""
        return [name for name in self.names if name[0] == CONNECTIONS]

    def read(self) -> Iterator[tuple[FigureName, int]]:
        """All names and numbers, without workers that accept nobody."""
        for name in self.names:
            value = self[name]
            if value != ABSENT or name[0] != CONNECTIONS:
                yield name, value

    def close(self) -> None:
        """Close the page here."""
        self._words.release()
        self._page.close()
        os.close(self.fd)
