"""The bill of materials names what the lock and dpkg name, and is the same for the same sources."""

import json
import subprocess
import sys
from pathlib import Path

from tests.helm.chart import HELM
from tests.test_lock import read_pins

STATUS = """Package: adduser
Status: install ok installed
Architecture: all
Version: 1:3.134
Description: add users
 and more: of it

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


def run_sbom(directory: Path) -> str:
    packages = directory / "status"
    packages.write_text(STATUS)
    command = [sys.executable, str(HELM / "image" / "sbom.py"), "--commit", "abc"]
    command += ["--packages", str(packages), str(HELM.parent / "runtime.lock")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_it_names_every_pin_and_every_installed_package(tmp_path: Path) -> None:
    bill = json.loads(run_sbom(tmp_path))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == "abc"
    found = {one["purl"] for one in bill["components"]}
    pins = {
        f"pkg:pypi/{name}@{version}"
        for name, versions in read_pins("runtime.lock").items()
        for version in versions
    }
    assert found == pins | {"pkg:deb/debian/adduser@1%3A3.134?arch=all"}


def test_the_same_sources_give_the_same_file(tmp_path: Path) -> None:
    assert run_sbom(tmp_path) == run_sbom(tmp_path)
