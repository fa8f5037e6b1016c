"""A delegation token as SCRAM shows it (KIP-48).

Owns the secret and its salted form. Must not know who it stands for, nor a connection. Invariant: the secret leaves
this object in no other form than the salted one (RFC 5802).
"""

import base64
import hashlib
from typing import Final

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Names of hashes, by SASL mechanism."""


class DelegationToken:
    """A delegation token's id and secret. Keeps the salted secret of the last salt, which takes 4,096 rounds of a
    hash: the broker has one salt for all connections of a token.
    """

    __slots__ = ("_challenge", "_salted", "_secret", "mechanism", "token_id")

    def __init__(self, token_id: str, secret: bytes, mechanism: str) -> None:
        """`secret`: the token's HMAC. `mechanism`: a key of HASHES."""
        self.token_id = token_id
        self.mechanism = mechanism
        self._secret = base64.b64encode(secret)  # DelegationToken.hmacAsBase64String
        self._challenge: tuple[bytes, int] | None = None
        self._salted = b""

    def salt(self, salt: bytes, iterations: int) -> bytes:
        """The salted secret (RFC 5802, SaltedPassword)."""
        if self._challenge != (salt, iterations):
            name = HASHES[self.mechanism]
            self._salted = hashlib.pbkdf2_hmac(name, self._secret, salt, iterations)
            self._challenge = salt, iterations
        return self._salted
