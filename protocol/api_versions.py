"""The cut of the broker's ApiVersions answer to what Forebay decodes.

Owns: ApiVersionsResponse.json, versions 0 to 4, of which it changes version ranges and one feature, nothing
else. Must not know: which client asked, what the caps are for. Invariants: what needs no cut is returned as
it came, and so are errors (KIP-511: the answer to an unknown version is error 35 in version 0) and versions
above 4; keys without a cap, Produce's minimum (KAFKA-18659) and all features stay the broker's, except that
Produce below 12 takes transaction.version down to 1 with it: from 2 on clients add partitions to transactions
by Produce 12 alone (KIP-890).
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from protocol.api import API_VERSIONS, APIS, PRODUCE, is_flexible
from protocol.primitives import (
    CLASSIC,
    FLEXIBLE,
    INT16,
    INT32,
    Encoding,
    Frame,
    read_array,
    read_string,
    refuses_garbage,
    scan_tags,
)

_BODY_START: Final = 8
_RANGE = Struct(">hhh")
_LEVELS = Struct(">hh")
_TAG_SUPPORTED: Final = 0
_TAG_FINALIZED: Final = 2
_TRANSACTIONS: Final = "transaction.version"
_IMPLICIT_ADD_FROM: Final = 12
_WITHOUT_IMPLICIT_ADD: Final = 1


@refuses_garbage
def cut_response(frame: Frame, version: int, caps: Mapping[int, tuple[int, int]]) -> Frame:
    """The answer to an ApiVersions request of `version`, each key's range cut to `caps` (key -> first, last).

    A key whose range is then empty is left out. Returns `frame` itself where nothing is cut; or `BadFrame`.
    """
    (error_code,) = INT16.unpack_from(frame, _BODY_START)
    if error_code or not APIS[API_VERSIONS].decodes(version):
        return frame
    encoding = FLEXIBLE if is_flexible(API_VERSIONS, version) else CLASSIC
    start = _BODY_START + 2
    ranges, rest = _scan_ranges(encoding, frame, start)
    cut = [_cut_range(*row, caps) for row in ranges]
    if cut == ranges:
        return frame
    kept = [row for row in cut if row[1] <= row[2]]
    out = bytearray(frame[:start]) + encoding.build_count(len(kept))
    for row in kept:
        out += _RANGE.pack(*row) + encoding.no_tags
    tail_start = len(out)
    out += frame[rest:]
    INT32.pack_into(out, 0, len(out) - 4)
    if encoding is FLEXIBLE and _loses_implicit_add(ranges, cut):
        _lower_transactions(out, tail_start)
    return bytes(out)


def _scan_ranges(
    encoding: Encoding, frame: Frame, at: int
) -> tuple[list[tuple[int, int, int]], int]:
    """(key, first, last) of each API, and the index after the array; tags of its elements are dropped."""
    ranges = []
    keys, at = read_array(encoding, frame, at)
    for _ in keys:
        ranges.append(_RANGE.unpack_from(frame, at))
        at = encoding.skip_tags(frame, at + _RANGE.size)
    return ranges, at


def _cut_range(
    key: int, first: int, last: int, caps: Mapping[int, tuple[int, int]]
) -> tuple[int, int, int]:
    if key not in caps:
        return key, first, last
    least, most = caps[key]
    return key, first if key == PRODUCE else max(first, least), min(last, most)


def _loses_implicit_add(
    ranges: list[tuple[int, int, int]], cut: list[tuple[int, int, int]]
) -> bool:
    """Whether the broker has Produce 12 and the cut takes it away."""
    return any(
        before[0] == PRODUCE and before[2] >= _IMPLICIT_ADD_FROM > after[2]
        for before, after in zip(ranges, cut, strict=True)
    )


def _lower_transactions(out: bytearray, tail_start: int) -> None:
    """Lower transaction.version in the supported and finalized features, in place."""
    tags, _ = scan_tags(out, tail_start + INT32.size)  # after the throttle time
    for tag, start, _end in tags:
        if tag not in (_TAG_SUPPORTED, _TAG_FINALIZED):
            continue
        features, at = read_array(FLEXIBLE, out, start)
        for _ in features:
            name, at = read_string(FLEXIBLE, out, at)
            if name == _TRANSACTIONS:  # supported: min, max; finalized: max, min
                levels = _LEVELS.unpack_from(out, at)
                _LEVELS.pack_into(out, at, *(min(level, _WITHOUT_IMPLICIT_ADD) for level in levels))
            at = FLEXIBLE.skip_tags(out, at + _LEVELS.size)
