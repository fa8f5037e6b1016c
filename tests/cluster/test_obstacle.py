"""Whether a machine can run a node is asked before anything is built."""

from pathlib import Path

import pytest

from tests.cluster.cluster import find_obstacle
from tests.cluster.layout import find_packages


def test_a_clean_machine_has_no_obstacle_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the unpacked packages the answer is the same as with them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clean = find_obstacle()
    find_packages().mkdir()
    assert clean == find_obstacle()
