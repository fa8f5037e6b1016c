"""Types and texts of the keys that every section with TLS has.

Owns them alone. Must not know which side a section describes.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
Ciphers = Annotated[str, StringConstraints(min_length=1, max_length=4096)]

CRL_TEXT: Final = (
    "PEM file: revocation lists, one of each authority in the chain of a certificate; without a "
    "current one the certificate is refused."
)


def min_version_field() -> Any:
    """The field of the lowest TLS version."""
    return Field(default="TLSv1.2", description="Lowest version of TLS.")


def ciphers_field() -> Any:
    """The field of the cipher list."""
    return Field(
        default=None,
        description="Ciphers of TLS 1.2, in OpenSSL's words (`openssl ciphers`). Unset: OpenSSL's own. Those of "
        "TLS 1.3 are always OpenSSL's.",
    )


def crl_field() -> Any:
    """The field of a file with revocation lists."""
    return Field(default=None, description=CRL_TEXT)
