"""Memory of the workers' arena: opened before the first worker, closed after the last.

Owns the file's name, and whether the file stays when Forebay ends. Must not know what is in it: workers size, fill and
check it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from blockcache.arena_file import ArenaError, ArenaMemory, open_file, open_memory, remove_left

if TYPE_CHECKING:
    from proxy.config.model import Config

log = logging.getLogger("forebay.supervisor")


def find_path(config: Config) -> Path | None:
    """The arena's file; None where it is to be anonymous memory."""
    if not config.cache.directory:
        return None
    name = f"forebay-{config.listeners[0].listen.port or os.getpid()}.arena"
    return Path(config.cache.directory) / name


def open_arena(config: Config) -> ArenaMemory | None:
    """The memory: what an earlier Forebay left if `cache.keepArena` is set, else empty. The
    file has the first listener's port in its name, or this process's id where that is 0. None: `cache.mode` is not
    `serve`, and a file that was left is removed. Raises ArenaError.
    """
    wanted = config.cache
    path = find_path(config)
    if wanted.mode != "serve":
        if path is not None and remove_left(path):
            log.info("removed an arena that an earlier process left", extra={"file": str(path)})
        return None
    memory = open_memory() if path is None else open_file(path)
    if not wanted.keep_arena:
        memory.empty()
    return memory


def replace_arena(memory: ArenaMemory) -> None:
    """Have it be other, empty memory: who has the former one mapped keeps it. Where no other file can be made, it is
    anonymous from then on. Raises OSError.
    """
    try:
        memory.renew()
    except ArenaError as error:
        log.error("the cache lies in anonymous memory from now on: %s", error)
        memory.remove()
        memory.path = None
        memory.renew()


def close_arena(memory: ArenaMemory, config: Config) -> None:
    """Give the memory back, after the last worker. A file that is to be kept stays, unless nobody could use it."""
    if config.cache.keep_arena and memory.path is not None and memory.is_identified:
        kept = {"file": str(memory.path), "bytes": memory.size_bytes}
        log.info(
            "kept the arena's file for the next start; delete it to free its memory", extra=kept
        )
    else:
        memory.remove()
    memory.close()
