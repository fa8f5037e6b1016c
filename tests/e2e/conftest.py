"""What some end-to-end files share: a broker that wants credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.signed import SignedBroker, start_signed_broker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def signed_broker() -> Iterator[SignedBroker]:
    """For the files SIGNED (tests/conftest.py), on one worker. Rights are given for topics of a test's own."""
    with start_signed_broker() as running:
        yield running
