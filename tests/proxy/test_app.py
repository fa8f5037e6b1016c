"""What the composition root does by itself: the arena is touched before requests need it, and the collector eased."""

import gc
import subprocess
import sys
import time

import pytest

from blockcache.cache import BlockCache
from proxy import app


async def test_the_whole_arena_is_prefaulted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PREFAULT_STEP_BYTES", 300_000)
    cache = BlockCache(1 << 20)
    assert cache.resident_bytes < 1 << 18
    await app.prefault(cache)
    assert cache.resident_bytes == 1 << 20
    cache.close()


def test_what_stands_is_not_collected_again() -> None:
    before = gc.get_freeze_count()
    try:
        app.freeze_what_stands()
        assert gc.get_freeze_count() > before + 10_000, "modules alone are more"
        assert sum(len(gc.get_objects(generation)) for generation in range(3)) < 10_000
    finally:
        gc.unfreeze()


def test_the_clock_goes_on_while_the_machine_is_suspended() -> None:
    """A machine that was suspended for a day, as far as its clocks tell."""
    program = "from proxy.app import read_clock_s; import time; print(read_clock_s() - time.monotonic())"
    suspended = ("unshare", "--time", "--boottime", "86400", "--fork")
    try:
        subprocess.run((*suspended, "true"), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        assert app.read_clock_s() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=10)
        return
    ran = subprocess.run((*suspended, sys.executable, "-c", program), check=True, capture_output=True)
    assert float(ran.stdout) > 86000


def test_the_clock_does_not_stand_still_within_a_callback() -> None:
    before = app.read_clock_s()
    time.sleep(0.002)
    assert app.read_clock_s() >= before + 0.002
