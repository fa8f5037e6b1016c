"""Certificates and a revocation list of a listener, which end when a test says so.

Owns the authority and its files in a directory. Must not know who loads them.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.kit.broker.certificates import sign, write_crl, write_identity

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY = "forebay-test-ca"
YEAR_DAYS = 365


class ListenerTls:
    """`section`: the listener's `tls`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        lasts = datetime.timedelta(days=YEAR_DAYS)
        own = sign(AUTHORITY, self._key, AUTHORITY, self._key, ca=True, lasts=lasts)
        authority = directory / "listener-ca.crt"
        authority.write_bytes(own.public_bytes(serialization.Encoding.PEM))
        self._list = directory / "listener.crl"
        self.write()
        self.section = {
            "certificateFile": str(directory / "listener.crt"),
            "keyFile": str(directory / "listener.key"),
            "clientAuth": "required",
            "clientCaFile": str(authority),
            "crlFile": str(self._list),
        }

    def write(self, days: float = YEAR_DAYS, list_hours: float = 24 * YEAR_DAYS) -> None:
        """Write a certificate with its key, and a list, which end so much later."""
        lasts = datetime.timedelta(days=days)
        write_identity(self._directory, "listener", self._key, lasts)
        write_crl(self._list, self._key, lasts=datetime.timedelta(hours=list_hours))

    def spoil_key(self) -> None:
        """Write a key that does not fit the certificate."""
        other = self._directory / "other"
        other.mkdir(exist_ok=True)
        identity = write_identity(other, "listener", self._key)
        (self._directory / "listener.key").write_bytes(identity.key.read_bytes())
