"""Back-off: pauses double up to a limit, and end when the broker answers."""

from proxy.partitions.back_off import FIRST_PAUSE_S, LONGEST_PAUSE_S, BackOff


def test_pauses_double_up_to_the_longest() -> None:
    back_off, now, pauses = BackOff(), 10.0, []
    for _ in range(12):
        back_off.extend(now)
        back_off.extend(now)  # another poll with the same error
        pauses.append(round(back_off.until - now, 6))
        now = back_off.until
    assert pauses[:4] == [FIRST_PAUSE_S, 0.2, 0.4, 0.8]
    assert pauses[-1] == LONGEST_PAUSE_S
    back_off.reset(now)
    back_off.extend(now)
    assert (back_off.until, back_off.failures) == (now + FIRST_PAUSE_S, 1)


def test_another_question_ends_the_pause_not_the_count() -> None:
    back_off = BackOff()
    back_off.extend(10.0)
    back_off.end(10.05)
    assert (back_off.until, back_off.failures) == (10.05, 1)
