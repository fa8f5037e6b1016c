"""Certificates: when those of a PEM file end.

Owns the few fields of X.509 that this needs (RFC 5280, 4.1 and 5.1). Must not know keys or trust: OpenSSL
judges those. Invariants: nothing is read beyond the end of an element; what cannot be read has no end.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_PEM_BYTES = 4 << 20
_PEM = re.compile(rb"-----BEGIN (CERTIFICATE|X509 CRL)-----\s+([A-Za-z0-9+/=\s]+?)-----END \1-----")
_INTEGER, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x02, 0x30, 0x17, 0x18, 0xA0
_FORMATS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


class _Element(NamedTuple):
    tag: int
    content: bytes


def find_end(pem: bytes) -> float | None:
    """Unix time, in seconds, when the first certificate of a chain, or the first revocation list, ends. None if the
    text has none that can be read.
    """
    return min(_list_ends(pem), default=None)


def find_authority_end(pem: bytes, now_s: float) -> float | None:
    """As `find_end`, for a file of authorities: ended ones count only if all have ended, since they trust nobody."""
    ends = list(_list_ends(pem))
    return min((end for end in ends if end > now_s), default=max(ends, default=None))


def _list_ends(pem: bytes) -> Iterator[float]:
    for kind, text in _PEM.findall(pem):
        try:
            der = base64.b64decode(b"".join(text.split()), validate=True)
            yield _find_end(der, is_list=kind != b"CERTIFICATE")
        except (binascii.Error, ValueError, IndexError):
            continue


def _find_end(der: bytes, is_list: bool) -> float:
    """Raises ValueError or IndexError if there is no end to be read."""
    signed = _read_elements(_read_elements(der)[0].content)[0]
    fields = _read_elements(signed.content)
    if is_list:  # version?, signature, issuer, thisUpdate, nextUpdate?
        return _read_time(fields[4 if fields[0].tag == _INTEGER else 3])
    validity = fields[4 if fields[0].tag == _VERSION else 3]  # version?, serial, signature, issuer
    return _read_time(_read_elements(validity.content)[1])


def _read_elements(data: bytes) -> list[_Element]:
    """The elements of a DER sequence's content. Raises ValueError if one is longer than the data."""
    found, at = [], 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("an element is cut off")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            octets = length & 0x7F
            if not 1 <= octets <= 4:
                raise ValueError("a length is no DER")
            length = int.from_bytes(data[at : at + octets], "big")
            at += octets
        if at + length > len(data):
            raise ValueError("an element is cut off")
        found.append(_Element(tag, data[at : at + length]))
        at += length
    return found


def _read_time(element: _Element) -> float:
    text, form = element.content.decode("ascii"), _FORMATS.get(element.tag)
    if form is None:
        raise ValueError("an element is no time")
    moment = datetime.strptime(text, form).replace(tzinfo=UTC)
    if element.tag == _UTC_TIME and moment.year >= 2050:  # RFC 5280, 4.1.2.5.1: 50 to 99 are 19YY
        moment = moment.replace(year=moment.year - 100)
    return moment.timestamp()
