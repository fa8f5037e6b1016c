"""Layouts of C structs that are words: each field is an int64 (native/ordinary.h).

Owns the check that Python and C name the same fields, in the same order. Must not know what they mean.
"""

from struct import Struct
from typing import Final

from protocol._ordinary import ffi

WORD_BYTES: Final = 8


def build_layout(struct: str, *fields: str) -> Struct:
    """Return the layout of a C struct of words. AssertionError unless C has these fields, in this order."""
    declared = tuple(name for name, _ in ffi.typeof(struct).fields)
    layout = Struct(f"={len(fields)}q")
    assert declared == fields and ffi.sizeof(struct) == layout.size, struct
    return layout


def count_words(struct: str, *fields: str) -> int:
    """Return the words of such a struct. AssertionError as `build_layout`."""
    return build_layout(struct, *fields).size // WORD_BYTES
