"""Distinguished names: the subject of a certificate as Java writes it.

Owns the walk over a certificate's DER (RFC 5280) as far as the subject, and the text of
`javax.security.auth.x500.X500Principal.getName()` (RFC 2253), which Kafka's
DefaultKafkaPrincipalBuilder gives to `ssl.principal.mapping.rules`. Must not know principals, rules or
sockets, nor whether a certificate is trusted. Invariants:
* bytes that are no certificate raise ValueError, and nothing else.
* the text of a subject is the same as Java's, since rules and ACLs were written for that.
"""

from __future__ import annotations

from typing import Final

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""Attribute types that RFC 2253 names (section 2.3). Java writes others as dotted numbers, with the
value's DER in hex.
"""
_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: written as text. Java
reads the bytes of all of them as UTF-8 here, BMPString's included.
"""
_ESCAPED: Final = ',=+<>#;"\\'
_LONG_LENGTH, _LENGTH_BYTES = 0x80, 4
_FIELDS_BEFORE_SUBJECT: Final = 4
"""Of TBSCertificate after the version: serial number, signature algorithm, issuer, validity."""


def read_subject(certificate: bytes) -> str:
    """The subject of a certificate in DER, as `X500Principal.getName()` writes it; "" for an empty
    subject. Raises ValueError if the bytes are no certificate.
    """
    try:
        _, at, _ = _read_head(certificate, 0, _SEQUENCE)
        _, at, end = _read_head(certificate, at, _SEQUENCE)
        if certificate[at] == _VERSION:
            at = _skip(certificate, at)
        for _ in range(_FIELDS_BEFORE_SUBJECT):
            at = _skip(certificate, at)
        return _write_name(certificate, at, end)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a certificate: {error}") from error


def _write_name(data: bytes, at: int, limit: int) -> str:
    _, at, end = _read_head(data, at, _SEQUENCE)
    if end > limit:
        raise ValueError("the subject ends behind its certificate")
    parts = []
    while at < end:
        _, first, at = _read_head(data, at, _SET)
        parts.append("+".join(_write_attributes(data, first, at)))
    return ",".join(reversed(parts))  # the most specific first (RFC 2253, 2.1)


def _write_attributes(data: bytes, at: int, end: int) -> list[str]:
    written = []
    while at < end:
        _, inner, at = _read_head(data, at, _SEQUENCE)
        _, first, last = _read_head(data, inner, _OID)
        written.append(_write_attribute(_read_oid(data[first:last]), data[last:at]))
    return written


def _write_attribute(oid: str, value: bytes) -> str:
    """`CN=text`, or `1.2.3=#hex` of the whole value in DER."""
    keyword = _KEYWORDS.get(oid, oid)
    tag, first, last = _read_head(value, 0)
    if keyword is oid or tag not in _TEXT_TAGS:
        return f"{keyword}=#{value[:last].hex()}"
    return f"{keyword}={_escape(value[first:last].decode(errors='replace'))}"


def _escape(text: str) -> str:
    """A value with the characters of RFC 2253, 2.4 escaped, and all spaces at both ends."""
    escaped = "".join(
        f"\\{one}" if one in _ESCAPED else "\\00" if one == "\0" else one for one in text
    )
    inner = escaped.strip(" \r")
    if not inner:
        return "".join(f"\\{one}" for one in escaped)
    lead, _, trail = escaped.partition(inner)
    return "".join(f"\\{one}" for one in lead) + inner + "".join(f"\\{one}" for one in trail)


def _read_oid(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] & 0x80:
        raise ValueError("an object identifier is empty or unfinished")
    root = min(numbers[0] // 40, 2)
    return ".".join(map(str, (root, numbers[0] - 40 * root, *numbers[1:])))


def _read_head(data: bytes, at: int, wanted: int | None = None) -> tuple[int, int, int]:
    """Tag of the element at `at`, and where its content begins and ends."""
    tag, length = data[at], data[at + 1]
    if wanted is not None and tag != wanted:
        raise ValueError(f"DER tag {tag:#x} where {wanted:#x} was due")
    first = at + 2
    if length >= _LONG_LENGTH:
        size = length - _LONG_LENGTH
        if not 0 < size <= _LENGTH_BYTES:
            raise ValueError("a DER length is not definite")
        length, first = int.from_bytes(data[first : first + size], "big"), first + size
    if first + length > len(data):
        raise ValueError("a DER element ends behind its data")
    return tag, first, first + length


def _skip(data: bytes, at: int) -> int:
    return _read_head(data, at)[2]
