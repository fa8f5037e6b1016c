"""A call that holds the interpreter for good, and one that does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.standstill import SAID

PROGRAM = """
import ctypes, time
from tests.chaos.standstill import guard
guard(2)
{call}({lasts_s})
"""


@pytest.mark.parametrize(
    ("call", "lasts_s", "code"),
    [("ctypes.PyDLL(None).sleep", 600, 1), ("ctypes.CDLL(None).sleep", 5, 0)],
    ids=["held", "free"],
)
def test_an_interpreter_that_stands_still_is_ended(call: str, lasts_s: int, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call, lasts_s=lasts_s)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert (SAID in done.stderr) is bool(code)
