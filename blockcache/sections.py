"""How large the sections of an arena are, where nobody says.

Owns the shares. Must not know how a section is used. Invariant: pure.
"""

from __future__ import annotations

from blockcache.layout import NODE_BYTES


def clamp(value: int, low: int, high: int) -> int:
    """`value`, held between the two."""
    return max(low, min(value, high))


def plan_sections(size_bytes: int, **given: int | None) -> dict[str, int]:
    """The fields of `fc_config` for an arena of `size_bytes`: what is `given`, else a share of it."""
    block_max = 1 << clamp(size_bytes // 64, 1024, 1024 * 1024).bit_length() - 1
    defaults = {
        "partitions_max": clamp(size_bytes // 16384, 16, 131072),
        "ghosts_max": clamp(size_bytes // 16384, 64, 65536),
        "nodes_max": max(16, size_bytes // 12 // NODE_BYTES),
        "block_max_bytes": block_max,
        "block_min_bytes": min(16384, given.get("block_max_bytes") or block_max),
        "shared_bytes": min(65536, given.get("block_max_bytes") or block_max),
        "pin_limit_bytes": size_bytes // 4,
        "lent_limit_bytes": size_bytes
        // 16,  # what requests under way may take from what is stored
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return {"size_bytes": size_bytes, **defaults, **chosen}
