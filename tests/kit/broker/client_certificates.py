"""Client certificates of many names, signed by an authority of their own.

Owns the authority's key, and the files of each client. Must not know who trusts it. Invariant: a name's files are
written once.
"""

from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.kit.broker.certificates import Identity, sign

if TYPE_CHECKING:
    from pathlib import Path

ISSUER = "forebay-test-clients"
"""Not the name of the servers' authority: OpenSSL completes a server's chain by name from all that it trusts."""


class ClientAuthority:
    """`certificate`: the path of its certificate, for whoever is to trust its clients."""

    def __init__(self, directory: "Path") -> None:
        """`directory`: a new one is made for all files."""
        directory.mkdir()
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._written: dict[str, Identity] = {}
        self.certificate = directory / "client-authority.crt"
        own = sign(ISSUER, self._key, ISSUER, self._key, ca=True)
        self.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def identity(self, name: str) -> Identity:
        """The files of the client CN=`name`."""
        if name not in self._written:
            self._written[name] = self._write(name)
        return self._written[name]

    def _write(self, name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = sign(name, key, ISSUER, self._key, ca=False)
        certificate = signed.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        files = Identity(
            *(self._directory / f"{name}{suffix}" for suffix in (".crt", ".key", ".pem"))
        )
        for path, content in zip(files, (certificate, private, private + certificate), strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return files
