"""Configuration of the admin server: who may ask, and how it is reached.

Owns the keys of `admin`. Must not know the routes.
"""

from pydantic import Field

from proxy.config.section import Path, Section
from proxy.config.tls_keys import (
    Ciphers,
    TlsVersion,
    ciphers_field,
    crl_field,
    min_version_field,
)
from proxy.config.units import Address, Count, Duration, ListenAddress


class AdminTls(Section):
    """TLS of the admin server."""

    certificate_file: Path = Field(description="PEM file: certificate and chain.")
    key_file: Path = Field(
        description="PEM file: the certificate's private key, without a passphrase."
    )
    client_ca_file: Path | None = Field(
        default=None,
        description="PEM file: authorities that sign clients' certificates. Set: all requests but probes "
        "need one.",
    )
    crl_file: Path | None = crl_field()
    min_version: TlsVersion = min_version_field()
    ciphers: Ciphers | None = ciphers_field()


class Admin(Section):
    """HTTP for operators: metrics, health, state."""

    listen: ListenAddress = Field(
        default=Address("127.0.0.1", 9190), description="HOST:PORT of the admin server."
    )
    max_connections: Count = Field(
        default=32,
        ge=1,
        le=10_000,
        description="Open admin connections. Further ones are closed, except for eight that may ask a"
        " probe (`/livez`, `/readyz`) each.",
    )
    token_file: Path | None = Field(
        default=None,
        description="File with a token that all requests but probes must carry (`Authorization: "
        "Bearer`); a changed file is read again. Unset: every client that reaches the port may ask.",
    )
    open_metrics: bool = Field(
        default=False,
        description="Answer `/metrics` as probes, to clients without token and certificate.",
    )
    tls: AdminTls | None = Field(
        default=None, description="TLS toward the clients of the admin server. Unset: plaintext."
    )
    request_timeout_s: Duration = Field(
        default=10.0,
        ge=0.1,
        le=300.0,
        description="Time for a request to arrive and for its response to be read.",
    )
