"""The supervisor as a process, without a broker: what ends it, what it says, and who is replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client.parser import text_string_to_metric_families

from metrics.catalog import CATALOG
from proxy.build_info import find_version
from proxy.sockets import Sockets
from proxy.supervisor.fallback import Fallback
from proxy.supervisor.figures import REASONS, Figures
from proxy.supervisor.post import FAILED
from proxy.supervisor.run import OK, find_exit_code
from proxy.supervisor.worker_process import WorkerEnd
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.settings import HOST
from tests.kit.sidecar import refuse_workers
from tests.proxy.forebay_process import PATIENCE_S, Alone, wait_until
from tests.proxy.supervisor.configured import build_config


def run_to_end(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", "serve", "--upstream", f"{HOST}:1", *flags]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


ANYWHERE = ("--listen", f"{HOST}:0", "--admin", f"{HOST}:0", "--cache-size", "16MiB")


def test_a_port_that_is_taken_ends_it_before_any_worker() -> None:
    with socket.create_server((HOST, 0)) as other:
        address = "{}:{}".format(*other.getsockname())
        ended = run_to_end(*ANYWHERE, "--listen", address)
    assert ended.returncode == FAILED
    starting, line = ended.stderr.splitlines()
    assert "starting Forebay" in starting
    assert f"listener default cannot listen at {address} (listeners[0].listen): Address" in line


def test_an_arena_that_cannot_be_made_ends_it_at_the_first_start(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / f"forebay-{port}.arena").write_text("something else than an arena")
    (tmp_path / f"forebay-{port}.arena").chmod(0o600)
    ended = run_to_end(
        *ANYWHERE, "--listen", f"{HOST}:{port}", FOREBAY_CACHE_DIRECTORY=str(tmp_path)
    )
    assert ended.returncode == FAILED
    assert "cannot start: " in ended.stderr
    assert "holds something else than an arena" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("cannot start") == 1, "it is not tried again"


def metric_of(forebay: Alone, name: str, **labels: str) -> float:
    """-1 while nobody answers."""
    try:
        text = forebay.ask("/metrics")
    except OSError:
        return -1
    return next(
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name and one.labels == labels
    )


def test_a_worker_that_ends_is_replaced_and_counted(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, Alone(log.fileno()) as forebay:
        first = forebay.worker_pid
        assert first is not None
        assert metric_of(forebay, "forebay_fallback") == 0
        assert metric_of(forebay, "forebay_worker_restarts_total", reason="exit") == 0
        os.kill(first, signal.SIGTERM)
        wait_until(lambda: forebay.worker_pid not in (None, first))
        wait_until(forebay.is_started)
        assert metric_of(forebay, "forebay_worker_restarts_total", reason="exit") == 1
        assert forebay.arena.exists()
        forebay.process.terminate()
        assert forebay.process.wait(PATIENCE_S) == 0
        assert not forebay.arena.exists()
    assert (
        "the worker ended: exit code 0; the next one starts in 0 s"
        in (tmp_path / "log").read_text()
    )


def test_the_next_worker_gets_the_memory_unless_the_former_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was killed by others has left what it meant to, however often they do."""
    monkeypatch.setenv("FOREBAY_SUPERVISOR_CRASH_LIMIT", "2")
    looked = '"message":"looking at what an earlier process left"'
    dropped = '"message":"dropped the cache: its content may be wrong'
    with (tmp_path / "log").open("wb") as log, Alone(log.fileno()) as forebay:
        kills = (signal.SIGKILL, 1), (signal.SIGTERM, 2), (signal.SIGKILL, 3)
        for number, finds in (*kills, (signal.SIGSEGV, 3), (signal.SIGKILL, 4)):
            former = forebay.worker_pid
            assert former is not None
            os.kill(former, number)
            wait_until(lambda: forebay.worker_pid not in (None, former))  # noqa: B023
            wait_until(forebay.is_started)
            wait_until(lambda: (tmp_path / "log").read_text().count(looked) == finds)  # noqa: B023
        assert metric_of(forebay, "forebay_pipes_total") == 0
    assert (tmp_path / "log").read_text().count(dropped) == 1


def test_the_start_tells_version_and_cache(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log, Alone(log.fileno()):
        wait_until(lambda: '"message":"started"' in path.read_text())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (started,) = [line for line in lines if line["message"] == "started"]
    assert lines[0]["message"] == f"starting Forebay {find_version()}"
    assert started["version"] == find_version()
    assert (started["cacheMode"], started["cacheBytes"]) == ("serve", 16 << 20)


def test_the_token_protects_metrics_while_no_worker_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    refusal = refuse_workers(tmp_path)
    monkeypatch.setenv("FOREBAY_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FOREBAY_SUPERVISOR_CRASH_LIMIT", "1000")
    with Alone(subprocess.DEVNULL) as forebay:
        refusal.touch()
        assert forebay.worker_pid is not None
        os.kill(forebay.worker_pid, signal.SIGKILL)
        wait_until(forebay.is_alive)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            forebay.ask("/readyz")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            forebay.ask("/metrics")
        asked = urllib.request.Request(f"http://{HOST}:{forebay.admin_port}/metrics")
        asked.add_header("Authorization", "Bearer hunter2")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            assert b'forebay_worker_restarts_total{reason="signal"} 1' in answer.read()
        refusal.unlink()
        wait_until(forebay.is_started)


def test_worker_and_supervisor_have_the_same_access(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TLS, the token and `openMetrics`; a renewed token and certificate reach both."""
    key = ec.generate_private_key(ec.SECP256R1())
    files, token = write_certificates(tmp_path, key), tmp_path / "token"
    token.write_text("hunter2\n")
    refusal = refuse_workers(tmp_path)
    monkeypatch.setenv("FOREBAY_ADMIN_TOKEN_FILE", str(token))
    monkeypatch.setenv("FOREBAY_ADMIN_OPEN_METRICS", "true")
    monkeypatch.setenv("FOREBAY_ADMIN_TLS_CERTIFICATE_FILE", str(files.server.certificate))
    monkeypatch.setenv("FOREBAY_ADMIN_TLS_KEY_FILE", str(files.server.key))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FOREBAY_SUPERVISOR_CRASH_LIMIT", "1000")
    context = ssl.create_default_context(cafile=str(files.authority))
    with Alone(subprocess.DEVNULL, tls=context) as forebay:
        ends = "forebay_tls_certificate_expiry_seconds"
        assert f'{ends}{{file="certificate",listener="",side="admin"}}' in forebay.ask("/metrics")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            forebay.ask("/config")
        assert "openMetrics" in forebay.ask("/config", "hunter2")
        (tmp_path / "renewed").mkdir()
        renewed = write_certificates(tmp_path / "renewed", key)
        files.server.certificate.write_bytes(renewed.server.certificate.read_bytes())
        files.server.key.write_bytes(renewed.server.key.read_bytes())
        token.write_text("hunter3\n")
        wait_until(lambda: is_answered(forebay, "/config", "hunter3"))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            forebay.ask("/config", "hunter2")
        refusal.touch()
        assert forebay.worker_pid is not None
        os.kill(forebay.worker_pid, signal.SIGKILL)
        wait_until(forebay.is_alive)
        assert 'forebay_worker_restarts_total{reason="signal"} 1' in forebay.ask("/metrics")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            forebay.ask("/config", "hunter2")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            forebay.ask("/config", "hunter3")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            forebay.ask("/readyz")
        shown = ssl.get_server_certificate((HOST, forebay.admin_port))
        own = renewed.server.certificate.read_text()
        assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(own)


def is_answered(forebay: Alone, path: str, token: str) -> bool:
    try:
        return bool(forebay.ask(path, token))
    except OSError:
        return False


def test_as_process_1_it_ends_in_order(tmp_path: Path) -> None:
    """Of a PID namespace, as in a container."""
    isolated = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if (
        shutil.which("unshare") is None
        or subprocess.run((*isolated, "true"), check=False).returncode
    ):
        pytest.skip("no PID namespace here")
    log = tmp_path / "log"
    program = [sys.executable, "-m", "proxy", "serve", "--upstream", f"{HOST}:1", *ANYWHERE]
    with log.open("wb") as stderr, subprocess.Popen((*isolated, *program), stderr=stderr) as outer:
        wait_until(lambda: '"message":"started"' in log.read_text())
        inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        os.kill(inner, signal.SIGTERM)
        assert outer.wait(PATIENCE_S) == 0
    assert '"message":"stopped"' in log.read_text()


async def test_metrics_without_a_worker_are_the_catalogs() -> None:
    config = build_config()
    fallback = Fallback(config, Sockets(((),), ()), Figures(), "1.0", lambda: config)
    families = list(text_string_to_metric_families(fallback.render_metrics().decode()))
    samples = [sample for family in families for sample in family.samples]
    for sample in samples:
        metric = CATALOG[sample.name]
        assert set(sample.labels) == set(metric.labels), sample
    assert {one.labels["reason"] for one in samples if "reason" in one.labels} == set(REASONS)


@pytest.mark.parametrize(
    ("code", "exit_code"), [(0, OK), (1, 1), (-signal.SIGTERM, OK), (-signal.SIGKILL, FAILED)]
)
def test_the_exit_code_is_the_workers(code: int, exit_code: int) -> None:
    assert find_exit_code(WorkerEnd("exit", code, was_ready=True, lived_s=1.0)) == exit_code
