"""Access to the admin server: its TLS settings, the token, and who needs them.

Owns the files that `admin` names, watched at each connection and request. Must not know HTTP's routes but for
the paths that are open. Invariants:
* supervisor and worker have the same rules, each by its own object.
* files that cannot be loaded leave the former ones in use; the start needs files that can be.
"""

from __future__ import annotations

import hmac
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proxy.config.check import read_secret
from proxy.tls_context import build_server_context, naming_files
from proxy.tls_files import WatchedFiles, explain_ended, list_files, read_files

if TYPE_CHECKING:
    from proxy.config.admin import Admin
    from proxy.tls_files import FileKind

PROBES: Final = ("/livez", "/readyz", "/healthz")
METRICS: Final = "/metrics"
TOP: Final = "/top"
PAGE: Final = "/"
"""The live view's page, which holds nothing: it asks for a token, and for the data with it."""
LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Access:
    """What a client needs. `context` None: plain text. `token` None: no path needs one. `wants_certificate`: paths that
    are not open need a client certificate. `opens_metrics`: `/metrics` is open.
    """

    context: ssl.SSLContext | None = None
    token: bytes | None = None
    wants_certificate: bool = False
    opens_metrics: bool = False

    def is_open(self, path: str) -> bool:
        """Whether a path needs neither token nor certificate."""
        return path in PROBES or path == PAGE or (self.opens_metrics and path == METRICS)

    def has_token(self, authorization: bytes) -> bool:
        """Whether the value of an Authorization header carries the token (RFC 6750). Takes the same time for any
        token of the same length.
        """
        scheme, _, given = authorization.partition(b" ")
        return self.token is None or (
            scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self.token)
        )


OPEN: Final = Access()


class AdminAccess:
    """The access in force. Raises OSError if a file cannot be loaded at the start."""

    def __init__(self, config: Admin) -> None:
        self._config = config
        self._looked_at = time.monotonic()
        self.watched = WatchedFiles("", "admin", read_files(self._list_files()))
        """The files in use, for metrics."""
        try:
            self._access = self._load()
        except ValueError as error:
            raise OSError(f"admin: {error}") from error
        self.watched.tell_ended(time.time())

    def _list_files(self) -> dict[FileKind, str]:
        token: dict[FileKind, str] = {}
        if self._config.token_file is not None:
            token["token"] = self._config.token_file
        return list_files(self._config.tls) | token

    def check(self) -> Access:
        """The access in force, with the present files, seen at most LOOK_EVERY_S ago. Reads small local files."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            if self.watched.look(self._list_files()):
                self._renew()
        return self._access

    def _renew(self) -> None:
        found = read_files(self._list_files())
        try:
            if reason := explain_ended(found, self.watched.in_use, time.time()):
                raise ValueError(reason)
            self._access = self._load()
        except (OSError, ValueError) as error:
            self.watched.refuse(str(error))
        else:
            self.watched.adopt(found)

    def _load(self) -> Access:
        config, tls, context = self._config, self._config.tls, None
        wants_certificate = tls is not None and tls.client_ca_file is not None
        if tls is not None:
            verify = ssl.CERT_OPTIONAL if wants_certificate else ssl.CERT_NONE
            with naming_files("tls", tls):
                context = build_server_context(tls, verify)
        token = None if config.token_file is None else read_secret(config.token_file).encode()
        return Access(context, token, wants_certificate, config.open_metrics)
