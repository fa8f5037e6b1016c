"""What is downloaded is pinned; what is missing is said; what is cached is whole."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.kit.broker.jars import scan_lock
from tests.matrix import builds
from tests.matrix.builds import (
    HERE,
    BuildFailed,
    Unavailable,
    build_go,
    build_node,
    cached,
    find_tool,
    run_tool,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_npm_packages_are_pinned_by_hash_and_name_no_registry() -> None:
    packages = json.loads((HERE / "js" / "package-lock.json").read_text())["packages"]
    wanted = json.loads((HERE / "js" / "package.json").read_text())["dependencies"]
    assert packages.pop("")["dependencies"] == wanted
    assert all(re.fullmatch(r"[\d.]+", version) for version in wanted.values())
    assert packages
    assert all(
        one["integrity"].startswith("sha512-") and "resolved" not in one
        for one in packages.values()
    )


def test_python_packages_are_pinned() -> None:
    codecs = (HERE / "programs" / "codecs.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+", line) for line in codecs)
    (old,) = (HERE / "librdkafka" / "requirements.txt").read_text().splitlines()
    assert re.fullmatch(r"confluent-kafka==1\.9\.2 --hash=sha256:[0-9a-f]{64}", old)


@pytest.mark.parametrize("name", ["clients-2.1.1", "clients-2.8.2", "streams-4.3.1"])
def test_jars_are_pinned(name: str) -> None:
    jars = scan_lock((HERE / "java" / f"{name}.lock").read_text())
    artifact, _, version = name.partition("-")
    assert (f"kafka-{artifact}", version) in [(jar.artifact, jar.version) for jar in jars]
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in jars)


@pytest.mark.parametrize(
    "build", [lambda folder: build_go("franz", folder), lambda _folder: build_node("steps.mjs")]
)
def test_a_missing_toolchain_is_said(
    build: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"no `(go|node)` command here \(Debian: "):
        build(tmp_path)  # type: ignore[operator]


def test_a_tool_that_fails_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    shell = find_tool("sh", "dash")
    assert run_tool([shell, "-c", "echo fine"], tmp_path) == "fine\n"
    with pytest.raises(BuildFailed, match="no such thing"):
        run_tool([shell, "-c", "echo no such thing >&2; exit 3"], tmp_path)


def test_a_cached_folder_is_made_once_for_its_pins_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "cache_home", lambda: tmp_path)
    pins = tmp_path / "pins"
    pins.write_text("1")
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "half").write_text("")
        if len(made) == 1:
            raise BuildFailed("broken off")
        (folder / "whole").write_text("")

    with pytest.raises(BuildFailed):
        cached("x", [pins], make)
    assert [path.name for path in tmp_path.iterdir()] == ["pins"]
    first = cached("x", [pins], make)
    assert sorted(path.name for path in first.iterdir()) == ["half", "whole"]
    assert cached("x", [pins], make) == first
    pins.write_text("2")
    assert cached("x", [pins], make) != first
    assert len(made) == 3
