"""Kafka's numbers."""

import kio.schema.errors

from protocol.errors import BadFrame, ErrorCode


def test_the_codes_are_kafkas():
    kafkas = {code.name: code.value for code in kio.schema.errors.ErrorCode}

    assert {code.name.lower(): code.value for code in ErrorCode} == {
        code.name.lower(): kafkas[code.name.lower()] for code in ErrorCode
    }


def test_a_scanned_number_compares_equal():
    assert ErrorCode.OFFSET_OUT_OF_RANGE == 1


def test_a_bad_frame_says_what_is_wrong():
    assert str(BadFrame("a length of -1")) == "a length of -1"
