"""Throw-away TLS certificates for the loopback.

Owns one authority a call, with a server's and a client's certificate signed by it, as PEM files. Must not
know who uses them. Valid for two days; never for anything but tests.
"""

import datetime
import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path


LASTS = datetime.timedelta(days=2)


class Identity(NamedTuple):
    """Paths of PEM files: certificate, private key, and both in one (Kafka's ssl.keystore.type=PEM)."""

    certificate: "Path"
    key: "Path"
    keystore: "Path"


class TlsFiles(NamedTuple):
    """`authority` is the path of the authority's certificate (PEM), which signed server and client."""

    authority: "Path"
    server: Identity
    client: Identity


def build_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def sign(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
    lasts: datetime.timedelta = LASTS,
) -> x509.Certificate:
    """A certificate for localhost and 127.0.0.1 (or of an authority). `lasts` negative: it has ended."""
    now = datetime.datetime.now(datetime.UTC)
    hosts = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(build_name(subject))
        .issuer_name(build_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + lasts)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    return (builder if ca else builder.add_extension(hosts, critical=False)).sign(
        issuer_key, hashes.SHA256()
    )


def write_identity(
    directory: "Path",
    subject: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    lasts: datetime.timedelta = LASTS,
) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sign(
        subject, key, "forebay-test-ca", issuer_key, ca=False, lasts=lasts
    ).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files = Identity(*(directory / f"{subject}{suffix}" for suffix in (".crt", ".key", ".pem")))
    for path, content in zip(files, (certificate, private, private + certificate), strict=True):
        path.touch(mode=0o600)
        path.write_bytes(content)
    return files


def write_crl(
    path: "Path",
    issuer_key: ec.EllipticCurvePrivateKey,
    revoked: "tuple[Path, ...]" = (),
    lasts: datetime.timedelta = LASTS,
) -> None:
    """A revocation list of the authority with that key, which names the certificates in the files `revoked`."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(build_name("forebay-test-ca"))
        .last_update(now - datetime.timedelta(days=1))
        .next_update(now + lasts)
    )
    for certificate in revoked:
        serial = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        )
    path.write_bytes(
        builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )


def write_certificates(
    directory: "Path", key: ec.EllipticCurvePrivateKey | None = None
) -> TlsFiles:
    """A new authority with `key` (None: a new one), a server `broker` and a client `client` signed by it, written below
    `directory`.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    authority = directory / "authority.crt"
    own = sign("forebay-test-ca", key, "forebay-test-ca", key, ca=True)
    authority.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    return TlsFiles(
        authority,
        write_identity(directory, "broker", key),
        write_identity(directory, "client", key),
    )
