"""The arena's memory is replaced while processes have the former one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from proxy.supervisor.arena import close_arena, open_arena, replace_arena
from tests.proxy.supervisor.configured import build_config

if TYPE_CHECKING:
    from pathlib import Path


def test_another_file_takes_the_place_of_the_former(tmp_path: Path) -> None:
    config = build_config({("cache", "directory"): str(tmp_path)})
    memory = open_arena(config)
    assert memory is not None and memory.path is not None
    memory.allocate(1 << 20)
    fd, former = memory.fd, os.fstat(memory.fd)
    mapped = os.dup(fd)
    replace_arena(memory)
    assert (memory.fd, memory.size_bytes) == (fd, 0)
    assert not os.path.samestat(former, os.fstat(memory.fd))
    assert os.path.samestat(memory.path.stat(), os.fstat(memory.fd))
    assert os.fstat(mapped).st_size == 1 << 20, "who has it keeps it"
    close_arena(memory, config)
    os.close(mapped)
    assert not list(tmp_path.iterdir())


def test_where_no_file_can_be_made_the_cache_is_in_memory_without_a_name(tmp_path: Path) -> None:
    config = build_config({("cache", "directory"): str(tmp_path)})
    memory = open_arena(config)
    assert memory is not None and memory.path is not None
    memory.allocate(1 << 20)
    (tmp_path / f"{memory.path.name}.new").mkdir()
    path = memory.path
    replace_arena(memory)
    assert (memory.path, memory.size_bytes, path.exists()) == (None, 0, False)
    close_arena(memory, config)
