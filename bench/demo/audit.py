"""The Spark audit as a child process, which never outlives the demo.

Owns that process and its group (Spark's JVM is in it). Must not know what the audit finds. Invariant: leaving
by whatever way kills the whole group first.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 150.0
STOP_S = 5.0


class AuditFailed(RuntimeError):
    """The audit exited with an error, or took too long; the message is what it printed."""


def run_audit(logs: Path, out: Path, counters: Path, scratch: Path) -> Path:
    """Audit `logs` into `out`; the page's path. Temporary files go to `scratch`. Raises AuditFailed."""
    command = [sys.executable, "-m", "proxy", "audit", str(logs), "--out", str(out)]
    command += ["--metrics", str(counters)]
    environment = {**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    said = scratch / "audit.log"
    with said.open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        code = child.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        _end_group(child)
    if code != 0:
        raise AuditFailed(
            f"forebay audit ended with {code}:\n{said.read_text(errors='replace')[-4000:]}"
        )
    return out / "index.html"


def _end_group(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
