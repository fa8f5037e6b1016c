"""What the broker's answer to a client's own Fetch teaches.

Owns the join of the three who learn from it: the client's rights, where else the broker sends it, and the
broker's truth with the bytes that came along; of an old client's Fetch also that this broker leads. It must not know
where the answer goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ErrorCode
from proxy.fetch_plan import FOLLOWER_FETCH_FROM_VERSION
from proxy.observe import observe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchPartition, FetchResponse
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.client_link import ClientLink


def learn_answer(
    link: ClientLink,
    version: int,
    asked: Sequence[FetchPartition],
    response: FetchResponse,
    frame: Frame,
    sent_at: float,
) -> None:
    """Learn from `response` (its bytes in `frame`) to a Fetch of `asked` that `link`'s client sent at `sent_at`."""
    for answered in response.partitions:
        link.authorization.learn(answered.topic, answered.error_code, sent_at)
        if answered.preferred_read_replica >= 0:
            link.preferred_replicas = True
    if link.broker.stores_on(link.listener):
        observe(link.broker, asked, response, frame, sent_at, "client")
    if version < FOLLOWER_FETCH_FROM_VERSION:
        learn_leading(link.broker, asked, response, sent_at)


def learn_leading(
    broker: Broker, asked: Sequence[FetchPartition], response: FetchResponse, sent_at: float
) -> None:
    """A Fetch of a version that only leaders answer has been answered."""
    carried = {(one.topic, one.partition): one.current_leader_epoch for one in asked}
    for answered in response.partitions:
        topic = broker.topics.find(answered.topic)
        if topic is None or answered.error_code != ErrorCode.NONE:
            continue
        partition = broker.partitions.find(topic, answered.partition)
        epoch = carried.get((answered.topic, answered.partition))
        if partition is not None and epoch is not None:
            partition.truth.shown_leading(epoch, sent_at)
