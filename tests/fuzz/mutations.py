"""Frames of real brokers and clients, and what becomes of them on a bad day.

Owns the golden frames as plain rows and the ways to spoil one. Must not know who parses them. Invariant: the same seed
gives the same frames.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden"
EDGES = (0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
WORDS = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\x06\x40\x00\x00",
)
"""Lengths that are too long, negative, absent, and a varint of 32 bits; the last is 100 MiB."""
HEAD_BYTES = 8
"""Before which a request's API key and version, by which it was routed, and any frame's length stand."""


class GoldenFrame(NamedTuple):
    """`kind`: "request" or "response"."""

    api_key: int
    version: int
    kind: str
    frame: bytes


def read_golden() -> list[GoldenFrame]:
    """Every captured frame, each once."""
    found: dict[GoldenFrame, None] = {}
    for path in sorted(GOLDEN.glob("*.json")):
        file = json.loads(path.read_text())
        for row in (*file["exchanges"], *file["clients"]):
            for kind in ("request", "response"):
                found[GoldenFrame(row["api"], row["version"], kind, bytes.fromhex(row[kind]))] = (
                    None
                )
    return list(found)


def flip(frame: bytearray, rng: random.Random) -> None:
    frame[rng.randrange(HEAD_BYTES, len(frame))] ^= 1 << rng.randrange(8)


def put_edge(frame: bytearray, rng: random.Random) -> None:
    frame[rng.randrange(HEAD_BYTES, len(frame))] = rng.choice(EDGES)


def put_word(frame: bytearray, rng: random.Random) -> None:
    word, at = rng.choice(WORDS), rng.randrange(HEAD_BYTES, len(frame))
    frame[at : at + len(word)] = word


def insert(frame: bytearray, rng: random.Random) -> None:
    at = rng.randrange(HEAD_BYTES, len(frame))
    frame[at:at] = rng.randbytes(rng.randint(1, 9))


def delete(frame: bytearray, rng: random.Random) -> None:
    if len(frame) > HEAD_BYTES + 1:
        at = rng.randrange(HEAD_BYTES, len(frame) - 1)
        del frame[at : at + rng.randint(1, 9)]


def repeat(frame: bytearray, rng: random.Random) -> None:
    """A part of it once more."""
    at = rng.randrange(HEAD_BYTES, len(frame))
    frame[at:at] = frame[at : at + rng.randint(1, 40)]


def cut(frame: bytearray, rng: random.Random) -> None:
    del frame[rng.randrange(HEAD_BYTES, len(frame)) :]


HARMS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    put_edge,
    put_word,
    insert,
    delete,
    repeat,
    cut,
)


def spoil(frame: bytes, rng: random.Random) -> bytes:
    """One to four harms, its head as it was."""
    spoiled = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        if len(spoiled) > HEAD_BYTES + 1:
            rng.choice(HARMS)(spoiled, rng)
    return bytes(spoiled)
