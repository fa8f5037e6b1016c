"""Which build of Forebay this is, and what some commands need beside it.

Owns the version, the commit and the names of packages. Must not know who shows them. The commit lies in a file that
the build of a wheel writes (blockcache/hatch_build.py); a clone has no such file, and its checked-out commit is read.
"""

import contextlib
from functools import cache
from pathlib import Path

COMMIT_FILE = Path(__file__).with_name("commit.txt")
CLONE = Path(__file__).parents[1]
FROM_CLONE = "-clone"
"""Behind the commit of a clone, whose files may have changed since."""


@cache
def find_commit() -> str:
    """The commit that the wheel was built from, as Git writes it; of a clone the commit that was checked out at the
    start, with FROM_CLONE; "" if neither is known.
    """
    with contextlib.suppress(OSError):
        return COMMIT_FILE.read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError, ValueError):
        return _read_head(CLONE / ".git") + FROM_CLONE
    return ""


def _read_head(git: Path) -> str:
    """The commit of HEAD (gitrepository-layout). OSError, ValueError: `git` is no repository, or has no commit."""
    if git.is_file():  # a linked work tree: "gitdir: PATH"
        git = git.parent / git.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
    head = (git / "HEAD").read_text(encoding="ascii").strip()
    if not head.startswith("ref: "):
        return head
    reference = head.removeprefix("ref: ")
    shared = git
    with contextlib.suppress(OSError):
        shared = git / (git / "commondir").read_text(encoding="utf-8").strip()
    with contextlib.suppress(OSError):
        return (shared / reference).read_text(encoding="ascii").strip()
    for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    raise ValueError(f"{reference} has no commit")


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
