"""`forebay doctor` where nobody answers: the list, its exit code, the bundle."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from proxy import cli
from proxy.doctor.command import PACKAGES, describe_versions

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "never-to-be-seen"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Nobody listens at ports 1 and 2."""
    (tmp_path / "password").write_text(SECRET)
    own = f"{{mechanism: PLAIN, username: u, passwordFile: '{tmp_path}/password'}}"
    path = tmp_path / "forebay.yaml"
    path.write_text(
        f"listeners: [{{listen: '127.0.0.1:1', upstream: '127.0.0.2:1', upstreamCredentials: {own}}}]\n"
        f"cache: {{size: 16MiB, directory: '{tmp_path}'}}\nadmin: {{listen: '127.0.0.1:2'}}\n"
    )
    return path


def test_a_broker_that_is_away_is_a_failure(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", str(config_file)]) == 1
    out = capsys.readouterr().out
    assert "fail  broker (default)" in out and "-> start the broker" in out
    assert "skip  running" in out
    assert cli.main(["doctor", str(config_file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["worst"] == "fail"


def test_the_bundle_has_all_members_and_no_secret(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = config_file.with_name("support.tar.gz")
    assert cli.main(["doctor", str(config_file), "--bundle", str(bundle)]) == 1
    named = capsys.readouterr().err.partition(": ")[2].strip().split(", ")
    with tarfile.open(bundle) as archive:
        assert archive.getnames() == named
        texts = [file.read() for one in archive if (file := archive.extractfile(one))]
    assert all(SECRET.encode() not in text for text in texts)
    for name in ("doctor.json", "forebay.yaml", "versions.txt", "admin/metrics.txt"):
        assert f"support/{name}" in named
    assert cli.main(["doctor", str(config_file), "--bundle", str(bundle)]) == cli.USAGE
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--timeout", "0s"], ["--timeout", "5"], ["--bundle"]])
def test_a_wrong_flag_is_2(config_file: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", str(config_file), *flags])
    assert caught.value.code == cli.USAGE


def test_a_wrong_configuration_is_2(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.write_text("cahce: {}\n")
    assert cli.main(["doctor", str(config_file)]) == cli.USAGE
    captured = capsys.readouterr()
    assert "cahce: unknown key" in captured.err and captured.out == ""


def test_versions_name_every_package() -> None:
    text = describe_versions()
    assert text.startswith("forebay ") and all(f"\n{name} " in text for name in PACKAGES)
