"""How soon the next worker starts, and from when on clients are piped."""

from proxy.supervisor.crash_policy import LONGEST_PAUSE_S, CrashPolicy


def test_pauses_double_with_each_short_life_up_to_a_bound() -> None:
    policy = CrashPolicy(limit=3, window_s=60.0)
    pauses = [policy.note_end(1.0) for _ in range(100)]
    assert pauses[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert max(pauses) == pauses[-1] == LONGEST_PAUSE_S


def test_it_loops_at_the_limit_and_a_long_life_ends_that() -> None:
    policy = CrashPolicy(limit=3, window_s=60.0)
    seen = []
    for lived_s in (0.0, 59.9, 59.9, 60.0, 1.0):
        policy.note_end(lived_s)
        seen.append(policy.is_looping)
    assert seen == [False, False, True, False, False]
    assert CrashPolicy(limit=1, window_s=1.0).is_looping is False


def test_what_others_ended_says_nothing_unless_it_lived_long() -> None:
    policy = CrashPolicy(limit=2, window_s=60.0)
    policy.note_end(1.0)
    assert [policy.note_end(1.0, is_own=False) for _ in range(10)] == [0.0] * 10
    assert not policy.is_looping
    policy.note_end(1.0)
    assert policy.is_looping
    policy.note_end(60.0, is_own=False)
    assert not policy.is_looping
