"""SASL exchanges as Forebay sees them pass: when has the broker accepted one, and as whom?

Owns the reading of the tokens of PLAIN, OAUTHBEARER and SCRAM, as far as they name a principal. Must not
know a secret beyond the call that is given it. Invariants:
* two exchanges have the same identity only if the broker gives them the same principal. An identity may be
  finer than the principal, never coarser.
* an exchange of which the end or the principal is not certain has no identity.

Rules of the broker (org.apache.kafka.common.security):
* PlainSaslServer: the principal is the user name, but a callback handler decides, and may take the
  principal's name from the password (tokens in the place of passwords). So the whole token is the identity.
* OAuthBearerSaslServer: an answer with bytes refuses the token, although its error code is NONE; the answer
  without bytes accepts it. The whole token is the identity.
* ScramSaslServer: the principal follows from the client-first-message alone: from the user name, or with
  the extension `tokenauth` from the id of a delegation token. All but the nonce is the identity.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from protocol.primitives import Frame

WHOLE_TOKEN: Final = frozenset({"PLAIN", "OAUTHBEARER"})
"""Mechanisms of one token, which an answer without bytes accepts."""
SCRAM: Final = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
_GS2_HEADER: Final = b"n"
_SCRAM_FIRST, _SCRAM_FINAL = b"r=", b"v="
_SCRAM_TOKENS: Final = 2


class SaslIdentity(NamedTuple):
    """Stands for one principal of the broker. `digest`: of what the client has shown, under a key of the
    caller's, so that nothing secret is kept.
    """

    mechanism: str
    digest: bytes


class SaslExchange:
    """One exchange, from its SaslHandshake on. `is_begun`: the broker has accepted the handshake. `is_over`:
    the broker has decided.
    """

    __slots__ = ("_first", "_tokens", "is_begun", "is_over", "mechanism")

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism
        self.is_begun = self.is_over = False
        self._tokens = 0
        self._first = b""

    def begin(self) -> None:
        """Note that the broker has accepted the handshake."""
        self.is_begun = True

    def end(self) -> None:
        """Note that the broker has decided."""
        self.is_over = True

    def count(self, token: Frame) -> int:
        """Note the client's next token. Return its number in the exchange, from 1 on."""
        self._tokens += 1
        if self._tokens == 1 and self.mechanism in SCRAM:
            self._first = _without_nonce(token)
        return self._tokens

    def is_step(self, number: int, answer: Frame) -> bool:
        """Return True if `answer`, without an error, to token `number` certainly does not end the exchange."""
        if self.mechanism == "OAUTHBEARER":
            return len(answer) > 0
        return self.mechanism in SCRAM and number == 1 and bytes(answer[:2]) == _SCRAM_FIRST

    def find_identity(
        self, number: int, token: Frame, answer: Frame, secret: bytes
    ) -> SaslIdentity | None:
        """Return whom the broker has accepted by `answer`, without an error, to `token` of that `number`.
        None: nobody, or the principal is not known. `secret`: the key of digests, 16 to 64 bytes.
        """
        shown = b""
        if not self.is_begun:
            return None
        if self.mechanism in WHOLE_TOKEN and number == 1 and not len(answer):
            shown = bytes(token)
        elif self.mechanism in SCRAM and number == _SCRAM_TOKENS:
            shown = self._first if bytes(answer[:2]) == _SCRAM_FINAL else b""
        if not shown:
            return None
        return SaslIdentity(self.mechanism, blake2b(shown, digest_size=32, key=secret).digest())


def _without_nonce(token: Frame) -> bytes:
    """Return a client-first-message (RFC 5802, ScramMessages.ClientFirstMessage) without its nonce; b"" if
    it has another form than `n,[a=AUTHZID],n=NAME,r=NONCE[,EXTENSIONS]`.
    """
    parts = bytes(token).split(b",")
    if len(parts) < 4:
        return b""
    header, authzid, name, nonce = parts[:4]
    is_ordinary = (
        header == _GS2_HEADER
        and (not authzid or authzid.startswith(b"a="))
        and name.startswith(b"n=")
        and nonce.startswith(b"r=")
    )
    return b",".join([header, authzid, name, *parts[4:]]) if is_ordinary else b""
