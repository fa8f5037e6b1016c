"""Opens what outlives requests: the block cache and the access log of a process.

Owns which memory and which directory they get. Must not know requests. Invariant: nothing here awaits the broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blockcache.cache import BlockCache
from metrics.access_log import AccessLog, LogLimits
from proxy.supervisor.role import Role

if TYPE_CHECKING:
    from blockcache.arena_file import ArenaMemory
    from proxy.config.model import Config

log = logging.getLogger("forebay")

SMALLEST_ARENA_BYTES = 1 << 20
PREFAULT_STEP_BYTES = 4 << 20
"""Bytes of the arena that a thread beside the event loop touches at a time: two or three
milliseconds of another core.
"""


def open_cache(config: Config, memory: ArenaMemory | None, role: Role = Role.ALONE) -> BlockCache:
    """The block cache over the supervisor's `memory`, which it owns from then on. An observing one, one
    that stores nothing, and one without a supervisor have memory of their own; so has a worker's, until
    the keeper lets it read another. Raises ArenaError.
    """
    wanted = config.cache
    if role is Role.WORKER:
        return BlockCache(SMALLEST_ARENA_BYTES)
    if wanted.mode == "serve":
        return BlockCache(wanted.size_bytes, memory)
    if memory is not None and memory.try_lock():  # left by a worker of another mode
        memory.empty()
    observes = wanted.mode == "observe"
    return BlockCache(wanted.size_bytes if observes else SMALLEST_ARENA_BYTES, observe=observes)


async def prefault(cache: BlockCache) -> None:
    """Touch the whole arena in steps, so that no request pays for a page's first use."""
    for at in range(0, cache.statistics().arena_bytes, PREFAULT_STEP_BYTES):
        await asyncio.to_thread(cache.prefault, at, PREFAULT_STEP_BYTES)


def open_access_log(config: Config, boot: str, role: Role = Role.ALONE) -> AccessLog | None:
    """The access log of a process; None if `accessLog.directory` is unset."""
    wanted = config.access_log
    if wanted.directory is None:
        return None
    limits = LogLimits(
        queue_lines=wanted.queue_lines,
        rotate_bytes=wanted.rotate_size_bytes,
        max_files=wanted.keep_files,
        max_total_bytes=wanted.keep_size_bytes,
    )
    return AccessLog(
        Path(wanted.directory),
        boot,
        now_ms=lambda: time.time_ns() // 1_000_000,
        keeper="" if role is Role.WORKER else None,
        cache_size_bytes=config.cache.size_bytes,
        limits=limits,
        on_state=partial(tell_access_log, wanted.directory),
    )


def tell_access_log(directory: str, doing: str, error: str) -> None:
    """Log that the access log's disk has begun to fail, or works again (`error` ""). Called on the
    access log's thread.
    """
    fields = {"directory": directory, "doing": doing}
    if error:
        log.error("the access log fails, its lines are dropped", extra=fields | {"reason": error})
    else:
        log.info("the access log is written again", extra=fields)
