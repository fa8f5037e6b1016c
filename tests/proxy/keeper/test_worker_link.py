"""A worker waits on a partition at the keeper: it is told of all that it has not seen."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

from proxy.keeper import messages
from proxy.keeper.messages import Messages
from proxy.keeper.worker_link import WorkerLink
from tests.proxy.event_loop import until
from tests.proxy.followed_partition import TOPIC_ID, learn
from tests.proxy.told_pair import Pair


async def test_what_changed_before_the_worker_waited_is_told() -> None:
    """The worker has looked, found nothing and asked to wait; the row changed in between. Nothing else would wake its
    Fetch: a client waited for `max.wait` with its records in memory.
    """
    pair = Pair()
    got: list[tuple[Any, ...]] = []
    keeper: Any = pair.keeper
    keeper.own_connections = SimpleNamespace(usable=True)
    keeper.replica_fetcher.cover = lambda _partition, _link: True
    link = WorkerLink(keeper, 3, lambda _link: None)
    keeper.shown._after = link.tell_news
    one, other = socket.socketpair()
    worker = Messages(got.append, lambda: None)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: link.messages, sock=one)
    await loop.create_unix_connection(lambda: worker, sock=other)
    worker.send(messages.FOLLOW, TOPIC_ID, 0)
    slot = pair.kept().slot
    await until(lambda: (messages.FOLLOWED, TOPIC_ID, 0, slot) in got)
    seen = pair.worker.partitions.find_slot(slot)
    seen.look(0.0)
    learn(pair.kept(), 107)
    keeper.shown.show(pair.kept())
    assert seen.row.high_watermark == 100
    worker.send(messages.COVER, slot)
    await until(lambda: (messages.NEWS, [slot]) in got)
    seen.look(0.0)
    assert seen.row.high_watermark == 107
    worker.close()
    await until(lambda: link.messages.is_over)
    pair.close()
