"""SASL client for Forebay's own connections to the broker: PLAIN, SCRAM and OAUTHBEARER.

Owns the client's half of the three exchanges (RFC 4616, RFC 5802 and 7677, RFC 7628) over Kafka's
SaslHandshake v1 and SaslAuthenticate. Must not know the purpose of a connection. The replica
fetcher needs these connections; clients' own SASL is passed through and does not come here.
Invariants: secrets are read from their files at each authentication and kept nowhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from proxy.config.model import UpstreamCredentials
    from proxy.net.broker_connection import BrokerConnection

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MAX_ITERATIONS = 1_000_000
"""Most PBKDF2 iterations that a broker's challenge may ask for, since they run on the event loop.
"""


class AuthenticationRefused(Exception):
    """The broker does not accept Forebay's credentials, or cannot prove that it knows them."""


async def authenticate(link: BrokerConnection, credentials: UpstreamCredentials) -> None:
    """Authenticate `link`, on which nothing was sent but ApiVersions. Raises Refused, or
    ConnectionError if the broker closes instead. Marks the connection as `authenticated`, so that
    it is never reopened silently.
    """
    mechanism = credentials.mechanism
    hello = control.build_sasl_handshake_request(
        HANDSHAKE_VERSION, 0, "forebay", mechanism=mechanism
    )
    answer = control.scan_sasl_handshake_response(await link.call(hello, 0), HANDSHAKE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise AuthenticationRefused(
            f"the broker does not offer {mechanism}; it offers {', '.join(answer.mechanisms) or 'nothing'}"
        )
    link.authenticate()
    if mechanism in HASHES:
        await _scram(link, credentials, HASHES[mechanism])
    elif mechanism == "PLAIN":
        await _exchange(
            link, b"\0".join((b"", _username(credentials), _secret(credentials.password_file)))
        )
    else:
        token = _secret(credentials.token_file)
        await _exchange(link, b"n,,\x01auth=Bearer " + token + b"\x01\x01")


def _username(credentials: UpstreamCredentials) -> bytes:
    return (credentials.username or "").encode()


def _secret(file: str | None) -> bytes:
    if file is None:
        raise AuthenticationRefused("upstreamCredentials name no file for the secret")
    try:
        return Path(file).read_bytes().strip()
    except OSError as error:
        raise AuthenticationRefused(f"cannot read the secret: {error}") from error


async def _exchange(link: BrokerConnection, token: bytes) -> bytes:
    frame = control.build_sasl_authenticate_request(
        AUTHENTICATE_VERSION, 0, "forebay", auth_bytes=token
    )
    answer = control.scan_sasl_authenticate_response(
        await link.call(frame, 0), AUTHENTICATE_VERSION
    )
    if answer.error_code != ErrorCode.NONE:
        raise AuthenticationRefused(
            answer.error_message or f"authentication failed with error {answer.error_code}"
        )
    return answer.auth_bytes


async def _scram(link: BrokerConnection, credentials: UpstreamCredentials, hash_name: str) -> None:
    name = _username(credentials).replace(b"=", b"=3D").replace(b",", b"=2C")
    nonce = base64.b64encode(secrets.token_bytes(24))
    first_bare = b"n=" + name + b",r=" + nonce
    server_first = await _exchange(link, b"n,," + first_bare)
    whole_nonce, salt, iterations = _challenge(server_first, nonce)
    salted = hashlib.pbkdf2_hmac(hash_name, _secret(credentials.password_file), salt, iterations)
    final_bare = b"c=biws,r=" + whole_nonce  # biws: base64 of the GS2 header "n,,"
    signed = b",".join((first_bare, server_first, final_bare))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = _fields(await _exchange(link, final_bare + b",p=" + base64.b64encode(proof)))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(server_final.get(b"v", b""), base64.b64encode(expected)):
        raise AuthenticationRefused("the broker could not prove that it knows our password")


def _challenge(server_first: bytes, nonce: bytes) -> tuple[bytes, bytes, int]:
    """The whole nonce, the salt and the iteration count of the broker's first message. Raises
    Refused if the message is malformed, or its nonce does not begin with `nonce`.
    """
    fields = _fields(server_first)
    try:
        whole_nonce, salt, iterations = (
            fields[b"r"],
            base64.b64decode(fields[b"s"]),
            int(fields[b"i"]),
        )
    except (KeyError, ValueError) as error:
        raise AuthenticationRefused(
            f"the broker's SCRAM challenge cannot be read: {error!r}"
        ) from error
    if not whole_nonce.startswith(nonce) or not 0 < iterations <= MAX_ITERATIONS:
        raise AuthenticationRefused("the broker's SCRAM challenge is not an answer to ours")
    return whole_nonce, salt, iterations


def _fields(message: bytes) -> dict[bytes, bytes]:
    """The values of SCRAM's `k=value,k=value` by key."""
    return dict(part.split(b"=", 1) for part in message.split(b",") if b"=" in part)
