"""The primitives at their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers

from protocol import primitives
from protocol.errors import BadFrame

BOUNDS = [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000, 0xFFFFFFF, 0x10000000, 0xFFFFFFFF]


@pytest.mark.parametrize("value", BOUNDS)
def test_varints_at_the_bounds_of_their_lengths(value):
    built = primitives.build_uvarint(value)

    assert readers.read_unsigned_varint(built, 0) == (value, len(built))
    assert primitives.read_uvarint(b"?" + built + b"?", 1) == (value, 1 + len(built))


@given(st.integers(0, 0xFFFFFFFF))
def test_varints_are_kios(value):
    built = primitives.build_uvarint(value)

    assert (
        primitives.read_uvarint(built, 0)
        == readers.read_unsigned_varint(built, 0)
        == (value, len(built))
    )


def test_a_varint_of_six_bytes_is_refused():
    assert primitives.read_uvarint(b"\x80\x80\x80\x80\x01", 0) == (1 << 28, 5)
    with pytest.raises(BadFrame, match="five bytes"):
        primitives.read_uvarint(b"\x80\x80\x80\x80\x80\x01", 0)


@pytest.mark.parametrize(
    "encoding", [primitives.CLASSIC, primitives.FLEXIBLE], ids=["classic", "flexible"]
)
@given(value=st.one_of(st.none(), st.text(max_size=70)))
def test_strings_survive(encoding, value):
    built = encoding.build_string(value)

    assert encoding.read_nullable_string(built, 0) == (value, len(built))
    if value is None:
        with pytest.raises(BadFrame, match="null"):
            primitives.read_string(encoding, built, 0)
    else:
        assert primitives.read_string(encoding, bytearray(built), 0) == (value, len(built))
        assert primitives.read_string(encoding, memoryview(built), 0) == (value, len(built))


@pytest.mark.parametrize(
    "encoding", [primitives.CLASSIC, primitives.FLEXIBLE], ids=["classic", "flexible"]
)
def test_a_count_may_be_as_large_as_the_bytes_left_and_no_larger(encoding):
    built = encoding.build_count(3)

    assert encoding.read_count(built + b"abc", 0) == (3, len(built))
    with pytest.raises(BadFrame, match="a length of 3 where 2"):
        encoding.read_count(built + b"ab", 0)


@pytest.mark.parametrize(
    "encoding", [primitives.CLASSIC, primitives.FLEXIBLE], ids=["classic", "flexible"]
)
def test_null_counts(encoding):
    built = encoding.build_count(-1)

    assert encoding.read_count(built, 0) == (-1, len(built))
    with pytest.raises(BadFrame, match="an array is null"):
        primitives.read_array(encoding, built, 0)


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\0\2a", b"\x80\0"])
def test_classic_strings_of_impossible_length_are_refused(raw):
    with pytest.raises(BadFrame):
        primitives.CLASSIC.read_nullable_string(raw, 0)


def test_tagged_fields_are_found_and_skipped():
    section = bytes.fromhex("03 00 00 05 02 aabb ff01 01 cc")

    tags, end = primitives.scan_tags(section + b"?", 0)

    assert end == primitives.skip_tags(section + b"?", 0) == len(section)
    assert [(tag, section[start:stop]) for tag, start, stop in tags] == [
        (0, b""),
        (5, b"\xaa\xbb"),
        (255, b"\xcc"),
    ]


@pytest.mark.parametrize("section", ["01", "01 00", "01 00 01", "05 00 00", "80"])
def test_broken_tagged_sections_are_refused(section):
    for read in (primitives.scan_tags, primitives.skip_tags):
        with pytest.raises(BadFrame):
            primitives.refuses_garbage(read)(bytes.fromhex(section), 0)


def test_a_topic_id_needs_its_sixteen_bytes():
    assert primitives.read_topic_id(bytes(17), 1) == (bytes(16), 17)
    with pytest.raises(BadFrame, match="topic id"):
        primitives.read_topic_id(bytes(16), 1)


def test_text_that_is_not_utf8_is_the_senders_fault():
    with pytest.raises(BadFrame, match="not UTF-8"):
        primitives.refuses_garbage(primitives.read_string)(primitives.CLASSIC, b"\0\1\xff", 0)
