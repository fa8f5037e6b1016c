"""A short run beside hostile clients: no good client is harmed, memory stays bounded, nothing is left behind."""

import pytest

from tests.chaos.hostile import HostileRun

MINUTES = 0.5
"""One round: ten quiet seconds, then thirty beside the crowd."""
PAUSE_S = 0.2
"""Four times that of a long run: no percentile is judged here."""


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_no_good_client_is_harmed() -> None:
    run = HostileRun(1, MINUTES, pause_s=PAUSE_S)
    assert run.run() == []
    assert len(run.beside.taken) > len(run.quiet.taken) / 5
