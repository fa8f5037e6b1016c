"""Signals of both processes: which end them in order, and which are ignored.

Owns the two lists. Must not know what ending means.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("forebay")

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Until the process has a use for them. Their default action ends the process and leaves its arena
behind.
"""


def handle_signals(end: Callable[[], object]) -> None:
    """Have the running loop call `end` at each signal of ENDING, and log those of IGNORED."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, end)
    for number in IGNORED:
        loop.add_signal_handler(number, tell_ignored, number)


def tell_ignored(number: signal.Signals) -> None:
    """Log that a signal was ignored, since its sender expects something else."""
    log.warning(
        "ignoring a signal: once the process has started, SIGHUP reloads the configuration and SIGUSR2"
        " upgrades in place",
        extra={"signal": number.name},
    )
