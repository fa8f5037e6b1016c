"""The image's build stage: what the Containerfile copies is enough for a wheel that runs.

Owns a folder with those files alone, and the wheel built and installed from it. Nothing of the repository may help:
each of the product's modules must come from the installed wheel.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helm.chart import render_demo
from tests.test_imports import PACKAGES, ROOT, modules

COMMIT = "0123456789abcdef0123456789abcdef01234567"
COPIED = re.compile(r"^COPY (?!--from)(.+) \S+$", re.MULTILINE)
STRANGERS = """
import importlib, sys
target, packages, names = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
for name in names:
    importlib.import_module(name)
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)  # what cffi adds has none
    if name.split(".")[0] in packages and file and not file.startswith(target):
        print(name, file)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel of the image lies, installed without its dependencies."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in " ".join(COPIED.findall((ROOT / "helm/image/Containerfile").read_text())).split():
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        else:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run(
        [*pip, "--target", target, source],
        env={**os.environ, "SOURCE_COMMIT": COMMIT},
        check=True,
        capture_output=True,
        text=True,
        timeout=170,
    )
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The interpreter finds what is installed there before anything else, and nothing where it is started."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(
        command,
        cwd=installed,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_module_of_the_product_is_in_the_wheel(installed: Path) -> None:
    done = run(installed, "-c", STRANGERS, str(installed), ",".join(PACKAGES), *modules())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_description_has_links_that_work_on_the_index(installed: Path) -> None:
    (metadata,) = installed.glob("forebay-*.dist-info/METADATA")
    text = metadata.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links and all(link.startswith(("https://", "#")) for link in links)
    assert {line.split(", ")[0] for line in text.splitlines() if "Project-URL" in line} == {
        f"Project-URL: {name}" for name in ("Source", "Documentation", "Changelog", "Issues")
    }


def test_it_reads_a_configuration(installed: Path) -> None:
    config = installed / "forebay.yaml"
    config.write_text('listeners: [{listen: "127.0.0.1:9092", upstream: "127.0.0.1:9093"}]\n')
    done = run(installed, "-m", "proxy", "config", "check", str(config))
    assert done.returncode == 0, done.stderr


def test_it_knows_its_commit(installed: Path) -> None:
    """What the Containerfile hands to the build; pip's copy of the sources has no history."""
    text = (ROOT / "helm/image/Containerfile").read_text()
    assert "\nARG COMMIT=\n" in text and "SOURCE_COMMIT=$COMMIT" in text
    done = run(installed, "-m", "proxy", "--version")
    assert done.stdout == f"forebay 0.1.0 ({COMMIT})\n"
    program = "from proxy.build_info import find_commit; print(find_commit())"
    assert run(installed, "-c", program).stdout == f"{COMMIT}\n"


def test_the_image_that_the_readme_builds_is_the_one_that_a_node_pulls() -> None:
    """A name without a registry is localhost/NAME to buildah, and docker.io/library/NAME to a node."""
    text = (ROOT / "helm/forebay/README.md").read_text()
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("    ")]
    (build,) = [command for command in commands if command[:2] == ["buildah", "build"]]
    (push,) = [command for command in commands if command[:2] == ["buildah", "push"]]
    (install,) = [command for command in commands if command[:2] == ["helm", "install"]]
    built = build[build.index("-t") + 1]
    registry, _, rest = built.partition("/")
    assert rest and "." in registry, "the registry is named"
    assert push[2:] == [built]
    key, _, repository = install[install.index("--set") + 1].partition("=")
    assert key == "image.repository"
    pod = render_demo({"image": {"repository": repository}}).one("StatefulSet")["spec"]["template"][
        "spec"
    ]
    assert pod["initContainers"][0]["image"] == built


def test_the_base_is_pinned_and_both_images_say_what_they_are() -> None:
    text = (ROOT / "helm/image/Containerfile").read_text()
    assert re.search(r"^ARG BASE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}$", text, re.M)
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    final = text.split("\nFROM ")[-1], text.split(" AS audit\n")[1].split("\nFROM ")[0]
    for stage in final:
        labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', stage))
        assert labels["version"] == version[1] and labels["licenses"] == "Apache-2.0"
        assert labels["revision"] == "$COMMIT" and labels["title"] and labels["description"]
        assert "\nUSER 10001:10001\n" in stage
