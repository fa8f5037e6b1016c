"""A broker's side of delegation tokens, for tests: what it answers to token requests, and a socket that takes tokens.

Owns the bytes of its answers and the tokens that exist. It must not know Forebay's classes. Invariant: a test decides
what is refused; nothing sleeps.
"""

import asyncio
import datetime
from contextlib import asynccontextmanager

from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol import api
from protocol.header import peek_request
from tests.protocol import oracle
from tests.proxy.net.test_sasl_client import TokenScram, build_varint, read_compact, with_length

CREATE, RENEW, EXPIRE, DESCRIBE = (
    api.CREATE_DELEGATION_TOKEN,
    api.RENEW_DELEGATION_TOKEN,
    api.EXPIRE_DELEGATION_TOKEN,
    api.DESCRIBE_DELEGATION_TOKEN,
)
ISSUED_AT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
"""Far from the clock of who asks."""
REQUESTER = "forebay"


def build_error(code):
    """The answer to any token request but Describe, as brokers write it: times of -1."""
    return with_length(bytes(5) + code.to_bytes(2, "big") + b"\xff" * 8 + bytes(5))


class TokenBook:
    """The tokens that exist, and `calls`: (API key, body) of all requests. `errors`: API key -> error code."""

    def __init__(self, life_s=100.0, most_s=1000.0):
        self.life_s, self.most_s = life_s, most_s
        self.calls, self.errors, self.owners = [], {}, {}
        self.hidden_looks = 0
        self.named = None

    def answer(self, frame):
        """The response frame to a request frame."""
        head = peek_request(frame)
        _, body = oracle.read_request(head.api_key, head.api_version, bytes(frame))
        self.calls.append((head.api_key, body))
        if head.api_key in self.errors:
            return build_error(self.errors[head.api_key])
        answered = {
            CREATE: self._create,
            RENEW: self._renew,
            EXPIRE: lambda _body: None,
            DESCRIBE: self._describe,
        }[head.api_key](body)
        if answered is None:
            return build_error(0)
        schema = load_response_schema(head.api_key, head.api_version)
        common = {"error_code": ErrorCode.none, "throttle_time": datetime.timedelta()}
        return oracle.response_frame(schema(**common, **answered), 0)

    def _create(self, body):
        owner = body.owner_principal_name or REQUESTER
        token_id = f"token-{len(self.owners)}"
        self.owners[token_id] = owner
        most = min(body.max_lifetime.total_seconds(), self.most_s)
        return {
            "principal_type": "User",
            "principal_name": self.named or owner,
            "token_requester_principal_type": "User",
            "token_requester_principal_name": REQUESTER,
            "issue_timestamp": ISSUED_AT,
            "expiry_timestamp": ISSUED_AT + datetime.timedelta(seconds=min(most, self.life_s)),
            "max_timestamp": ISSUED_AT + datetime.timedelta(seconds=most),
            "token_id": token_id,
            "hmac": token_id.encode(),
        }

    def _renew(self, _body):
        renewals = sum(key == RENEW for key, _ in self.calls)
        life_s = min(self.life_s * (1 + renewals), self.most_s)
        return {"expiry_timestamp": ISSUED_AT + datetime.timedelta(seconds=life_s)}

    def _describe(self, body):
        owners = {row.principal_name for row in body.owners}
        known = [one for one, whose in self.owners.items() if whose in owners]
        if self.hidden_looks:
            self.hidden_looks, known = self.hidden_looks - 1, []
        row = load_payload_module(DESCRIBE, 3, EntityType.response).DescribedDelegationToken
        return {
            "tokens": tuple(
                row(
                    principal_type="User",
                    principal_name=self.owners[one],
                    token_requester_principal_type="User",
                    token_requester_principal_name=REQUESTER,
                    issue_timestamp=0,
                    expiry_timestamp=0,
                    max_timestamp=0,
                    token_id=one,
                    hmac=one.encode(),
                    renewers=(),
                )
                for one in known
            )
        }

    def made(self, key):
        """Bodies of the requests of one API."""
        return [body for one, body in self.calls if one == key]


class TokenSocket:
    """What a broker's listener does with the connections of `serve_tokens`.

    `secrets`: token id -> password. `seen`: (API key, correlation id) of each request. `lifetime_ms`: of sessions.
    `handshake_error`: answer to SaslHandshake. `is_mute`: answers nothing but SASL. `other_body`: what other answers
    have behind their correlation id.
    """

    def __init__(self, secrets):
        self.secrets = secrets
        self.seen, self.writers = [], []
        self.lifetime_ms = 0
        self.handshake_error = 0
        self.is_mute = self.is_deaf = False
        self.other_body = b""

    async def accept(self, reader, writer):
        self.writers.append(writer)
        server = None
        try:
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size, "big"))
                head = peek_request(frame)
                self.seen.append((head.api_key, head.correlation_id))
                if head.api_key == api.SASL_HANDSHAKE:
                    server = None
                    body = self.handshake_error.to_bytes(2, "big") + bytes(4)
                    answer = with_length(head.correlation_id.to_bytes(4, "big") + body)
                elif head.api_key == api.SASL_AUTHENTICATE:
                    if self.is_deaf:
                        continue
                    token = read_compact(frame, head.body_start)
                    server = server or self.find_server(token)
                    answer = self.authenticate(server, token)
                elif self.is_mute:
                    continue
                else:
                    answer = with_length(head.correlation_id.to_bytes(4, "big") + self.other_body)
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    def find_server(self, client_first):
        """The SCRAM server of the token that a client's first message names; None: there is no such token."""
        assert client_first.endswith(b",tokenauth=true")
        name = client_first.removeprefix(b"n,,n=").partition(b",")[0].decode()
        secret = self.secrets.get(name)
        return None if secret is None else TokenScram("sha256", password=secret)

    def authenticate(self, server, token):
        error_code, said = (58, b"") if server is None else server.reply(token)
        message = b"\0" if not error_code else b"\x04bad"
        body = error_code.to_bytes(2, "big") + message + build_varint(len(said) + 1) + said
        lifetime = (self.lifetime_ms if b"v=" in said else 0).to_bytes(8, "big")
        return with_length(bytes(4) + b"\0" + body + lifetime + b"\0")

    def answer(self, correlation_id):
        """Answer a request that waits."""
        self.writers[-1].write(with_length(correlation_id.to_bytes(4, "big")))


@asynccontextmanager
async def serve_tokens(secrets):
    """A TokenSocket and its port."""
    played = TokenSocket(secrets)
    server = await asyncio.start_server(played.accept, "127.0.0.1", 0)
    try:
        yield played, server.sockets[0].getsockname()[1]
    finally:
        for writer in played.writers:
            writer.close()
        server.close()
