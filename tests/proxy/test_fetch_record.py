"""What has left is counted once: at once, or after all that leave together have left."""

from types import SimpleNamespace

from proxy.fetch_plan import Look, Looked, Told
from proxy.fetch_record import FetchRecord
from tests.proxy.asked import asked, fetch
from tests.proxy.followed import TOPIC_ID, QuietBroker


def record_of(broker):
    link = SimpleNamespace(broker=broker, replies=SimpleNamespace(reserve=lambda: None), client_id=None)
    return FetchRecord(link, None, fetch((0, -1), asked(TOPIC_ID, 0)), 100)


def told_of(broker, size_bytes):
    partition = broker.follow()
    return [Told(Looked(asked(TOPIC_ID, 0), partition, Look.READY, "", 10), size_bytes, "hit", "")]


def build_broker():
    broker = QuietBroker()
    broker.gate = SimpleNamespace(quotas=SimpleNamespace(active=False))
    return broker


def test_what_leaves_alone_is_counted_at_once():
    broker = build_broker()
    broker.accounts.enter(record_of(broker), told_of(broker, 5), True, is_ours=True)
    assert dict(broker.counters.fetch_bytes) == {("hit", ""): 5}
    assert broker.counters.fetch_hit_s.count == 1


def test_what_leaves_together_is_counted_when_all_have_left_with_the_time_at_which_each_did():
    broker = build_broker()
    broker.accounts.hold()
    for size_bytes in (5, 6):
        broker.accounts.enter(record_of(broker), told_of(broker, size_bytes), True, is_ours=True)
        broker.clock_s += 1.0
    assert not broker.counters.fetch_partitions and not broker.counters.fetch_hit_s.count
    broker.accounts.settle()
    assert dict(broker.counters.fetch_partitions) == {("hit", ""): 2}
    assert dict(broker.counters.fetch_bytes) == {("hit", ""): 11}
    assert broker.counters.fetch_hit_s.sum == 0.0, "each left when it came"
    broker.accounts.settle()
    assert dict(broker.counters.fetch_partitions) == {("hit", ""): 2}, "once"


def test_what_never_left_is_counted_as_such_also_while_others_leave():
    broker = build_broker()
    broker.accounts.hold()
    broker.accounts.enter(record_of(broker), told_of(broker, 5), False, is_ours=False)
    assert (broker.counters.undelivered_partitions, broker.counters.fetch_upstream_s.count) == (1, 1)
    broker.accounts.settle()
    assert not broker.counters.fetch_partitions


def test_lines_of_what_left_together_are_handed_on_together():
    broker = build_broker()
    broker.access_log = object()
    handed = []
    broker.log_fetches = handed.append
    broker.accounts.hold()
    for _ in range(2):
        broker.accounts.enter(record_of(broker), told_of(broker, 5), True, is_ours=True)
    assert handed == []
    broker.accounts.settle()
    assert [len(departed) for departed in handed] == [2]
