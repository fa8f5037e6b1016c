"""The composition root: it touches the arena before requests need it, and eases the collector."""

import asyncio
import contextlib
import gc
import io
import os
import subprocess
import sys
import threading
import time

import pytest

from blockcache.arena_file import ArenaMemory, open_memory
from blockcache.cache import BlockCache
from metrics.log_files import LogFiles
from proxy import app, memory_and_log
from proxy.admin.log_queue import LogQueue
from proxy.config.load import Setting, load
from proxy.config.model import Config
from proxy.sockets import bind_all
from proxy.supervisor.figures import Figures
from proxy.supervisor.handover import ConfigInForce, Handover
from proxy.supervisor.role import Role
from tests.kit.broker.settings import HOST
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.followed_partition import known


def build_config(**addresses):
    given = {"listen": f"{HOST}:0", "admin": f"{HOST}:0"} | addresses
    settings = {
        ("listeners", 0, "listen"): given["listen"],
        ("listeners", 0, "upstream"): f"{HOST}:1",
        ("listeners", 0, "name"): "clients",
        ("cache", "size"): "16MiB",
        ("admin", "listen"): given["admin"],
        ("accessLog", "directory"): given.get("log"),
    }
    return load(
        None, {}, [Setting(path, value, "") for path, value in settings.items() if value]
    ).config


async def test_the_whole_arena_is_prefaulted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_and_log, "PREFAULT_STEP_BYTES", 300_000)
    cache = BlockCache(1 << 20)
    assert cache.resident_bytes < 1 << 18
    await memory_and_log.prefault(cache)
    assert cache.resident_bytes == 1 << 20
    cache.close()


def test_startup_objects_are_not_collected() -> None:
    gc.unfreeze()  # what the tests themselves have frozen
    try:
        app.freeze_what_stands()
        assert gc.get_freeze_count() > 10_000, "modules alone are more"
        assert sum(len(gc.get_objects(generation)) for generation in range(3)) < 10_000
    finally:
        gc.unfreeze()


def test_clock_advances_while_the_machine_is_suspended() -> None:
    """A machine that was suspended for a day, as far as its clocks tell."""
    program = (
        "from proxy.app import read_clock_s; import time; print(read_clock_s() - time.monotonic())"
    )
    suspended = ("unshare", "--time", "--boottime", "86400", "--fork")
    try:
        subprocess.run((*suspended, "true"), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        assert app.read_clock_s() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=10)
        return
    ran = subprocess.run(
        (*suspended, sys.executable, "-c", program), check=True, capture_output=True
    )
    assert float(ran.stdout) > 86000


def test_freed_memory_of_frames_is_used_again() -> None:
    """Frames of 256 KB, eight at a time, again and again: their pages are touched anew if malloc has
    given them back.
    """
    program = """
import resource
from proxy.app import keep_freed_memory
keep_freed_memory()
def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        frames = [bytes(256_000) for _ in range(8)]
        del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
count_faults()
print(count_faults())
"""
    ran = subprocess.run((sys.executable, "-c", program), check=True, capture_output=True)
    assert int(ran.stdout) < 8 * 256_000 / 4096, "as few as one of twenty rounds would cost"


def test_clock_advances_within_a_callback() -> None:
    before = app.read_clock_s()
    time.sleep(0.002)
    assert app.read_clock_s() >= before + 0.002


async def test_full_disk_of_the_access_log_is_logged(monkeypatch, caplog, tmp_path):
    def fail(self: LogFiles, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogFiles, "write", fail)
    log = known(memory_and_log.open_access_log(build_config(log=str(tmp_path)), "b1"))
    log.put((1, "", "t", None, 0, 0, 1, 1, "produce", 1, 1, 0, 1, (), None))
    assert await asyncio.to_thread(log.close)
    (record,) = caplog.records
    assert (record.levelname, record.doing, record.directory) == ("ERROR", "writing", str(tmp_path))
    assert "No space left" in record.reason


async def test_heart_beats_while_the_arena_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is. Without its supervisor the worker ends."""
    config = build_config()
    may_go_on, opened = threading.Event(), memory_and_log.open_cache

    def open_slowly(config: Config, memory: ArenaMemory | None, role: Role) -> BlockCache:
        may_go_on.wait(PATIENCE_S)
        assert memory is not None and memory.fd == arena.fd
        return opened(config, memory, role)

    monkeypatch.setattr(app, "open_cache", open_slowly)
    reader, writer = os.pipe()
    in_force, arena = ConfigInForce(), open_memory()
    handover = Handover(config, in_force, (), bind_all(config), writer, arena, Figures())
    serving = asyncio.create_task(app.serve(handover, LogQueue(io.BytesIO(), 10)))
    os.set_blocking(reader, False)
    beats = b""

    def read() -> bytes:
        nonlocal beats
        with contextlib.suppress(BlockingIOError):
            beats += os.read(reader, 100)
        return beats

    try:
        await until(lambda: read().count(b"s") >= 3)
        assert b"r" not in beats
        may_go_on.set()
        await until(lambda: b"r" in read())
    finally:
        may_go_on.set()
        os.close(reader)
    assert await serving == 0
    os.close(writer)
    gc.unfreeze()
