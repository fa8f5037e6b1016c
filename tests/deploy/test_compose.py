"""The Compose file fits the chart, and each file that it mounts is understood by the program that reads it.

No container runs here: what `docker compose config` checks of the file's form is not checked.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config.load import load
from proxy.config.units import parse_size
from tests.kit.prometheus import find_program

REPOSITORY = Path(__file__).parents[2]
DIRECTORY = REPOSITORY / "deploy" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((DIRECTORY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
VALUES: dict[str, Any] = yaml.safe_load((REPOSITORY / "helm/forebay/values.yaml").read_text())
CHART: dict[str, Any] = yaml.safe_load((REPOSITORY / "helm/forebay/Chart.yaml").read_text())


def list_mounts() -> list[str]:
    """What is mounted of this repository."""
    mounts = [one for service in SERVICES.values() for one in service.get("volumes", ())]
    return [one.split(":")[0] for one in mounts if one.startswith(".")]


def test_images_are_those_of_the_chart() -> None:
    kafka = VALUES["broker"]["image"]
    assert SERVICES["kafka"]["image"].split("@")[0] == f"{kafka['repository']}:{kafka['tag']}"
    name = f"{VALUES['image']['repository']}:{CHART['appVersion']}"
    assert SERVICES["forebay"]["image"] == name
    build = SERVICES["forebay"]["build"]
    root = (DIRECTORY / build["context"]).resolve()
    assert root == REPOSITORY and (root / build["dockerfile"]).is_file()


def test_what_is_mounted_is_there() -> None:
    assert len(list_mounts()) == 6
    for path in list_mounts():
        assert (DIRECTORY / path).is_file(), path
    named = {
        one.split(":")[0]
        for service in SERVICES.values()
        for one in service.get("volumes", ())
        if not one.startswith(".")
    }
    assert named == set(COMPOSE["volumes"])


def test_forebay_starts_with_its_configuration_and_has_the_room_for_it() -> None:
    loaded = load(DIRECTORY / "forebay.yaml", {}, ())
    assert not loaded.warnings
    service, config = SERVICES["forebay"], loaded.config
    assert parse_size(service["shm_size"].upper() + "iB") * 7 // 8 >= config.cache.size_bytes
    listened = {str(config.listeners[0].listen.port), str(config.admin.listen.port)}
    assert {port.rpartition(":")[2] for port in service["ports"]} == listened
    assert int(service["stop_grace_period"][:-1]) > config.shutdown.grace_period_s + 10


def test_the_broker_sends_clients_to_forebay() -> None:
    environment = SERVICES["kafka"]["environment"]
    config = load(DIRECTORY / "forebay.yaml", {}, ()).config
    assert (
        f"CLIENT://localhost:{config.listeners[0].listen.port}"
        in (environment["KAFKA_ADVERTISED_LISTENERS"])
    )
    upstream = config.listeners[0].upstream
    assert upstream.host in SERVICES
    assert f"CLIENT://:{upstream.port}" in environment["KAFKA_LISTENERS"]
    assert "ports" not in SERVICES["kafka"]


def test_prometheus_and_grafana_find_each_other() -> None:
    prometheus = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    assert "forebay" in job["job_name"], "ForebayDown knows a Forebay that never answered by it"
    assert job["static_configs"] == [{"targets": ["forebay:9190"]}]
    (source,) = yaml.safe_load((DIRECTORY / "grafana/datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"]
    (provider,) = yaml.safe_load((DIRECTORY / "grafana/dashboards.yaml").read_text())["providers"]
    mounted = [one.split(":")[1] for one in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/forebay.json" in mounted


@pytest.mark.skipif(find_program("promtool") is None, reason="no promtool here")
def test_promtool_accepts_its_configuration(tmp_path: Path) -> None:
    text = (DIRECTORY / "prometheus.yml").read_text()
    rules = REPOSITORY / "helm/forebay/rules/forebay.yaml"
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace("/etc/prometheus/forebay-rules.yaml", str(rules)))
    command = [str(find_program("promtool")), "check", "config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
