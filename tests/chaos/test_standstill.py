"""A call that holds the interpreter for good, and one that does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.standstill import SAID

PROGRAM = """
import ctypes, time
from tests.chaos.standstill import guard
guard(0.5)
{call}(3)
"""


@pytest.mark.parametrize(
    ("call", "code"),
    [("ctypes.PyDLL(None).sleep", 1), ("ctypes.CDLL(None).sleep", 0)],
    ids=["held", "free"],
)
def test_an_interpreter_that_stands_still_is_ended(call: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert (SAID in done.stderr) is bool(code)
