"""SASL client: PLAIN, SCRAM and OAUTHBEARER for Forebay's own connections to the broker, and SCRAM
with a delegation token for connections of clients.

Owns the client's half of the three exchanges (RFC 4616, RFC 5802 and 7677, RFC 7628) over Kafka's
SaslHandshake v1 and SaslAuthenticate. Must not know the purpose of a connection. Clients' own SASL
is passed through and does not come here.
Invariants: secrets are read from their files at each authentication and kept nowhere; tokens are
their owner's (proxy/identity/tokens.py).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from protocol import control
from protocol.errors import ErrorCode
from proxy.net.delegation_token import HASHES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from protocol.primitives import Frame
    from proxy.config.model import UpstreamCredentials
    from proxy.net.delegation_token import DelegationToken

    Call = Callable[[bytes], Awaitable[Frame]]
    """Sends a request frame, and returns the response frame."""

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2
MAX_ITERATIONS = 1_000_000
"""Most PBKDF2 iterations that a broker's challenge may ask for, since they run on the event loop.
"""


_SCRAM_NAME = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_CLIENT_FIRST = re.compile(
    rb"n,(?:a=" + _SCRAM_NAME + rb")?,n=(?P<name>" + _SCRAM_NAME + rb"),r=[\x21-\x2b\x2d-\x7e]+"
)
"""A client's first message without extensions. Kafka reads no more than this as a message, but for
extensions (ScramMessages.ClientFirstMessage).
"""


class AuthenticationRefused(Exception):
    """The broker does not accept Forebay's credentials, or cannot prove that it knows them."""


class NoSasl(AuthenticationRefused):
    """The broker's listener takes no SaslHandshake: it has no SASL, or a session there has no end."""


class AuthenticatedLink(Protocol):
    """A connection to the broker that signs in (`BrokerConnection`, `BrokerClient`)."""

    async def call(self, frame: bytes, correlation_id: int) -> Frame:
        """Send a request and wait for its response frame. Raises ConnectionError if it is lost first."""

    def authenticate(self) -> None:
        """Note that the exchange begins."""


async def authenticate(link: AuthenticatedLink, credentials: UpstreamCredentials) -> None:
    """Authenticate `link`, on which nothing was sent but ApiVersions. Raises Refused, or
    ConnectionError if the broker closes instead. Marks the connection as `authenticated`, so that
    it is never reopened silently.
    """
    mechanism = credentials.mechanism

    async def call(frame: bytes) -> Frame:
        return await link.call(frame, 0)

    await _handshake(call, mechanism)
    link.authenticate()
    if mechanism in HASHES:

        def salt(salt: bytes, iterations: int) -> bytes:
            secret = _secret(credentials.password_file)
            return hashlib.pbkdf2_hmac(HASHES[mechanism], secret, salt, iterations)

        await _scram(call, HASHES[mechanism], _username(credentials), b"", salt)
    elif mechanism == "PLAIN":
        await _exchange(
            call, b"\0".join((b"", _username(credentials), _secret(credentials.password_file)))
        )
    else:
        token = _secret(credentials.token_file)
        await _exchange(call, b"n,,\x01auth=Bearer " + token + b"\x01\x01")


async def authenticate_token(call: Call, token: DelegationToken) -> float:
    """Authenticate, or do so again, as the owner of `token` (KIP-48). Returns the lifetime of the
    session in seconds, 0 if the broker names none. Raises Refused, ConnectionError or BadFrame.
    """
    await _handshake(call, token.mechanism)
    name = token.token_id.encode()
    lifetime_ms = await _scram(call, HASHES[token.mechanism], name, b",tokenauth=true", token.salt)
    return lifetime_ms / 1000


async def _handshake(call: Call, mechanism: str) -> None:
    hello = control.build_sasl_handshake_request(
        HANDSHAKE_VERSION, 0, "forebay", mechanism=mechanism
    )
    answer = control.scan_sasl_handshake_response(await call(hello), HANDSHAKE_VERSION)
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise NoSasl("the broker's listener has no SASL")
    if answer.error_code != ErrorCode.NONE:
        raise AuthenticationRefused(
            f"the broker does not offer {mechanism}; it offers {', '.join(answer.mechanisms) or 'nothing'}"
        )


def _username(credentials: UpstreamCredentials) -> bytes:
    return (credentials.username or "").encode()


def _secret(file: str | None) -> bytes:
    if file is None:
        raise AuthenticationRefused("upstreamCredentials name no file for the secret")
    try:
        return Path(file).read_bytes().strip()
    except OSError as error:
        raise AuthenticationRefused(f"cannot read the secret: {error}") from error


async def _exchange(call: Call, token: bytes) -> control.SaslAuthenticate:
    frame = control.build_sasl_authenticate_request(
        AUTHENTICATE_VERSION, 0, "forebay", auth_bytes=token
    )
    answer = control.scan_sasl_authenticate_response(await call(frame), AUTHENTICATE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise AuthenticationRefused(
            answer.error_message or f"authentication failed with error {answer.error_code}"
        )
    return answer


async def _scram(
    call: Call,
    hash_name: str,
    username: bytes,
    extensions: bytes,
    salt_secret: Callable[[bytes, int], bytes],
) -> int:
    """Run the exchange; `extensions` follow the nonce (ScramExtensions). Returns the session's
    lifetime in milliseconds. `salt_secret`: SaltedPassword of a salt and an iteration count.
    """
    name = username.replace(b"=", b"=3D").replace(b",", b"=2C")
    nonce = base64.b64encode(secrets.token_bytes(24))
    first_bare = b"n=" + name + b",r=" + nonce + extensions
    server_first = (await _exchange(call, b"n,," + first_bare)).auth_bytes
    whole_nonce, salt, iterations = _challenge(server_first, nonce)
    salted = salt_secret(salt, iterations)
    final_bare = b"c=biws,r=" + whole_nonce  # biws: base64 of the GS2 header "n,,"
    signed = b",".join((first_bare, server_first, final_bare))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = await _exchange(call, final_bare + b",p=" + base64.b64encode(proof))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    shown = _fields(answer.auth_bytes).get(b"v", b"")
    if not hmac.compare_digest(shown, base64.b64encode(expected)):
        raise AuthenticationRefused("the broker could not prove that it knows our password")
    return answer.session_lifetime_ms


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


def find_scram_user(client_first: bytes) -> str | None:
    """The user whom the broker reads in a client's first SCRAM message. None if the message is not
    exactly one that Kafka writes without extensions: another reading than the broker's would give a
    client the rights of somebody else. With the extension `tokenauth` the name is a token's id, and
    Forebay does not know its owner.
    """
    found = _CLIENT_FIRST.fullmatch(client_first)
    if found is None:
        return None
    return found["name"].replace(b"=2C", b",").replace(b"=3D", b"=").decode("ascii")
