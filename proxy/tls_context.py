"""TLS settings: contexts from the files and keys of the configuration.

Owns what OpenSSL is told. Must not know who connects. Invariants:
* a context is complete or is not returned: one that is in use is never changed.
* no protocol is offered by ALPN, as Kafka has none.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.config.model import UpstreamTls
    from proxy.config.section import Section

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsPolicy(Protocol):
    """The keys that both sides have."""

    @property
    def crl_file(self) -> str | None: ...
    @property
    def min_version(self) -> str: ...
    @property
    def ciphers(self) -> str | None: ...


class ServerTls(TlsPolicy, Protocol):
    """The keys of a section with a server's certificate."""

    @property
    def certificate_file(self) -> str: ...
    @property
    def key_file(self) -> str: ...
    @property
    def client_ca_file(self) -> str | None: ...


def build_server_context(tls: ServerTls, verify: ssl.VerifyMode) -> ssl.SSLContext:
    """TLS settings toward clients. `verify`: whether they may, or must, present a certificate. Raises OSError
    (ssl.SSLError included) if a file cannot be loaded, or key and certificate do not fit.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate_file, tls.key_file, no_passphrase)
    if verify != ssl.CERT_NONE:
        context.verify_mode = verify
        context.load_verify_locations(tls.client_ca_file)
    _apply(tls, context)
    return context


def build_client_context(tls: UpstreamTls) -> ssl.SSLContext:
    """TLS settings toward the broker. The broker's certificate is checked unless `insecureSkipVerify` is set. Raises
    as `build_server_context`.
    """
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file, no_passphrase)
    _apply(tls, context)
    return context


def _apply(tls: TlsPolicy, context: ssl.SSLContext) -> None:
    context.minimum_version = VERSIONS[tls.min_version]
    if tls.ciphers is not None:
        context.set_ciphers(tls.ciphers)
    if tls.crl_file is not None:
        context.load_verify_locations(tls.crl_file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def no_passphrase() -> str:
    """Called by OpenSSL for a key with a passphrase, for which it would ask at the terminal otherwise."""
    raise ValueError("the key has a passphrase; keys must have none")


@contextlib.contextmanager
def naming_files(section: str, values: Section | None) -> Iterator[None]:
    """Context that replaces an error by a ValueError which names the section's files."""
    try:
        yield
    except (OSError, ValueError) as error:
        files = values.model_dump(mode="json", by_alias=True) if values is not None else {}
        named = ", ".join(f"{key} {path}" for key, path in files.items() if path and "File" in key)
        raise ValueError(f"{section}: a file cannot be loaded ({named}): {error}") from error
