"""Which build of Forebay this is, and what some commands need beside it.

Owns the version, the commit and the names of packages. Must not know who shows them. The commit lies in a file that
the build of a wheel writes (blockcache/hatch_build.py); a work tree has none.
"""

import contextlib
from functools import cache
from pathlib import Path

COMMIT_FILE = Path(__file__).with_name("commit.txt")


@cache
def find_commit() -> str:
    """The commit that the wheel was built from, as Git writes it; "" in a work tree, or if the build knew none."""
    with contextlib.suppress(OSError):
        return COMMIT_FILE.read_text(encoding="ascii").strip()
    return ""


def find_version() -> str:
    """The installed version; "0" if Forebay is not installed."""
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("forebay")
    return "0"


EXTRAS = {
    "audit": ["pyspark", "numpy", "pandas", "pyarrow"],
    "canary": ["aiokafka"],
    "top": ["rich"],
}
"""Extras and their packages."""


def find_packages(extra: str) -> list[str]:
    """The packages of an extra, as pip takes them: `pyspark>=4.0`. Without versions if Forebay is not
    installed.
    """
    import importlib.metadata

    required: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        required = importlib.metadata.requires("forebay") or []
    packages = [one.partition(";") for one in required]
    wanted = f"extra == '{extra}'"
    return [
        name.strip() for name, _, marker in packages if wanted in marker.replace('"', "'")
    ] or EXTRAS[extra]
