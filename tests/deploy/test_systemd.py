"""The systemd unit: systemd accepts it, finds it hardened, and runs it with all that it promises."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from proxy.config.load import load
from tests.deploy.systemd import PATIENCE_S, UNIT, Systemd, find_obstacle
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.scrape import read_samples

if TYPE_CHECKING:
    from pathlib import Path

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"
)
MOST_EXPOSED = 1.5
"""Of 10, by `systemd-analyze security`."""
DROPIN = """[Service]
WatchdogSec=3
Environment=FOREBAY_CACHE_SIZE=16MiB
TimeoutStopSec=60
StandardOutput=append:/var/log/unit.log
StandardError=append:/var/log/unit.log
"""


def read_unit() -> dict[str, list[str]]:
    """Directives and their values."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


@needs_analyze
def test_systemd_finds_no_fault_but_that_it_is_not_installed() -> None:
    lines = analyze("verify", str(UNIT)).splitlines()
    assert [
        line for line in lines if "/opt/forebay/bin/forebay is not executable" not in line
    ] == []


@needs_analyze
def test_it_is_hardened() -> None:
    said = analyze("security", "--offline=true", str(UNIT))
    found = re.search(r"exposure level for forebay.service: ([\d.]+)", said)
    if found is None:
        pytest.skip("systemd-analyze is older than 250")
    assert float(found[1]) <= MOST_EXPOSED, said


def test_its_times_fit_the_defaults() -> None:
    """Stopping takes the grace period and what the supervisor adds; a hung supervisor is no hung worker."""
    unit = read_unit()
    config = load(
        None,
        {
            "FOREBAY_LISTENERS_0_UPSTREAM": "127.0.0.1:1",
            "FOREBAY_LISTENERS_0_LISTEN": "127.0.0.1:0",
        },
        (),
    ).config
    assert int(unit["TimeoutStopSec"][0]) > config.shutdown.grace_period_s + 10
    assert int(unit["TimeoutStartSec"][0]) > config.supervisor.start_timeout_s
    assert int(unit["LimitNOFILE"][0]) >= 3 * config.limits.max_connections
    assert unit["Type"] == ["notify"] and unit["KillMode"] == ["mixed"]
    assert "ProcSubset" not in unit, "the throttle reads /proc/diskstats"


def read_metrics(port: int) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=PATIENCE_S) as answer:
        return read_samples(answer.read().decode())


@pytest.mark.skipif(bool(find_obstacle()), reason=find_obstacle() or "none")
def test_a_real_systemd_runs_it(tmp_path: Path) -> None:
    """Ready, reloaded, killed by its watchdog and started again, stopped; a wrong configuration is not tried twice."""
    with lease_port() as listen, lease_port() as admin:
        systemd = Systemd(tmp_path, DROPIN)
        config = systemd.etc / "forebay" / "forebay.yaml"
        config.write_text(
            f"listeners: [{{listen: '{HOST}:{listen.port}', upstream: '{HOST}:1'}}]\n"
            f"admin: {{listen: '{HOST}:{admin.port}'}}\n"
            "accessLog: {directory: /var/log/forebay}\n"
        )
        with systemd:
            assert systemd.control("start", "forebay").returncode == 0, systemd.log_tail()
            assert systemd.show("ActiveState") == "active"
            assert systemd.show("StatusText") == "a worker serves clients"
            metrics = read_metrics(admin.port)
            assert systemd.show("LimitNOFILE") == "1048576"
            assert metrics["process_max_fds",] > 1024, "as many as this machine allows"
            assert (tmp_path / "log" / "forebay").stat().st_uid == 10001
            while not list(
                (tmp_path / "log" / "forebay").glob("*.jsonl")
            ):  # by a thread of its own
                time.sleep(0.1)

            before = metrics["forebay_config_last_reload_timestamp_seconds",]
            assert systemd.control("reload", "forebay").returncode == 0
            name = ("forebay_config_last_reload_timestamp_seconds",)
            while read_metrics(admin.port)[name] == before:
                time.sleep(0.1)
            os.kill(systemd.find_main(), signal.SIGSTOP)  # hung: the watchdog ends it
            systemd.wait_for("NRestarts", "1")
            systemd.wait_for("ActiveState", "active")
            os.kill(systemd.find_main(), signal.SIGKILL)
            systemd.wait_for("NRestarts", "2")
            systemd.wait_for("ActiveState", "active")

            assert systemd.control("stop", "forebay").returncode == 0
            assert systemd.show("Result") == "success"
            config.write_text("listeners: []\nnonsense: 1\n")
            assert systemd.control("start", "forebay").returncode != 0
            assert systemd.show("ExecMainStatus") == "2"
            assert systemd.show("ActiveState") == "failed"
            assert systemd.show("NRestarts") == "0"
