"""The broker's end of a poll's connection, which a test answers for, and partitions in the hot poll of a Forebay.

Owns what was asked. It must not know which poll asks. Invariants: every frame is a whole Fetch of the version that
the polls use; an answer has no records but those that the test names.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from blockcache.cache import BlockCache
from protocol.fetch_build import FetchAnswer, build_response
from protocol.header import peek_request
from proxy.broker import Broker
from proxy.fetch.purgatory import Purgatory
from proxy.partitions.topics import Leader
from proxy.replica_fetcher.poll import VERSION
from tests.kit import fetch_messages
from tests.kit.cache_batches import build_batch
from tests.proxy.cached_partition import CONFIG
from tests.proxy.followed_partition import EPOCH, TOPIC_ID, known, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.fetch import FetchRequest
    from protocol.primitives import Frame

SESSION_ID = 77
END = 20
FETCH_KEY = b"\0\1"


class PlayedLink:
    """A connection to the broker, which reads a Fetch only once the test looks at it, and answers nothing else."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.on_answer: Callable[[Frame | None], None] = lambda _answer: None

    def send(
        self, frame: Frame, correlation_id: int, on_answer: Callable[[Frame | None], None]
    ) -> None:
        assert correlation_id == 0
        if frame[4:6] == FETCH_KEY:
            self.frames.append(frame)
            self.on_answer = on_answer

    @property
    def requests(self) -> list[FetchRequest]:
        return [
            fetch_messages.scan_request(frame, VERSION, peek_request(frame).body_start)
            for frame in self.frames
        ]

    def answer(
        self,
        *partitions: FetchAnswer,
        session_id: int = SESSION_ID,
        error_code: int = 0,
        throttle_time_ms: int = 0,
    ) -> None:
        self.on_answer(
            build_answer(
                *partitions,
                session_id=session_id,
                error_code=error_code,
                throttle_time_ms=throttle_time_ms,
            )
        )

    @property
    def session(self) -> tuple[int, int]:
        return self.requests[-1].session_id, self.requests[-1].session_epoch

    @property
    def named(self) -> list[int]:
        return [p.partition for p in self.requests[-1].partitions]

    @property
    def forgotten(self) -> list[int]:
        return [index for _topic, index in self.requests[-1].forgotten]


class PlayedLinks(SimpleNamespace):
    """Forebay's own connections, all open. `links`: those that were used, by name."""

    def __init__(self) -> None:
        super().__init__(usable=True, links={})

    def link(self, name: str) -> PlayedLink:
        played: PlayedLink = self.links.setdefault(name, PlayedLink())
        return played


def build_answer(
    *partitions: FetchAnswer,
    session_id: int = SESSION_ID,
    error_code: int = 0,
    throttle_time_ms: int = 0,
) -> bytes:
    """The frame of a response."""
    buffers = build_response(
        VERSION,
        0,
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        partitions=partitions,
    )
    return b"".join(buffers)


def shown(
    index: int,
    high_watermark: int,
    last_stable_offset: int | None = None,
    error_code: int = 0,
    log_start_offset: int = 0,
) -> FetchAnswer:
    """What the broker says of a partition, without records."""
    stable = high_watermark if last_stable_offset is None else last_stable_offset
    return FetchAnswer(
        TOPIC_ID, index, error_code, high_watermark, stable, log_start_offset, None, (), 0
    )


class Hot:
    """`count` partitions in the hot poll of a Forebay, each at HW 20 with a lease."""

    def __init__(self, count: int) -> None:
        self.clock_s = 100.0
        self.cache = BlockCache(64 << 20)
        self.broker = broker = Broker(CONFIG, self.cache, None, "0", lambda: self.clock_s)
        self.own = PlayedLinks()
        broker.own_connections = stand_in(self.own)
        broker.purgatory = Purgatory(10)
        broker.node.node_id = 1
        leaders = {index: Leader(1, EPOCH) for index in range(count)}
        broker.topics.learn("orders", TOPIC_ID, leaders)
        topic = known(broker.topics.find(TOPIC_ID))
        self.partitions = []
        for index in range(count):
            partition = known(broker.partitions.follow(topic, index))
            partition.wanted_at = self.clock_s
            partition.probe_offset = END
            broker.replica_fetcher.suggest(partition)
            self.partitions.append(partition)
            broker.replica_fetcher.follow(partition, None)
        for _ in range(2):  # the first partition, then all others
            everything = [shown(p.index, END) for p in self.partitions]
            self.own.links["proof"].answer(*everything, session_id=0)
        self.link = self.own.links["watch"]
        self.link.answer(shown(0, END))
        self.link.answer(*(shown(p.index, END) for p in self.partitions[1:]))
        self.link.answer()

    def build_news(self) -> bytes:
        """The broker's response with a record more of partition 0, which a producer has sent past this Forebay."""
        partition = self.partitions[0]
        end = partition.leader_state.high_watermark + 1
        batch = build_batch(end - 1, epoch=EPOCH, size=1_000)
        entry = FetchAnswer(TOPIC_ID, 0, 0, end, end, 0, None, (batch,), len(batch))
        return build_answer(entry, session_id=SESSION_ID)

    def leases(self) -> list[bool]:
        return [p.leader_state.has_lease(self.clock_s) for p in self.partitions]
