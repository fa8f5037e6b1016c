"""Jars and Python packages that tests run and the project does not need, of the pinned bytes.

Owns their places in the user's cache, where they are fetched once. Must not know what runs with them. Invariants: what
is there is complete and is what the lock beside this file says.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kit.broker.jars import cache_home, locked_jars


def fetch_jars(name: str) -> Path:
    """The directory with the jars of `NAME.lock`. FetchFailed, JavaMissing."""
    return locked_jars(name, Path(__file__).with_name(f"{name}.lock").read_text())


def fetch_packages(name: str) -> Path:
    """The directory with the Python packages of `NAME.lock`: other versions than the project's own.
    CalledProcessError: they cannot be fetched.
    """
    lock = Path(__file__).with_name(f"{name}.lock")
    home = cache_home()
    target = home / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    with (home / f".{name}-lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not target.is_dir():
            staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
            install = ["pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(lock)]
            command = [sys.executable, "-m", *install, "--target", str(staging / "packages")]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
                (staging / "packages").rename(target)
            finally:
                shutil.rmtree(staging)
    return target
