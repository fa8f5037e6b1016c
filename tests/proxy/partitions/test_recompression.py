"""The recompression check: one sample for each codec, compared with a fetched batch."""

import pytest

from proxy.partitions.recompression import SAMPLE_LIMIT_BYTES, Recompression

NONE, GZIP = 0, 1
CREATE, APPEND = False, True


def fetched(fidelity, body=b"body", base_offset=100, partition=0):
    return fidelity.compare_fetched(partition, base_offset, memoryview(body))


def stores(fidelity, codec):
    return fidelity.log_append_time is not None and codec in fidelity.equal_codecs


def wants_sample(fidelity, codec):
    return fidelity.log_append_time is not None and codec not in fidelity.equal_codecs


def build_sampled(body=b"body", codec=NONE):
    """The timestamp type is known, and a sample is held."""
    fidelity = Recompression()
    fidelity.learn(CREATE)
    fidelity.keep_sample(0, 100, codec, body)
    return fidelity


def test_unknown_timestamp_type_prevents_storing():
    fidelity = Recompression()
    assert fidelity.log_append_time is None
    assert not stores(fidelity, NONE)
    assert not wants_sample(fidelity, NONE)
    assert fidelity.is_as_known(CREATE)
    assert fidelity.is_as_known(APPEND)
    fidelity.learn(CREATE)
    assert fidelity.is_as_known(CREATE)
    assert not fidelity.is_as_known(APPEND)
    assert wants_sample(fidelity, NONE)
    assert not stores(fidelity, NONE)


def test_equal_sample_allows_its_codec_only():
    fidelity = build_sampled()
    assert fetched(fidelity) is True
    assert stores(fidelity, NONE)
    assert not wants_sample(fidelity, NONE)
    assert not stores(fidelity, GZIP)
    assert wants_sample(fidelity, GZIP)


def test_unequal_sample_begins_a_generation():
    fidelity = build_sampled()
    assert fetched(fidelity, b"other") is False
    assert not stores(fidelity, NONE)
    assert wants_sample(fidelity, NONE)
    assert fetched(fidelity) is None
    fidelity.keep_sample(0, 100, NONE, b"body")
    assert fetched(fidelity) is True
    assert stores(fidelity, NONE)


@pytest.mark.parametrize(("base_offset", "partition"), [(99, 0), (101, 0), (100, 1)])
def test_another_place_says_nothing_and_leaves_the_sample(base_offset, partition):
    fidelity = build_sampled()
    assert fetched(fidelity, b"other", base_offset, partition) is None
    assert fetched(fidelity) is True


def test_samples_of_two_codecs_stand_side_by_side():
    fidelity = build_sampled()
    fidelity.keep_sample(0, 200, GZIP, b"zipped")
    assert fetched(fidelity, b"zipped", 200) is True
    assert fetched(fidelity) is True
    assert fidelity.equal_codecs == {NONE, GZIP}


def test_latest_sample_of_a_codec_is_kept():
    fidelity = build_sampled()
    fidelity.keep_sample(0, 200, NONE, b"later")
    assert fetched(fidelity) is None
    assert fetched(fidelity, b"later", 200) is True


def test_a_new_generation_knows_nothing():
    fidelity = build_sampled()
    assert fetched(fidelity) is True
    fidelity.keep_sample(0, 200, GZIP, b"zipped")
    fidelity.begin_generation()
    assert fidelity.generation == 1
    assert fidelity.log_append_time is None
    assert fidelity.equal_codecs == set()
    assert fetched(fidelity, b"zipped", 200) is None


@pytest.mark.parametrize(
    ("size", "kept"), [(SAMPLE_LIMIT_BYTES, True), (SAMPLE_LIMIT_BYTES + 1, None)]
)
def test_a_sample_is_of_bounded_size(size, kept):
    body = bytes(size)
    assert fetched(build_sampled(body), body) is kept
