"""What the broker's answer to a client's own Fetch teaches.

Owns the join of the three who learn from it: the client's rights, where else the broker sends it, and the
broker's truth with the bytes that came along. It must not know where the answer goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.observe import observe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchPartition, FetchResponse
    from protocol.wire import Frame
    from proxy.client_link import ClientLink


def learn_answer(
    link: ClientLink, asked: Sequence[FetchPartition], response: FetchResponse, frame: Frame, sent_at: float
) -> None:
    """Learn from `response` (its bytes in `frame`) to a Fetch of `asked` that `link`'s client sent at `sent_at`."""
    for answered in response.partitions:
        link.authorization.learn(answered.topic, answered.error_code, sent_at)
        if answered.preferred_read_replica >= 0:
            link.preferred_replicas = True
    if link.broker.stores_on(link.listener):
        observe(link.broker, asked, response, frame, sent_at, "client")
