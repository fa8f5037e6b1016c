"""What timed work forgets of transactions: what lies below all that memory holds."""

from proxy.janitor import Janitor
from tests.proxy.followed import QuietBroker, learn, store
from tests.proxy.transactional_log import log_of

ENDS_AT = 1000


def test_aborted_transactions_below_what_is_stored_are_forgotten():
    broker = QuietBroker(64 * 1024)
    partition = broker.follow()
    log = log_of(*(("data", 1), ("abort", 1)) * 40)
    partition.transactions.shown(0, 0, 0, 0.0)
    partition.transactions.observed(*log.read(0, len(log.entries)))
    learn(partition, ENDS_AT)
    janitor = Janitor(broker, ())
    janitor.forget_transactions(0.0)
    assert partition.transactions.known_from == 0  # nothing was evicted
    for first in range(0, ENDS_AT, 10):
        store(broker, partition, first, first + 10)
    assert broker.cache.edges(partition.slot, 0).evicted_end >= 80
    partition.transactions.observed(b"", (), 80, ENDS_AT)
    janitor.forget_transactions(0.0)
    assert partition.transactions.known_from == broker.cache.edges(partition.slot, 0).evicted_end
    assert not partition.transactions.holds_any
