"""A certificate is renewed as Kubernetes does it, while clients of two kinds tail: new handshakes show it.

Owns the volume with the listener's files. Must not know how Forebay sees a change.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.test_reload import Front, Proxied, Traffic
from tests.e2e.test_supervisor import wait_until
from tests.e2e.test_upgrade_clients import JavaTraffic
from tests.kit.broker.certificates import write_certificates, write_identity
from tests.kit.broker.secret_volume import SecretVolume
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.broker.certificates import Identity

pytestmark = pytest.mark.e2e

LOADS = "forebay_tls_loads_total"


class Renewed(Front):
    """A Front whose certificate is in a Secret's volume; both identities are of one authority."""

    def __init__(self, proxied: Proxied, directory: Path, stack: contextlib.ExitStack) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        self.volume = SecretVolume(directory / "secret")
        super().__init__(proxied, directory, stack)
        self.files = write_certificates(self._make(directory / "own"), key)
        self.fresh = write_identity(self._make(directory / "fresh"), "broker", key)
        self.swap(self.files.server.certificate, self.files.server.key)
        tls = {"certificateFile": self.volume.path("crt"), "keyFile": self.volume.path("key")}
        listeners = [self.listeners[0], self.listeners[1] | {"tls": tls}]
        assert self.sidecar.reload({"listeners": listeners})["success"]

    def swap(self, certificate: Path, key: Path) -> None:
        self.volume.write({"crt": certificate, "key": key})

    def shows(self, identity: Identity) -> bool:
        """Whether a new handshake shows that certificate."""
        shown = ssl.get_server_certificate((HOST, self.tls_port))
        own = identity.certificate.read_text()
        return ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(own)


@pytest.fixture(scope="module")
def proxied() -> Iterator[Proxied]:
    with contextlib.ExitStack() as stack:
        yield Proxied(stack)


def test_clients_tail_through_a_renewal(proxied: Proxied, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        front = Renewed(proxied, tmp_path, stack)
        secure: dict[str, Any] = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(front.files.authority),
        }
        direct = proxied.broker.direct
        java = JavaTraffic(front, create_topic(direct), tmp_path)
        traffic = Traffic(f"{HOST}:{front.tls_port}", create_topic(direct), secure)
        try:
            java.go_on()
            traffic.go_on()
            assert front.shows(front.files.server)
            front.swap(front.fresh.certificate, front.files.server.key)
            wait_until(lambda: _count(front, "refused") > 0, "half a pair is refused")
            assert front.shows(front.files.server)
            traffic.go_on()
            front.swap(front.fresh.certificate, front.fresh.key)
            wait_until(lambda: front.shows(front.fresh), "the renewed certificate is shown")
            wait_until(lambda: _count(front, "loaded") > 0, "it is counted")
            front.sidecar.wait_for_log("the TLS files cannot be loaded")
            again = Traffic(f"{HOST}:{front.tls_port}", create_topic(direct), secure)
            for one in (traffic, again):
                one.go_on()
                one.stop()
            java.go_on()
            java.stop()
        finally:
            java.producer.stop()
            java.consumer.stop()


def _count(front: Renewed, outcome: str) -> float:
    found = front.sidecar.metrics()
    return sum(
        value
        for key, value in found.items()
        if key[0] == LOADS and {"TLS", outcome, "client"} <= {*key}
    )
