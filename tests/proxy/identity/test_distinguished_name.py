"""Subjects of certificates: as Java writes them, whatever their attributes are.

Owns certificates made by `cryptography`, and the comparison with `X500Principal.getName()` of the Java at hand. Must
not know how DER is read.
"""

import base64
import datetime
import random
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type as Kind
from cryptography.x509.oid import NameOID

from proxy.identity.distinguished_name import read_subject
from tests.kit.broker.java import find_java

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime.now(datetime.UTC)
OIDS = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.STREET_ADDRESS,
    NameOID.DOMAIN_COMPONENT,
    NameOID.USER_ID,
    NameOID.EMAIL_ADDRESS,
    NameOID.SERIAL_NUMBER,
    x509.ObjectIdentifier("1.2.3.4.5678"),
    x509.ObjectIdentifier("2.999.3"),
)
KINDS = (Kind.UTF8String, Kind.UTF8String, Kind.PrintableString, Kind.IA5String, Kind.BMPString)
ANY = "abcXYZ 09,=+<>#;\"\\\r\näß€😀/*\0'@_"
PRINTABLE = "abcXYZ 09,=+/'"
SHOW_NAMES = """
import java.io.*; import java.nio.file.*; import java.security.cert.*; import java.util.*;
public class ShowNames {
  public static void main(String[] given) throws Exception {
    CertificateFactory factory = CertificateFactory.getInstance("X.509");
    for (String line : Files.readAllLines(Path.of(given[0]))) {
      InputStream der = new ByteArrayInputStream(Base64.getDecoder().decode(line));
      String name = ((X509Certificate) factory.generateCertificate(der)).getSubjectX500Principal().getName();
      System.out.println("=" + Base64.getEncoder().encodeToString(name.getBytes("UTF-8")));
    }
  }
}
"""


def build(*rdns):
    """A certificate in DER whose subject has these RDNs, each a list of attributes."""
    name = x509.Name([x509.RelativeDistinguishedName(rdn) for rdn in rdns])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(KEY.public_key())
        .serial_number(5)
        .not_valid_before(NOW)
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def attribute(oid, text, kind=Kind.UTF8String):
    return x509.NameAttribute(oid, text, kind, _validate=False)


def draw_attribute(chance, oid):
    kind = chance.choice(KINDS)
    letters = PRINTABLE if kind in (Kind.PrintableString, Kind.IA5String) else ANY
    letters = letters.replace("😀", "") if kind is Kind.BMPString else letters
    text = "".join(chance.choice(letters) for _ in range(chance.randint(1, 8)))
    return attribute(oid, text, kind)


def draw_certificate(chance):
    return build(
        *(
            [
                draw_attribute(chance, oid)
                for oid in chance.sample(OIDS, chance.choice((1, 1, 1, 3)))
            ]
            for _ in range(chance.randint(0, 4))
        )
    )


def test_the_most_specific_comes_first():
    subject = build(
        [attribute(NameOID.COUNTRY_NAME, "US", Kind.PrintableString)],
        [attribute(NameOID.ORGANIZATION_NAME, "Org, Inc.")],
        [attribute(NameOID.COMMON_NAME, " app#1"), attribute(NameOID.USER_ID, "7")],
    )
    written = read_subject(subject)
    assert written.endswith(r",O=Org\, Inc.,C=US")
    assert set(written.split(",")[0].split("+")) == {r"CN=\ app\#1", "UID=7"}


def test_an_empty_subject_is_an_empty_name():
    assert read_subject(build()) == ""


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x80\x00\x00", b"\x02\x01\x05", bytes(64)])
def test_garbage_is_refused(data):
    with pytest.raises(ValueError):
        read_subject(data)


def test_a_damaged_certificate_is_refused_or_read():
    whole, chance = build([attribute(NameOID.COMMON_NAME, "app")]), random.Random(11)
    for _ in range(5000):
        damaged = bytearray(whole[: chance.randint(1, len(whole))])
        for _ in range(chance.randint(0, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            assert isinstance(read_subject(bytes(damaged)), str)
        except ValueError:
            continue


@pytest.mark.e2e
def test_names_are_javas(tmp_path):
    chance = random.Random(5)
    certificates = [draw_certificate(chance) for _ in range(1000)]
    listed, source = tmp_path / "certificates", tmp_path / "ShowNames.java"
    listed.write_text("".join(f"{base64.b64encode(one).decode()}\n" for one in certificates))
    source.write_text(SHOW_NAMES)
    shown = subprocess.run(
        [find_java(), str(source), str(listed)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [base64.b64decode(line[1:]).decode() for line in shown]
    assert names == [read_subject(one) for one in certificates]
