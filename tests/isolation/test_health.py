"""A hanging topic is found, refused, probed and restored; other topics are not affected."""

import pytest

from isolation.health import Health, HealthRule, Sent, Verdict

RULE = HealthRule(
    hang_after_s=5.0, probe_first_s=1.0, probe_last_s=4.0, max_keys=3, forget_after_s=100.0
)


@pytest.fixture
def health():
    return Health(RULE)


def hung(health, key="a", at_s=5.0):
    """Make a key hang at a time; the request that does."""
    sent = health.sent([key], at_s - RULE.hang_after_s)
    assert health.plan(key, at_s) is Verdict.REFUSE
    return sent


def test_the_oldest_unanswered_request_at_the_bound(health):
    health.sent(["a"], 0.0)
    health.sent(["b"], 3.0)
    assert health.plan("a", 4.99) is Verdict.PASS
    assert health.plan("a", 5.0) is Verdict.REFUSE
    assert health.plan("b", 5.0) is Verdict.PASS
    assert health.plan("never seen", 5.0) is Verdict.PASS


def test_a_turn_names_each_hanging_topic_once(health):
    health.sent(["a"], 0.0)
    assert health.turn(4.0) == []
    assert health.turn(5.5) == ["a"]
    assert health.turn(6.0) == []


def test_a_turn_names_what_a_plan_found_first(health):
    hung(health)
    assert health.turn(5.0) == ["a"]


def test_single_probes_with_back_off(health):
    hung(health)
    passed = []
    for tenth in range(50, 250):
        now_s = tenth / 10
        if health.plan("a", now_s) is Verdict.PROBE:
            assert health.plan("a", now_s) is Verdict.PROBE, "planning has no effect"
            health.sent(["a"], now_s)
            passed.append(now_s)
    assert passed == [6.0, 8.0, 12.0, 16.0, 20.0, 24.0]


def test_answered_probe_ends_the_hang(health):
    first = hung(health)
    probe = health.sent(["a"], 6.0)
    assert health.answered(probe, 10.9) == ["a"]
    assert health.plan("a", 10.9) is Verdict.PASS
    health.answered(first, 60.0)
    assert health.plan("a", 60.0) is Verdict.PASS
    assert health.statistics() == {
        "watched": 0,
        "hanging": 0,
        "hangs": 1,
        "recoveries": 1,
        "probes": 1,
        "unwatched": 0,
    }


def test_answer_after_minutes_leads_to_a_probe(health):
    first = hung(health)
    probe = health.sent(["a"], 6.0)
    assert health.answered(probe, 11.0) == []
    assert health.plan("a", 11.0) is Verdict.PROBE
    health.sent(["a"], 11.0)
    assert health.answered(first, 11.5) == []
    assert health.plan("a", 11.5) is Verdict.PROBE


def test_healthy_topic_of_a_hanging_request_stays_healthy(health):
    health.sent(["a", "b"], 0.0)
    alone = health.sent(["b"], 4.0)
    health.answered(alone, 4.1)
    assert health.plan("a", 5.0) is Verdict.REFUSE
    assert health.plan("b", 5.0) is Verdict.PASS
    assert health.plan("b", 500.0) is Verdict.PASS


def test_earlier_answer_does_not_clear_a_later_request(health):
    first, _second = health.sent(["a"], 0.0), health.sent(["a"], 1.0)
    health.answered(first, 2.0)
    assert health.plan("a", 5.9) is Verdict.PASS
    assert health.plan("a", 6.0) is Verdict.REFUSE


def test_request_behind_another_is_not_late(health):
    blocker = health.sent(["a"], 0.0)
    behind = health.sent(["b"], 0.0, is_first=False)
    assert health.plan("b", 60.0) is Verdict.PASS
    health.answered(blocker, 60.0)
    health.started(behind, 60.0)
    assert health.plan("b", 64.9) is Verdict.PASS
    assert health.plan("b", 65.0) is Verdict.REFUSE


def test_a_closed_link_neither_condemns_nor_clears(health):
    sent = health.sent(["a"], 0.0)
    health.forgotten(sent)
    assert health.plan("a", 60.0) is Verdict.PASS
    again = hung(health, at_s=70.0)
    health.forgotten(again)
    assert health.plan("a", 70.5) is Verdict.REFUSE


def test_answered_key_takes_no_memory(health):
    for number in range(100):
        sent = health.sent([number], float(number))
        assert health.statistics()["watched"] == 1
        health.answered(sent, number + 0.1)
    assert health.statistics()["watched"] == 0


def test_new_keys_beyond_the_limit_pass_unwatched(health):
    for key in "abc":
        health.sent([key], 0.0)
    fourth = health.sent(["d"], 0.0)
    assert health.statistics()["unwatched"] == 1
    assert health.plan("d", 60.0) is Verdict.PASS
    assert health.plan("a", 60.0) is Verdict.REFUSE
    assert health.answered(fourth, 60.0) == []


def test_unused_hanging_topic_is_forgotten(health):
    health.forgotten(hung(health))
    probe_at_s = 6.0
    health.turn(probe_at_s + RULE.forget_after_s)
    assert health.statistics()["hanging"] == 1
    health.turn(probe_at_s + RULE.forget_after_s + 0.1)
    assert health.statistics()["watched"] == health.statistics()["hanging"] == 0
    assert health.turn(999.0) == []


def test_request_counts_from_when_it_began(health):
    (sent,) = health.look([(["a"], 0.0)])
    assert health.plan("a", 4.99) is Verdict.PASS
    assert health.plan("a", 5.0) is Verdict.REFUSE
    health.answered(sent, 5.0)
    assert health.statistics()["watched"] == 1, "it hangs until a probe is answered"


def test_answer_clears_earlier_requests_of_its_topics(health):
    answered = Sent(("a",), 1.0)
    assert health.answered(answered, 1.1) == []
    health.look([(["a", "b"], 0.9), (["a"], 1.2)])
    assert health.plan("a", 5.95) is Verdict.PASS
    assert health.plan("b", 5.95) is Verdict.REFUSE
    assert health.plan("a", 6.3) is Verdict.REFUSE


def test_late_or_earlier_answer_clears_no_request(health):
    health.answered(Sent(("a",), 0.0), 5.0)
    assert health.last_timely == {}
    health.answered(Sent(("a",), 3.0), 5.0)
    health.answered(Sent(("a",), 2.0), 5.0)
    assert health.last_timely == {"a": 3.0}
    health.look([(["a"], 3.5)])
    assert health.last_timely == {}, "what is unanswered now is known"
    assert health.plan("a", 8.5) is Verdict.REFUSE


def test_checks_are_no_more_frequent_than_hangs():
    assert Health(HealthRule(hang_after_s=0.1)).look_every_s == 0.1
    assert Health().look_every_s == 0.5


@pytest.mark.parametrize("wrong", [{"hang_after_s": 0.0}, {"probe_first_s": 31.0}, {"max_keys": 0}])
def test_rules_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="needed"):
        HealthRule(**wrong)


def test_steadily_answered_slow_topic_does_not_hang(health):
    """Each answer takes longer than the bound, and one comes every second: a slow broker, not a topic that hangs."""
    waiting = []
    for second in range(60):
        waiting.append(health.sent(["a"], float(second)))
        if second >= 20:
            assert health.answered(waiting.pop(0), float(second)) == []
        if second >= 25:
            assert health.plan("a", float(second)) is Verdict.PASS
    last_s = 59.0
    assert health.plan("a", last_s + RULE.hang_after_s - 0.01) is Verdict.PASS
    assert health.plan("a", last_s + RULE.hang_after_s) is Verdict.REFUSE


def test_another_rule_judges_what_is_unanswered():
    health = Health(HealthRule(hang_after_s=5.0))
    health.sent(["a"], 0.0)
    assert health.plan("a", 2.0) is Verdict.PASS
    health.set_rule(HealthRule(hang_after_s=1.0))
    assert health.look_every_s <= 1.0
    assert health.plan("a", 2.0) is Verdict.REFUSE
    health.set_rule(HealthRule(hang_after_s=60.0))
    assert health.plan("a", 2.0) is Verdict.REFUSE, "only an answer clears it"
