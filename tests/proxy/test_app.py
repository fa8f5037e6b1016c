"""What the composition root does by itself: the arena is touched before requests need it."""

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
