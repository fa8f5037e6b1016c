"""A short run beside hostile clients: no good client is harmed, memory stays bounded, nothing is left behind."""

import pytest

from tests.chaos.hostile import HostileRun

MINUTES = 0.5
"""One round: ten quiet seconds, then thirty beside the crowd."""


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_no_good_client_is_harmed() -> None:
    run = HostileRun(1, MINUTES)
    assert run.run() == []
    assert len(run.beside.taken) > len(run.quiet.taken) / 5
