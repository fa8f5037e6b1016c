"""What an old client's answered Fetch shows: that this broker leads. Its errors show nothing."""

import pytest

from protocol import fetch
from protocol.errors import ErrorCode
from proxy.learn import learn_leading
from tests.proxy.followed import EPOCH, QuietBroker, learn

NAME = "orders"


def build_followed(entered_at):
    broker = QuietBroker()
    partition = broker.follow()
    learn(partition, 20)
    partition.truth.entered(entered_at)
    return broker, partition


def answer(broker, error_code=ErrorCode.NONE, carried_epoch=-1, index=0, sent_at=5.0):
    asked = [fetch.FetchPartition(NAME, 0, carried_epoch, 20, -1, -1, 1)]
    said = fetch.FetchedPartition(NAME, index, error_code, 20, 20, 0, -1, None, None, None, 0, 0)
    learn_leading(broker, asked, fetch.FetchResponse(0, 0, 0, [said]), sent_at)


@pytest.mark.parametrize(
    ("entered_at", "said", "leads"),
    [
        (5.0, {}, True),
        (5.1, {}, False),
        (5.1, {"carried_epoch": EPOCH}, True),
        (5.0, {"carried_epoch": EPOCH - 1}, False),
        (5.0, {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, False),
        (5.0, {"index": 1}, False),
    ],
)
def test_an_answer_shows_who_leads(entered_at, said, leads):
    broker, partition = build_followed(entered_at)
    answer(broker, **said)
    assert partition.truth.is_led is leads
