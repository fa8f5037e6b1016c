"""A StatefulSet of one's own with the named templates: helm/example, with TLS toward clients, under a load."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.clients import Load, build_namespace, running_load
from tests.cluster.cluster import Cluster, Object
from tests.cluster.programs import run, wait_until
from tests.cluster.release import READY_S, SMALL, Release, copy_example, merge

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
NAMESPACE, PODS = "own", ("kafka-0", "kafka-1", "kafka-2")
SERVER = f"kafka.{NAMESPACE}.svc"
TLS = {
    "certificateFile": "/etc/forebay-tls/tls.crt",
    "keyFile": "/etc/forebay-tls/tls.key",
}
VALUES: Object = {
    "forebay": merge(
        SMALL,
        {
            "config": {
                "listeners": [
                    {
                        "name": "clients",
                        "listen": ":9092",
                        "upstream": "127.0.0.1:19092",
                        "tls": TLS,
                    }
                ]
            },
            "extraVolumes": [{"name": "forebay-tls", "secret": {"secretName": "forebay-tls"}}],
            "extraVolumeMounts": [{"name": "forebay-tls", "mountPath": "/etc/forebay-tls"}],
            "accessLogClaim": {"size": "1Gi"},
        },
    )
}


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.certificate = directory / "ca.crt"
        new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
        new += ["-subj", "/CN=ca", "-keyout", str(directory / "ca.key")]
        run([*new, "-out", str(self.certificate)])

    def issue(self) -> Object:
        """A Secret with a new key and certificate for the brokers' names."""
        key, request, made = (self.directory / f"tls.{kind}" for kind in ("key", "csr", "crt"))
        names = self.directory / "names"
        names.write_text(f"subjectAltName=DNS:{SERVER},DNS:*.kafka.{NAMESPACE}.svc,DNS:*.kafka\n")
        new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kafka"]
        run([*new, "-keyout", str(key), "-out", str(request)])
        sign = ["openssl", "x509", "-req", "-days", "30", "-CA", str(self.certificate)]
        sign += ["-CAkey", str(self.directory / "ca.key"), "-CAcreateserial"]
        run([*sign, "-in", str(request), "-extfile", str(names), "-out", str(made)])
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "forebay-tls"},
            "stringData": {"tls.crt": made.read_text(), "tls.key": key.read_text()},
        }


@pytest.fixture(scope="module")
def authority(cluster: Cluster) -> Authority:
    return Authority(cluster.state.path("authority", "ca").parent)


@pytest.fixture(scope="module")
def release(cluster: Cluster, authority: Authority) -> Iterator[Release]:
    """In a namespace that enforces Pod Security's strictest level, on a cluster without the Prometheus operator."""
    cluster.apply(build_namespace(NAMESPACE, "restricted"))
    cluster.apply(authority.issue(), namespace=NAMESPACE)
    chart = copy_example(cluster.state.path("charts", "example").parent)
    own = Release(cluster, "own", NAMESPACE, chart)
    own.install(VALUES)
    create = [
        "/opt/kafka/bin/kafka-topics.sh",
        "--bootstrap-server",
        f"kafka-0.kafka.{NAMESPACE}.svc:9094",
    ]
    create += ["--create", "--topic", "events", "--partitions", "6", "--replication-factor", "3"]
    create += ["--config", "min.insync.replicas=2"]
    own.kubectl("exec", "kafka-0", "-c", "kafka", "--", *create)
    yield own
    own.remove()


@pytest.fixture(scope="module")
def load(release: Release, authority: Authority) -> Iterator[Load]:
    with running_load(
        release.cluster, "own", f"{SERVER}:9092", "events", authority.certificate
    ) as running:
        running.settle()
        yield running


def fetch_serial(release: Release, pod: str) -> str:
    """The serial number of the certificate that a sidecar shows."""
    address = release.pod(pod)["status"]["podIP"]
    program = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], 9092)))"
    shown = release.cluster.run("python3", "-c", program, address)
    return run(["openssl", "x509", "-noout", "-serial"], stdin=shown)


def shows_another(release: Release, pod: str, serial: str) -> bool:
    return fetch_serial(release, pod) != serial


def test_each_broker_has_a_claim_for_its_access_log(release: Release) -> None:
    claims = release.cluster.get("pvc", "-n", NAMESPACE)["items"]
    logs = [one for one in claims if one["metadata"]["name"].startswith("forebay-access-log-")]
    assert len(logs) == len(PODS)
    assert all(one["status"]["phase"] == "Bound" for one in logs)


def test_renewed_certificate(release: Release, load: Load, authority: Authority) -> None:
    """Forebay loads it without a restart or a reload; connections that are open stay."""
    old = {pod: fetch_serial(release, pod) for pod in PODS}
    restarts = [release.count_restarts(pod, "forebay") for pod in PODS]
    with load.watching("certificate renewed"):
        release.cluster.apply(authority.issue(), namespace=NAMESPACE)
        for pod in PODS:
            wait_until(
                "the new certificate",
                partial(shows_another, release, pod, old[pod]),
                READY_S,
            )
    assert [release.count_restarts(pod, "forebay") for pod in PODS] == restarts


def test_killed_sidecar_under_tls(release: Release, load: Load) -> None:
    with load.watching("sidecar killed, own StatefulSet, TLS"):
        release.kill("kafka-0", "forebay")


def test_rolling_upgrade_of_own_brokers(release: Release, load: Load) -> None:
    with load.watching("rolling upgrade, own StatefulSet, TLS"):
        release.install(VALUES, {"forebay": {"config": {"log": {"level": "debug"}}}})
        release.wait_rolled("kafka")


def test_the_access_log_outlives_the_pod(release: Release) -> None:
    """The claim of each broker holds the log from before the upgrade."""
    for pod in PODS:
        listed = release.kubectl("exec", pod, "-c", "forebay", "--", "ls", "/var/log/forebay")
        assert len(listed.split()) >= 2, listed
