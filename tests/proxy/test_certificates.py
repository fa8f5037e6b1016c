"""When certificates, authorities and revocation lists end, read off PEM files of another library."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from proxy.certificates import find_authority_end, find_end
from tests.kit.broker.certificates import write_certificates, write_crl, write_identity

if TYPE_CHECKING:
    from pathlib import Path

DAY = datetime.timedelta(days=1)


def end_of(path: Path) -> float:
    found: float = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    return found


@pytest.mark.parametrize("days", [-1, 1, 365, 20_000, 2_000_000])
def test_the_end_is_that_of_another_reader(days: int, tmp_path: Path) -> None:
    """From 2050 on times have four digits of a year."""
    key = ec.generate_private_key(ec.SECP256R1())
    path = write_identity(tmp_path, "x", key, days * DAY + DAY / 2).certificate
    assert find_end(path.read_bytes()) == end_of(path)


def test_a_chain_ends_with_its_first(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    chain = [
        write_identity(tmp_path, name, key, days * DAY).certificate
        for name, days in (("a", 9), ("b", 3), ("c", 5))
    ]
    pem = b"\n".join(b"a comment\n" + path.read_bytes() for path in chain)
    assert find_end(pem) == end_of(chain[1])


def test_ended_authorities_count_only_alone(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    old, older, new = (
        write_identity(tmp_path, name, key, days * DAY / 2).certificate
        for name, days in (("old", -1), ("older", -1.5), ("new", 9))
    )
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    both = old.read_bytes() + new.read_bytes()
    assert find_authority_end(both, now_s) == end_of(new)
    ended = older.read_bytes() + old.read_bytes()
    assert find_authority_end(ended, now_s) == end_of(old)


def test_a_revocation_list_ends_with_its_next_update(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "list.pem"
    write_crl(path, key, lasts=3 * DAY)
    read = x509.load_pem_x509_crl(path.read_bytes()).next_update_utc
    assert read is not None
    assert find_end(path.read_bytes()) == read.timestamp()


def test_keys_and_other_text_have_no_end(tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    for pem in (b"", b"text", files.server.key.read_bytes()):
        assert find_end(pem) is None
        assert find_authority_end(pem, 0.0) is None


@given(st.data())
def test_no_bytes_of_a_certificate_raise(data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=200))
    pem = x509_text(body)
    end = find_end(pem)
    assert end is None or isinstance(end, float)


def x509_text(der: bytes) -> bytes:
    import base64

    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


@given(cut=st.integers(0, 2000), flip=st.integers(0, 2000), value=st.integers(0, 255))
def test_no_spoiled_certificate_raises(cut: int, flip: int, value: int) -> None:
    der = bytearray(WHOLE)
    der[flip % len(der)] = value
    end = find_end(x509_text(bytes(der[: cut % (len(der) + 1)])))
    assert end is None or isinstance(end, float)


def _build_whole() -> bytes:
    import tempfile
    from pathlib import Path as RealPath

    from cryptography.hazmat.primitives.serialization import Encoding

    key = ec.generate_private_key(ec.SECP256R1())
    with tempfile.TemporaryDirectory() as directory:
        pem = write_identity(RealPath(directory), "x", key).certificate.read_bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


WHOLE = _build_whole()
