"""What some end-to-end files share: a broker that wants credentials, and a disk that is busy when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.fake_disks import FakeDisks
from tests.e2e.signed import SignedBroker, start_signed_broker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def signed_broker() -> Iterator[SignedBroker]:
    """For the files SIGNED (tests/conftest.py), on one worker. Rights are given for topics of a test's own."""
    with start_signed_broker() as running:
        yield running


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDisks]:
    """One disk, sdx, idle at first; for the tests of a file."""
    with FakeDisks(tmp_path_factory.mktemp("disk") / "diskstats", ["sdx"]) as running:
        yield running
