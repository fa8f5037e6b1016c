"""Raw clients that sign in: PLAIN, SCRAM and unsecured OAUTHBEARER tokens, in frames.

Owns the client's half of the exchanges. Must not know whether Forebay is in between, nor what a test expects of the
answers: each is returned as the broker gave it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from typing import TYPE_CHECKING

from protocol import control
from tests.e2e.raw_frames import numbers

if TYPE_CHECKING:
    from protocol.control import SaslAuthenticate
    from tests.e2e.raw_frames import Raw

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
SCRAM = "SCRAM-SHA-256"


def shake_hands(client: Raw, mechanism: str) -> None:
    """The broker must offer the mechanism."""
    hello = control.build_sasl_handshake_request(
        HANDSHAKE_VERSION, next(numbers), "raw", mechanism=mechanism
    )
    answer = control.scan_sasl_handshake_response(client.call(hello), HANDSHAKE_VERSION)
    assert answer.error_code == 0, answer


def show(client: Raw, token: bytes) -> SaslAuthenticate:
    """The broker's answer to one token."""
    frame = control.build_sasl_authenticate_request(
        AUTHENTICATE_VERSION, next(numbers), "raw", auth_bytes=token
    )
    return control.scan_sasl_authenticate_response(client.call(frame), AUTHENTICATE_VERSION)


def sign_in_plain(client: Raw, user: str, password: str) -> SaslAuthenticate:
    shake_hands(client, "PLAIN")
    return show(client, b"\0" + user.encode() + b"\0" + password.encode())


def sign_in_token(client: Raw, token: bytes) -> SaslAuthenticate:
    """OAUTHBEARER (RFC 7628)."""
    shake_hands(client, "OAUTHBEARER")
    return show(client, b"n,,\1auth=Bearer " + token + b"\1\1")


def build_token(user: str, lifetime_s: float) -> bytes:
    """An unsecured JSON Web Token, as the broker's built-in validator takes it."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": user, "iat": now, "exp": now + lifetime_s}
    coded = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts]
    return b".".join((*coded, b""))


def sign_in_scram(client: Raw, user: str, password: str) -> SaslAuthenticate:
    """SCRAM-SHA-256 (RFC 5802); the broker must send its first message."""
    shake_hands(client, SCRAM)
    bare = b"n=" + user.encode() + b",r=" + secrets.token_hex(16).encode()
    first = show(client, b"n,," + bare)
    assert first.error_code == 0, first
    said = dict(part.split(b"=", 1) for part in first.auth_bytes.split(b","))
    salt, rounds = base64.b64decode(said[b"s"]), int(said[b"i"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    final = b"c=biws,r=" + said[b"r"]
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = b",".join((bare, first.auth_bytes, final))
    mask = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(key, mask, strict=True))
    return show(client, final + b",p=" + base64.b64encode(proof))
