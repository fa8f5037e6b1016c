"""Which build of Forebay this is, and what the audit needs beside it.

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


def find_audit_packages() -> list[str]:
    """The packages of the extra `audit`, as pip takes them: `pyspark>=4.0`. Without versions if Forebay is not
    installed.
    """
    import importlib.metadata

    required: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        required = importlib.metadata.requires("forebay") or []
    packages = [one.partition(";") for one in required]
    return [name.strip() for name, _, marker in packages if "audit" in marker] or [
        "pyspark",
        "numpy",
        "pandas",
        "pyarrow",
    ]
