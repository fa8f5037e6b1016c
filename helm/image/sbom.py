"""Writes an image's software bill of materials, CycloneDX 1.6 as JSON, to standard output.

    python sbom.py [--commit COMMIT] [--packages DPKG-STATUS] LOCK

Owns the translation of a lock of pip's and of dpkg's status file into components. Must not know more of Python than its
standard library: it runs while the image is built. Invariant: one component for each name and version, sorted by both,
so that the same sources give the same file.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")
Component = dict[str, Any]


def scan_lock(text: str) -> Iterator[Component]:
    """The components that a lock pins, without their files' hashes: which file is installed depends on the machine."""
    for line in text.splitlines():
        pin = PIN.match(line)
        if pin is not None:
            name, version = pin[1].lower(), pin[2]
            yield _build_component(name, version, f"pkg:pypi/{name}@{version}")


def scan_packages(text: str) -> Iterator[Component]:
    """The installed packages of dpkg's status file."""
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line[:40])
        if fields.get("Status") == "install ok installed":
            name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
            address = f"pkg:deb/debian/{name}@{version.replace(':', '%3A')}?arch={machine}"
            yield _build_component(name, version, address)


def _build_component(name: str, version: str, address: str) -> Component:
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
    }


def build_bill(components: list[Component], commit: str) -> Component:
    """The whole document."""
    subject = {"type": "application", "bom-ref": "forebay", "name": "forebay", "version": commit}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": sorted(components, key=lambda one: (one["name"], one["version"])),
    }


def main() -> None:
    """Read the files that the arguments name, and write the document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commit", default="")
    parser.add_argument("--packages", type=Path)
    parser.add_argument("lock", type=Path)
    options = parser.parse_args()
    components = list(scan_lock(options.lock.read_text()))
    if options.packages is not None:
        components += scan_packages(options.packages.read_text())
    json.dump(build_bill(components, options.commit), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
