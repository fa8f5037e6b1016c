"""The cut, read back by kio: what is decoded is capped, everything else is the broker's."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module, load_response_schema
from kio.static.constants import EntityType

from protocol.api import API_VERSIONS, CAPS, FETCH, PRODUCE
from protocol.api_versions import cut_response
from protocol.errors import BadFrame
from tests.protocol import oracle

VERSIONS = range(5)
LOW_CAPS = {PRODUCE: (3, 11), FETCH: (4, 12)}


def answer(version, ranges, *, error_code=0, features=()):
    """A broker's answer with these (key, first, last) and, from version 3, (name, level) features."""
    module = load_payload_module(API_VERSIONS, version, EntityType.response)
    rows = tuple(module.ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in ranges)
    body = load_response_schema(API_VERSIONS, version)
    values = {"error_code": oracle.ErrorCode(error_code), "api_keys": rows}
    if version >= 1:
        values["throttle_time"] = oracle.timedelta(milliseconds=3)
    if version >= 3:
        values["supported_features"] = tuple(
            module.SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in features
        )
        values["finalized_features"] = tuple(
            module.FinalizedFeatureKey(name=name, min_version_level=0, max_version_level=level)
            for name, level in features
        )
        values["finalized_features_epoch"] = 99
    return body(**values)


def ranges_of(body):
    return [(row.api_key, row.min_version, row.max_version) for row in body.api_keys]


def cut(body, caps=CAPS):
    frame = cut_response(oracle.response_frame(body, 5), body.__version__, caps)
    header, read = oracle.read_frame(type(body), bytes(frame))
    assert header.correlation_id == 5
    return read


BROKER_43 = [(0, 0, 13), (1, 4, 18), (2, 1, 11), (3, 0, 13), (18, 0, 4), (7777, 0, 3)]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_needs_no_cut_is_the_same_object(version):
    frame = oracle.response_frame(answer(version, BROKER_43))

    assert cut_response(frame, version, CAPS) is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_a_newer_broker_is_capped_and_a_fetch_minimum_raised_but_produce_keeps_its_own(version):
    body = answer(
        version, [(0, 0, 14), (1, 0, 19), (2, 1, 99), (7777, 0, 300)], features=[("f", 3)]
    )

    read = cut(body)

    assert ranges_of(read) == [(0, 0, 13), (1, 4, 18), (2, 1, 99), (7777, 0, 300)]
    assert dataclasses.replace(read, api_keys=()) == dataclasses.replace(body, api_keys=())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_key_whose_range_is_empty_is_left_out(version):
    assert ranges_of(cut(answer(version, [(0, 14, 15), (1, 0, 3), (3, 0, 13)]))) == [(3, 0, 13)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_range_of_one_version_stays(version):
    assert ranges_of(cut(answer(version, [(0, 13, 15), (1, 0, 4)]))) == [(0, 13, 13), (1, 4, 4)]


def levels_of(body):
    supported = {f.name: f.max_version for f in body.supported_features}
    finalized = {f.name: f.max_version_level for f in body.finalized_features}
    assert supported == finalized
    return supported


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("produce_last", "caps", "level"),
    [(13, LOW_CAPS, 1), (12, LOW_CAPS, 1), (11, LOW_CAPS, 2), (14, {**CAPS, PRODUCE: (3, 12)}, 2)],
)
def test_transactions_fall_to_version_1_exactly_when_produce_12_is_cut_away(
    version, produce_last, caps, level
):
    features = [("group.version", 1), ("transaction.version", 2), ("metadata.version", 27)]
    body = answer(version, [(0, 0, produce_last), (1, 4, 18)], features=features)

    read = cut(body, caps)

    assert levels_of(read) == {
        "group.version": 1,
        "transaction.version": level,
        "metadata.version": 27,
    }
    assert read.finalized_features_epoch == 99
    assert all(f.min_version_level == 0 for f in read.finalized_features)


@pytest.mark.parametrize("version", [3, 4])
def test_transactions_below_version_1_stay(version):
    body = answer(version, [(0, 0, 13)], features=[("transaction.version", 0)])

    assert levels_of(cut(body, LOW_CAPS)) == {"transaction.version": 0}


@pytest.mark.parametrize("asked", [0, 3, 4, 9])
def test_the_downgrade_answer_to_an_unknown_version_is_passed_on(asked):
    frame = oracle.response_frame(answer(0, [(18, 0, 4), (0, 0, 99)], error_code=35))

    assert cut_response(frame, asked, CAPS) is frame


def test_an_answer_in_a_version_that_is_not_decoded_is_passed_on():
    frame = oracle.response_frame(answer(4, [(0, 0, 99)]))

    assert cut_response(frame, 5, CAPS) is frame


def expected_of(rows, last):
    """Kept as they are if no row is cut, else without the empty ones."""
    cut_rows = [(k, a if k == PRODUCE else max(a, 0), min(b, last)) for k, a, b in rows]
    return rows if cut_rows == rows else [row for row in cut_rows if row[1] <= row[2]]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_answer_of_kio_is_cut_and_otherwise_kept(version, data):
    drawn = data.draw(oracle.responses(API_VERSIONS, version))
    body = dataclasses.replace(drawn, error_code=oracle.ErrorCode(0))
    caps = {row.api_key: (0, 5) for row in body.api_keys}

    read = cut(body, caps)

    assert ranges_of(read) == expected_of(ranges_of(body), 5)
    assert dataclasses.replace(read, api_keys=()) == dataclasses.replace(body, api_keys=())
    assert cut(drawn, caps) == (drawn if drawn.error_code else read)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_answer_is_refused(version):
    frame = oracle.response_frame(answer(version, [(0, 0, 99), (1, 0, 99)]))

    for length in range(4, 10 + 4 + 6):
        with pytest.raises(BadFrame):
            cut_response(frame[:length], version, CAPS)
