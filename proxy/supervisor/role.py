"""Roles of the processes that the supervisor starts.

Owns the names. Must not know what a role does (proxy/app.py).
"""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """ALONE: the one process of `workers: 1`. KEEPER: of several, the one that has the arena, asks the broker for
    truth and answers at the admin port. WORKER: one that accepts clients.
    """

    ALONE = "alone"
    KEEPER = "keeper"
    WORKER = "worker"

    @property
    def has_clients(self) -> bool:
        """Whether its process accepts clients."""
        return self is not Role.KEEPER

    @property
    def has_arena(self) -> bool:
        """Whether its process is given the arena's memory and the admin port."""
        return self is not Role.WORKER
