"""Forebay's own authentication, against a server's half that the test computes.

Owns a broker that knows one user. It must not know `proxy.net.sasl_client`'s arithmetic: the server's side of SCRAM
(RFC 5802) is computed from the stored and the server key alone.
"""

import base64
import hashlib
import hmac
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from protocol.api import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.header import peek_request
from proxy.config.model import UpstreamCredentials
from proxy.net.delegation_token import DelegationToken
from proxy.net.sasl_client import (
    MAX_ITERATIONS,
    AuthenticationRefused,
    authenticate,
    authenticate_token,
    find_scram_user,
)

if TYPE_CHECKING:
    from proxy.net.broker_connection import BrokerConnection

PASSWORD = b"pencil, and = signs"
SALT = b"0123456789abcdef"
REFUSED = 58


def build_varint(value):
    return bytes((value & 0x7F | 0x80, value >> 7)) if value > 0x7F else bytes((value,))


def read_compact(frame, at):
    length, shift = 0, 0
    while True:
        byte = frame[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return bytes(frame[at : at + length - 1])


def with_length(body):
    return len(body).to_bytes(4, "big") + body


class PlayedLink:
    """A link to a broker that offers `mechanism` and answers each token by `reply(token)`: (error, bytes)."""

    def __init__(self, mechanism, reply):
        self.mechanism = mechanism
        self.reply = reply
        self.authenticated = False
        self.tokens = []

    def authenticate(self):
        self.authenticated = True

    async def call(self, frame, correlation_id):
        head = peek_request(frame)
        assert head.correlation_id == correlation_id
        if head.api_key == SASL_HANDSHAKE:
            return self.shake_hands(bytes(frame[head.body_start + 2 :]).decode())
        assert head.api_key == SASL_AUTHENTICATE
        self.tokens.append(read_compact(frame, head.body_start))
        error_code, answer = self.reply(self.tokens[-1])
        message = b"\0" if not error_code else b"\x04bad"
        body = error_code.to_bytes(2, "big") + message + build_varint(len(answer) + 1) + answer
        return with_length(bytes(4) + b"\0" + body + bytes(8) + b"\0")

    def shake_hands(self, wanted):
        error_code = 0 if wanted == self.mechanism else 33
        offered = len(self.mechanism).to_bytes(2, "big") + self.mechanism.encode()
        return with_length(bytes(4) + error_code.to_bytes(2, "big") + b"\0\0\0\1" + offered)


async def sign_in(link: PlayedLink, given: UpstreamCredentials) -> None:
    """`authenticate` on a played link."""
    await authenticate(cast("BrokerConnection", link), given)


class ScramServer:
    """Knows the salted password's two keys, as a broker does (ScramCredential)."""

    def __init__(self, hash_name, iterations=4096, password=PASSWORD):
        salted = hashlib.pbkdf2_hmac(hash_name, password, SALT, iterations)
        self.hash_name = hash_name
        self.iterations = iterations
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        self.stored_key = hashlib.new(hash_name, client_key).digest()
        self.server_key = hmac.digest(salted, b"Server Key", hash_name)
        self.first_bare = self.first = b""

    def reply(self, token):
        if not self.first:
            assert token.startswith(b"n,,n=")
            self.first_bare = token[3:]
            nonce = self.first_bare.rpartition(b"r=")[2]
            salt = base64.b64encode(SALT)
            self.first = b"r=%bserver,s=%b,i=%d" % (nonce, salt, self.iterations)
            return 0, self.first
        bare, _, proof = token.partition(b",p=")
        assert bare == b"c=biws," + self.first.split(b",")[0]
        signed = b",".join((self.first_bare, self.first, bare))
        signature = hmac.digest(self.stored_key, signed, self.hash_name)
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, client_key).digest() != self.stored_key:
            return REFUSED, b""
        return 0, b"v=" + base64.b64encode(hmac.digest(self.server_key, signed, self.hash_name))


@pytest.fixture
def credentials(tmp_path):
    """Credentials of a mechanism, their secrets in files that end in a line feed."""
    (tmp_path / "password").write_bytes(PASSWORD + b"\n")
    (tmp_path / "token").write_bytes(b"a.b.c\n")

    def build(mechanism, username="user"):
        return UpstreamCredentials.model_construct(
            mechanism=mechanism,
            username=username,
            password_file=tmp_path / "password",
            token_file=tmp_path / "token",
        )

    return build


SCRAMS = [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")]


@pytest.mark.parametrize(("mechanism", "hash_name"), SCRAMS)
async def test_scram(credentials, mechanism, hash_name):
    link = PlayedLink(mechanism, ScramServer(hash_name).reply)
    await sign_in(link, credentials(mechanism))
    assert link.authenticated
    assert len(link.tokens) == 2
    assert PASSWORD not in b"".join(link.tokens)


async def test_scram_escapes_names_and_renews_nonces(credentials):
    firsts = []
    for _ in range(2):
        link = PlayedLink("SCRAM-SHA-256", ScramServer("sha256").reply)
        await sign_in(link, credentials("SCRAM-SHA-256", "a=b,c"))
        firsts.append(link.tokens[0])
    assert firsts[0].startswith(b"n,,n=a=3Db=2Cc,r=")
    assert firsts[0] != firsts[1]


async def test_a_wrong_password_is_refused(credentials):
    link = PlayedLink("SCRAM-SHA-256", ScramServer("sha256", password=b"other").reply)
    with pytest.raises(AuthenticationRefused, match="bad"):
        await sign_in(link, credentials("SCRAM-SHA-256"))


async def test_broker_without_the_password_is_refused(credentials):
    server = ScramServer("sha256")
    server.server_key = bytes(32)
    with pytest.raises(AuthenticationRefused, match="could not prove"):
        await sign_in(PlayedLink("SCRAM-SHA-256", server.reply), credentials("SCRAM-SHA-256"))


@pytest.mark.parametrize(
    "final", [b"", b"e=other-error", b"v=", b"v=AAAA", b"v=not base64", b"v=A"]
)
async def test_wrong_final_signature_is_refused(credentials, final):
    server = ScramServer("sha256")

    def reply(token):
        error_code, answer = server.reply(token)
        return error_code, answer if len(link.tokens) == 1 else final

    link = PlayedLink("SCRAM-SHA-256", reply)
    with pytest.raises(AuthenticationRefused):
        await sign_in(link, credentials("SCRAM-SHA-256"))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=another,s=AAAA,i=4096",
        b"r=%b,i=4096",
        b"r=%b,s=A,i=4096",
        b"r=%b,s=AAAA",
        b"r=%b,s=AAAA,i=0",
        b"r=%b,s=AAAA,i=-1",
        b"r=%b,s=AAAA,i=many",
        b"r=%%b,s=AAAA,i=%d" % (MAX_ITERATIONS + 1),
    ],
)
async def test_invalid_challenge_is_refused_before_the_password(credentials, challenge):
    def reply(token):
        return 0, challenge.replace(b"%b", token.rpartition(b"r=")[2] + b"server")

    link = PlayedLink("SCRAM-SHA-256", reply)
    with pytest.raises(AuthenticationRefused, match="challenge"):
        await sign_in(link, credentials("SCRAM-SHA-256"))
    assert len(link.tokens) == 1


async def test_plain(credentials):
    link = PlayedLink("PLAIN", lambda token: (0, b""))
    await sign_in(link, credentials("PLAIN"))
    assert link.tokens == [b"\0user\0" + PASSWORD]
    assert link.authenticated


async def test_oauthbearer(credentials):
    link = PlayedLink("OAUTHBEARER", lambda token: (0, b""))
    await sign_in(link, credentials("OAUTHBEARER"))
    assert link.tokens == [b"n,,\x01auth=Bearer a.b.c\x01\x01"]


async def test_refused_credentials(credentials):
    with pytest.raises(AuthenticationRefused, match="bad"):
        await sign_in(PlayedLink("PLAIN", lambda token: (REFUSED, b"")), credentials("PLAIN"))


async def test_a_mechanism_that_is_not_offered(credentials):
    link = PlayedLink("SCRAM-SHA-512", None)
    with pytest.raises(
        AuthenticationRefused, match="does not offer PLAIN; it offers SCRAM-SHA-512"
    ):
        await sign_in(link, credentials("PLAIN"))
    assert not link.authenticated
    assert link.tokens == []


@pytest.mark.parametrize("missing", [None, "nowhere"])
async def test_a_secret_that_cannot_be_read(credentials, tmp_path, missing):
    given = credentials("PLAIN").model_copy(
        update={"password_file": None if missing is None else tmp_path / missing}
    )
    with pytest.raises(AuthenticationRefused, match="secret"):
        await sign_in(PlayedLink("PLAIN", lambda token: (0, b"")), given)


@pytest.mark.parametrize(("mechanism", "hash_name"), SCRAMS)
async def test_a_token_is_shown_with_its_extension_and_salted_once(mechanism, hash_name):
    token = DelegationToken("id", b"hmac", mechanism)
    salted = []
    for _ in range(2):
        server = TokenScram(hash_name, password=base64.b64encode(b"hmac"))
        link = PlayedLink(mechanism, server.reply)
        assert await authenticate_token(partial(call_played, link), token) == 0
        assert link.tokens[0].startswith(b"n,,n=id,r=")
        assert link.tokens[0].endswith(b",tokenauth=true")
        salted.append(token.salt(SALT, 4096))
    assert salted[0] is salted[1]
    assert token.salt(SALT, 5000) != salted[0]


async def call_played(link, frame):
    return await link.call(frame, 0)


class TokenScram(ScramServer):
    """A SCRAM server that sees the extension of tokens behind the nonce."""

    def reply(self, token):
        if self.first:
            return super().reply(token)
        error_code, answer = super().reply(token.removesuffix(b",tokenauth=true"))
        self.first_bare = token[3:]
        return error_code, answer


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"n,,n=alice,r=abc", "alice"),
        (b"n,a=alice,n=alice,r=abc", "alice"),
        (b"n,,n=a=2Cb=3Dc,r=abc", "a,b=c"),
        (b"n,,n=a=3D2C,r=abc", "a=2C"),
        (b"n,,n=alice,r=abc,n=admin", None),
        (b"n,,n=alice,r=abc,tokenauth=true", None),
        (b"n,,n=alice,r=abc,x=y", None),
        (b"n,,m=x,n=alice,r=abc", None),
        (b"n,,n=alice,n=admin,r=abc", None),
        (b"n,,n=alice,n=admin,r=abc,r=x", None),
        (b"n,n=admin,n=alice,r=abc", None),
        (b"n,,n=al=2Dice,r=abc", None),
        (b"n,,n=,r=abc", None),
        (b"n,,n=\xc3\xa9,r=abc", None),
        (b"y,,n=alice,r=abc", None),
        (b"n,,n=alice", None),
        (b"n,,n=alice,r=abc\n", None),
        (b"", None),
    ],
)
def test_the_user_of_a_clients_exchange_is_the_brokers_reading_or_none(message, user):
    assert find_scram_user(message) == user
