"""`forebay doctor` beside real brokers and real Forebays.

Owns what it finds there: a healthy pair, an address past Forebay, missing rights, a worker that was replaced. Must not
know how it asks.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.signed import SignedBroker, start_signed
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.kafka import USERS
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
TOKEN = "admin-token-of-a-test"
Lines = list[dict[str, str]]


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


def run_doctor(sidecar: Sidecar, *flags: str) -> subprocess.CompletedProcess[str]:
    config = sidecar.directory / "forebay.yaml"
    command = [sys.executable, "-m", "proxy", "doctor", str(config), "--timeout", "60s", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def examine(sidecar: Sidecar) -> Lines:
    done = run_doctor(sidecar, "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == {"ok": 0, "skip": 0, "warn": 3, "fail": 1}[document["worst"]]
    assert done.stderr == ""
    lines: Lines = document["checks"]
    return lines


def examine_at(directory: Path, entry: dict[str, Any], **sections: Any) -> Lines:
    """The list of a configuration by which no Forebay runs."""
    listener = {"listen": "127.0.0.9:1"} | entry
    config = {"listeners": [listener], "cache": {"size": "16MiB", "directory": ""}} | sections
    (directory / "other.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "proxy", "doctor", str(directory / "other.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines: Lines = json.loads(done.stdout)["checks"]
    return lines


def find(lines: Lines, subject: str, text: str = "") -> list[str]:
    """The statuses of a subject's lines with that text."""
    found = [one for one in lines if one["subject"].startswith(subject) and text in one["text"]]
    assert found, f"no line of {subject} says {text!r}: {lines}"
    return [one["status"] for one in found]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def count_restarts(pair: Pair) -> float:
    counts = pair.sidecar.metrics().items()
    return sum(value for key, value in counts if key[0] == "forebay_worker_restarts_total")


def test_a_healthy_pair_has_no_failure_and_is_not_disturbed(pair: Pair) -> None:
    create_topic(pair.direct)
    before = pair.sidecar.metrics()
    lines = examine(pair.sidecar)
    assert [one for one in lines if one["status"] == "fail"] == []
    assert find(lines, "broker", "metadata.version") == ["ok"]
    assert find(lines, "listener", "a port of Forebay's") == ["ok"]
    assert find(lines, "listener", "passes Metadata") == ["ok"]
    assert set(find(lines, "rights")) == {"ok"}
    assert find(lines, "arena", "in use") == ["ok"]
    assert find(lines, "running", "ready") == ["ok"]
    assert find(lines, "arena", "for an arena of") == ["ok"]
    assert find(lines, "listener", "has an address here") == ["ok"]
    assert len(find(lines, "open files", "process may have")) == 1, "the broker's was found"
    assert find(lines, "open files", "the Forebay that runs may have")
    assert "partitions of 4 segments" in "".join(one["text"] for one in lines)
    after = pair.sidecar.metrics()
    for name in ("Produce", "Fetch", "CreateTopics"):
        key = "forebay_client_to_proxy_request_total", name
        assert after.get(key, 0) == before.get(key, 0), "nothing is written or read"


def test_an_address_past_forebay_is_a_failure(pair: Pair) -> None:
    """A Forebay before the listener that advertises itself."""
    host, port = pair.broker.address()
    entry = {"listen": pair.through.replace(HOST, "127.0.0.8"), "upstream": f"{host}:{port}"}
    with Sidecar([entry], {"cache": {"size": "16MiB", "directory": ""}}) as other:
        lines = examine(other)
    assert find(lines, "listener", "they go past it") == ["fail"]
    (remedy,) = [one["remedy"] for one in lines if "go past it" in one["text"]]
    assert "advertised.listeners" in remedy


def test_directories_of_the_broker_and_a_second_listener(pair: Pair, tmp_path: Path) -> None:
    host, port = pair.broker.address()
    (data,) = pair.broker.directory.glob("data-*")
    right = {"upstream": f"{host}:{port}", "catchUpUpstream": f"{host}:{port}"}
    disk = {"device": "nvme0n1", "brokerDirectory": str(data)}
    lines = examine_at(tmp_path, right, throttle={"disks": [disk]})
    assert find(lines, "disks", "the broker tells of each brokerDirectory") == ["ok"]
    assert find(lines, "rights", "for throttle.disks[].brokerDirectory") == ["ok"]
    assert find(lines, "catch-up", "clients are told")
    wrong = right | {"catchUpUpstream": f"{host}:1"}
    disk["brokerDirectory"] += "-none"
    lines = examine_at(tmp_path, wrong, throttle={"disks": [disk]})
    assert find(lines, "disks", "the broker does not tell of") == ["fail"]
    assert find(lines, "catch-up", "history comes by the first listener") == ["warn"]


def test_a_listener_that_wants_credentials_says_so(
    signed_broker: SignedBroker, tmp_path: Path
) -> None:
    host, port = signed_broker.cluster.address("CLIENT")
    lines = examine_at(tmp_path, {"upstream": f"{host}:{port}"})
    assert find(lines, "broker", "the listener wants credentials") == ["warn"]


def test_missing_rights_are_named_with_the_command(signed_broker: SignedBroker) -> None:
    """alice has none on the cluster, and none on the test's topic."""
    with start_signed(signed_broker, PATIENT_CACHE) as signed:
        create_topic(signed.broker.direct)
        lines = examine(signed.sidecar)
    assert find(lines, "broker", "answers") == ["ok"]
    assert find(lines, "rights", "DescribeConfigs on the cluster is missing") == ["warn"]
    for one in lines:
        if one["status"] == "warn" and one["subject"].startswith("rights"):
            assert "kafka-acls.sh" in one["remedy"] and "'User:alice'" in one["remedy"]


def test_a_wrong_password_is_told_in_the_brokers_words(
    signed_broker: SignedBroker, tmp_path: Path
) -> None:
    with start_signed(signed_broker, PATIENT_CACHE) as signed:
        secret = signed.broker.directory / "password"
        secret.write_text("wrong-secret\n")
        bundle = tmp_path / "support.tar.gz"
        done = run_doctor(signed.sidecar, "--bundle", str(bundle))
        secret.write_text(USERS["alice"] + "\n")
    assert done.returncode == 1
    assert "fail  broker (default)" in done.stdout
    assert "Authentication failed" in done.stdout
    with tarfile.open(bundle) as archive:
        texts = [file.read() for one in archive if (file := archive.extractfile(one))]
    assert len(texts) > 10
    for password in ("wrong-secret", USERS["alice"]):
        assert all(password.encode() not in text for text in texts)
        assert password not in done.stdout + done.stderr


def test_an_admin_port_with_tls_and_a_token(signed_broker: SignedBroker, tmp_path: Path) -> None:
    """Trusted by the configuration's own certificate; the token is shown."""
    server = write_certificates(tmp_path).server
    (tmp_path / "token").write_text(TOKEN + "\n")
    host, port = signed_broker.cluster.address()
    admin = {
        "tokenFile": str(tmp_path / "token"),
        "tls": {"certificateFile": str(server.certificate), "keyFile": str(server.key)},
    }
    cache = {"size": "16MiB", "directory": ""}
    with Sidecar(
        [{"listen": signed_broker.advertised, "upstream": f"{host}:{port}"}], {"cache": cache}
    ) as sidecar:
        sidecar.stop()
        listen = f"{HOST}:{sidecar.admin_port}"
        config = sidecar.write_config({"admin": admin | {"listen": listen}})
        command = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as serving:
            try:
                wait_until(lambda: "/readyz: ready" in run_doctor(sidecar).stdout)
                done = run_doctor(sidecar, "--bundle", str(tmp_path / "b.tar.gz"))
            finally:
                serving.terminate()
    assert "workers were replaced since its start" in done.stdout, "/metrics was answered"
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        texts = {one.name: file.read() for one in archive if (file := archive.extractfile(one))}
    assert texts["b/admin/config.txt"].startswith(b"200\n")
    assert all(TOKEN.encode() not in text for text in texts.values())


def test_a_replaced_worker_and_a_forebay_that_is_gone(pair: Pair) -> None:
    pair.sidecar.signal_worker(signal.SIGKILL)
    wait_until(lambda: pair.sidecar.is_ready() and count_restarts(pair) > 0)
    lines = examine(pair.sidecar)
    assert find(lines, "running", "workers were replaced") == ["warn"]
    pair.sidecar.stop()
    lines = examine(pair.sidecar)
    assert find(lines, "listener", "Connect call failed") == ["warn"]
    assert find(lines, "running", "no Forebay answers") == ["skip"]
    assert find(lines, "arena", "no Forebay runs") == ["skip"]
