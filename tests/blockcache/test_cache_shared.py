"""Several real processes on one arena: they read at random while one changes it, and are killed."""

import json
import subprocess
import sys

import pytest


def share(*arguments: str) -> dict[str, int]:
    """What `tests.blockcache.sharing` counts; it has compared every byte that was read."""
    command = [sys.executable, "-m", "tests.blockcache.sharing", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def check_readers(counts: dict[str, int], kills: int) -> None:
    assert counts["killed"] == kills
    assert counts["refused_to_release"] == kills  # each was alive when that was asked
    assert counts["pins_released"] > kills and counts["limbo"] > kills
    assert counts["evicted"] > 5 * kills


def test_killed_readers_leave_no_pin_and_the_others_go_on() -> None:
    check_readers(share("--readers", "4", "--kills", "200"), 200)


def check_keepers(counts: dict[str, int], kills: int) -> None:
    assert counts["killed"] >= kills
    assert counts["taken_over"] > kills // 10 and counts["torn"] > kills // 20


def test_a_killed_keeper_leaves_an_arena_for_the_next_or_a_torn_one() -> None:
    check_keepers(share("--keepers", "--kills", "80", "--seed", "2"), 80)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_kills(seed: int) -> None:
    check_readers(share("--readers", "7", "--kills", "1000", "--seed", str(seed)), 1000)
    check_keepers(share("--keepers", "--kills", "1000", "--seed", str(seed)), 1000)
