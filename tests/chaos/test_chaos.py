"""A short run: much goes wrong, and every promise is kept.

CHAOS_SEED says how. What fails is repeated by the command that the run prints; `make chaos` is the long form.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.chaos.standstill import SAID
from tests.kit.broker.process import die_with_parent

if TYPE_CHECKING:
    from pathlib import Path

MINUTES = 0.25
"""A run goes on until each kind of fault has happened."""
SEED = int(os.environ.get("CHAOS_SEED", "1"))
TIMES = 2
"""A run that stood still says nothing of Forebay (`standstill`): another one does."""


@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_no_client_can_tell(tmp_path: Path) -> None:
    for number in range(TIMES):
        directory = str(tmp_path / str(number))
        words = (
            "--seed",
            str(SEED),
            "--minutes",
            str(MINUTES),
            "--directory",
            directory,
            "--brisk",
        )
        done = subprocess.run(
            [sys.executable, "-m", "tests.chaos", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            preexec_fn=die_with_parent,
        )
        if SAID not in done.stdout:
            break
    assert done.returncode == 0, done.stdout
