"""Configured quotas: patterns, the first match, and a client's together with its topics'."""

from random import Random
from types import SimpleNamespace

import pytest

from proxy.config.isolation import Isolation
from proxy.fetch import handler
from proxy.fetch.services import ClientFetch
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.sessions.context import open_fetch
from proxy.scheduling.quotas import QuotaTable
from tests.proxy import session_messages
from tests.proxy.followed_partition import stand_in

MIB = 1 << 20


def table(**isolation):
    return QuotaTable(Isolation.model_validate(isolation))


def test_nothing_configured_costs_nothing():
    quotas = table()
    assert not quotas.active
    assert quotas.reserve("c", ["t"], 1 << 40, 0.0) == []
    quotas.charge("c", "t", 1 << 40, 0.0)
    assert quotas.peek_delay_s("c", ["t"], 0.0) == 0.0


def test_switched_off_with_isolation():
    quota = {"pattern": "*", "in_flight_bytes": 1}
    assert not table(enabled=False, topic_quotas=[quota]).active


def test_first_matching_pattern_counts():
    first, rest = (
        {"pattern": "big-*", "in_flight_bytes": 100},
        {"pattern": "*", "in_flight_bytes": 10},
    )
    quotas = table(topic_quotas=[first, rest])
    assert quotas.reserve("c", ["big-1"], 60, 0.0)
    assert quotas.reserve("c", ["big-1"], 41, 0.0) is None
    assert quotas.reserve("c", ["big-2"], 60, 0.0)
    assert quotas.reserve("c", ["small"], 8, 0.0)
    assert quotas.reserve("c", ["small"], 3, 0.0) is None


def test_a_topic_named_twice_is_charged_once():
    quotas = table(topic_quotas=[{"pattern": "*", "in_flight_bytes": 100}])
    held = quotas.reserve("c", ["t", "t"], 60, 0.0)
    assert quotas.reserve("c", ["t"], 40, 0.0)
    assert held


@pytest.mark.parametrize("used_up", ["client", "topic"])
def test_all_or_nothing_is_held(used_up):
    tight, wide = (
        {"pattern": "*", "in_flight_bytes": 100},
        {"pattern": "*", "in_flight_bytes": 1000},
    )
    quotas = table(
        client_quotas=[tight if used_up == "client" else wide],
        topic_quotas=[wide if used_up == "client" else tight],
    )
    held = quotas.reserve("c", ["t"], 90, 0.0)
    assert quotas.reserve("c", ["t"], 20, 0.0) is None
    for one in held:
        one.release()
    for _ in range(2):
        held = quotas.reserve("c", ["t"], 100, 0.0)
        assert held, "what was refused holds nothing"
        for one in held:
            one.release()


def test_fetch_waits_for_the_longest_debt():
    rate = {"pattern": "*", "fetch_rate_bytes": MIB}
    quotas = table(
        client_quotas=[rate], topic_quotas=[{"pattern": "t", "fetch_rate_bytes": MIB // 2}]
    )
    assert quotas.peek_delay_s("c", ["t"], 0.0) == 0.0
    quotas.charge("c", "t", 4 * MIB, 0.0)
    of_topic, of_client = (
        quotas.peek_delay_s("c", ["t"], 0.0),
        quotas.peek_delay_s("c", ["other"], 0.0),
    )
    assert of_topic > of_client > 0
    assert quotas.peek_delay_s("d", ["other"], 0.0) == 0.0
    assert quotas.peek_delay_s("c", ["t"], of_topic) == 0.0


class Poll:
    """A session of many partitions of two topics, polled by an incremental Fetch; `named` are topics looked at."""

    def __init__(self, quotas):
        self.named = []
        table = SessionCache(SessionLimits(10, 10_000, 120.0), Random(1))
        partitions = [
            session_messages.asked(topic, number) for topic in ("a", "b") for number in range(500)
        ]
        first = open_fetch(
            table, session_messages.fetch((0, 0), *partitions), session_messages.NAMES, "me", 0.0
        )
        answers = [session_messages.answer(one.topic, one.partition) for one in partitions]
        session_id = first.plan_response(answers, 0.0).session_id
        context = open_fetch(
            table, session_messages.fetch((session_id, 1)), session_messages.NAMES, "me", 0.0
        )
        broker = SimpleNamespace(
            scheduler=SimpleNamespace(quotas=quotas),
            now=lambda: 0.0,
            topics=SimpleNamespace(find=self.find),
        )
        link = stand_in(SimpleNamespace(broker=broker, client_id="c"))
        absent = stand_in(None)
        self.fetch = ClientFetch(link, absent, absent, context, 0, 0.0)

    def find(self, topic):
        self.named.append(topic)
        return SimpleNamespace(name=topic)

    def delay_s(self):
        self.named.clear()
        return handler._over_quota_s(self.fetch)


def test_session_topics_are_checked_only_with_debt():
    quotas = table(topic_quotas=[{"pattern": "*", "fetch_rate_bytes": MIB}])
    poll = Poll(quotas)
    assert (poll.delay_s(), poll.named) == (0.0, [])
    quotas.charge("c", "other", 3 * MIB, 0.0)
    assert (poll.delay_s(), poll.named) == (0.0, ["a", "b"])
    quotas.charge("c", "b", 3 * MIB, 0.0)
    assert (poll.delay_s(), poll.named) == (2.0, ["a", "b"])


def test_a_clients_own_quota_needs_no_topics():
    quotas = table(client_quotas=[{"pattern": "*", "fetch_rate_bytes": MIB}])
    poll = Poll(quotas)
    quotas.charge("c", "a", 3 * MIB, 0.0)
    assert (poll.delay_s(), poll.named) == (2.0, [])
