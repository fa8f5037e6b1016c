"""*.lock pin what pyproject.toml asks for, each file by its hash; image and CI install nothing else."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME: list[str] = [
    *PROJECT["project"]["dependencies"],
    *PROJECT["project"]["optional-dependencies"]["canary"],
    *PROJECT["project"]["optional-dependencies"]["top"],
]
BUILD: list[str] = PROJECT["build-system"]["requires"]
AUDIT: list[str] = PROJECT["project"]["optional-dependencies"]["audit"]
DEV: list[str] = [*PROJECT["dependency-groups"]["dev"], *AUDIT]
HASH = re.compile(r" --hash=sha256:[0-9a-f]{64}\b")


def read_pins(lock: str) -> dict[str, list[Version]]:
    """Name -> the versions that a lock allows, one for each Python. AssertionError for a line that pins nothing."""
    pins: dict[str, list[Version]] = {}
    for entry in (ROOT / lock).read_text().replace("\\\n", "").splitlines():
        asked = Requirement(HASH.sub("", entry).strip())
        (exactly,) = asked.specifier
        assert exactly.operator == "==", entry
        assert HASH.search(entry), entry
        pins.setdefault(canonicalize_name(asked.name), []).append(Version(exactly.version))
    return pins


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("runtime.lock", RUNTIME),
        ("build.lock", BUILD),
        ("audit.lock", [*RUNTIME, *AUDIT]),
        ("dev.lock", [*RUNTIME, *BUILD, *DEV]),
    ],
)
def test_all_that_is_asked_for_is_pinned_run_make_lock(lock: str, wanted: list[str]) -> None:
    pins = read_pins(lock)
    for asked in map(Requirement, wanted):
        versions = pins.get(canonicalize_name(asked.name), [])
        assert versions and all(asked.specifier.contains(one) for one in versions), asked


def test_what_runs_is_what_was_tested() -> None:
    tested, built = read_pins("dev.lock"), read_pins("build.lock")
    assert read_pins("runtime.lock").items() <= read_pins("audit.lock").items()
    assert read_pins("audit.lock").items() <= tested.items()
    assert built.items() <= tested.items()


@pytest.mark.parametrize("name", ["helm/image/Containerfile", "Makefile"])
def test_image_and_ci_install_by_hash(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", "")
    installs = [
        line for line in re.split(r"&&|\n", text) if re.search(r"pip (?:install|wheel) ", line)
    ]
    assert installs
    for line in installs:
        own_tree = "--no-deps" in line and ("--no-build-isolation" in line or "--no-index" in line)
        assert (
            re.search(r"--require-hashes -r \w+\.lock", line) or own_tree or ".build/lock" in line
        ), line
