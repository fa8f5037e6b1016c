"""What the composition root does by itself: the arena is touched before requests need it, and the collector eased."""

import gc

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
