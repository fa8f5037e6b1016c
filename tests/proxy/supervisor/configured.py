"""Configurations of a supervisor without a broker, and the open descriptors of this process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.config.load import Setting, load
from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from proxy.config.keys import KeyPath
    from proxy.config.model import Config


def build_config(settings: dict[KeyPath, str] | None = None, upstream: str = f"{HOST}:1") -> Config:
    """One listener and the admin port, each at a free port."""
    given: dict[KeyPath, str] = {
        ("listeners", 0, "name"): "clients",
        ("listeners", 0, "listen"): f"{HOST}:0",
        ("listeners", 0, "upstream"): upstream,
        ("admin", "listen"): f"{HOST}:0",
        ("cache", "size"): "16MiB",
        **(settings or {}),
    }
    return load(None, {}, [Setting(path, value, "") for path, value in given.items()]).config


def count_descriptors() -> int:
    """Open descriptors of this process, without those of garbage that other tests have left."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
