"""Fetch sessions compared with a real broker's: same requests, errors, partitions and order.

Each random request goes to the broker in its session, and to Forebay's table; what the latter names is planned
from a session-less Fetch of all that its session asks for.
"""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from protocol import fetch
from protocol.fetch_build import FetchAnswer, build_request
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.sessions.context import open_fetch
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import MAX_BYTES, RawClient
from tests.proxy.session_messages import asked
from tests.proxy.session_messages import fetch as request_of

if TYPE_CHECKING:
    from tests.kit.broker.kafka import KafkaCluster

pytestmark = pytest.mark.e2e

PARTITIONS = 5
STEPS = 150
EPOCHS = (0, -1, 1, 2, 7)


class Twins:
    """The same client of the broker and of the table; each side has its own session id, the epoch is shared."""

    def __init__(self, client: RawClient, topic: str | bytes, version: int) -> None:
        self.client, self.topic, self.version = client, topic, version
        self.table = SessionCache(SessionLimits(100, 1000, 120), Random(5))
        self.ids = (0, 0)
        self.epoch = 0

    def exchange(
        self,
        version: int,
        session: tuple[int, int],
        partitions: Sequence[fetch.FetchPartition],
        forgotten: Sequence[tuple[str | bytes, int]] = (),
    ) -> tuple[fetch.FetchResponse, list[FetchAnswer]]:
        request = build_request(
            version,
            1,
            "twins",
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=MAX_BYTES,
            isolation_level=0,
            session_id=session[0],
            session_epoch=session[1],
            partitions=partitions,
            forgotten=forgotten,
        )
        answer = fetch.scan_response(self.client.call(request), version)
        answers = []
        for one in answer.partitions:
            size = max(one.end - one.start, 0)
            offsets = one.high_watermark, one.last_stable_offset, one.log_start_offset
            told = FetchAnswer(one.topic, one.partition, one.error_code, *offsets, None, [], size)
            answers.append(told)
        return answer, answers

    def step(
        self,
        epoch: int,
        version: int,
        partitions: list[fetch.FetchPartition],
        forgotten: Sequence[tuple[str | bytes, int]],
    ) -> tuple[list[FetchAnswer], int]:
        """One request on both sides; the answers that both name, and their error."""
        said, named = self.exchange(version, (self.ids[0], epoch), partitions, forgotten)
        request = request_of((self.ids[1], epoch), *partitions, forget=forgotten)
        context = open_fetch(self.table, request, version, "me", 0.0)
        whole = self.exchange(version, (0, -1), context.partitions)[1] if context.partitions else []
        planned = context.plan_response(whole, 0.0)
        assert (planned.error_code, planned.answers) == (said.error_code, named)
        assert bool(planned.session_id) == bool(said.session_id)
        if planned.session_id:
            self.ids = (said.session_id, planned.session_id)
        return named, planned.error_code


@pytest.mark.parametrize("version", [12, 13])
def test_a_session_is_the_brokers(broker: "KafkaCluster", version: int) -> None:
    rng = Random(227 + version)
    name = create_topic(broker.direct, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.direct, "acks": "all"})
    with RawClient(broker.direct) as client:
        words = client.topic(name, PARTITIONS)
        topic: str | bytes = words.id if version == 13 else name
        twins = Twins(client, topic, version)
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        outcomes = set()
        for _ in range(STEPS):
            if rng.random() < 0.4:
                producer.produce(name, b"value", partition=rng.randrange(PARTITIONS))
                assert producer.flush(20) == 0
            picked = rng.sample(range(PARTITIONS), rng.choice((0, 1, 1, 2, PARTITIONS)))
            partitions = [asked(topic, one, offsets[one], max_bytes=MAX_BYTES) for one in picked]
            forgotten = [
                (topic, one) for one in rng.sample(range(PARTITIONS), rng.choice((0, 0, 0, 1, 4)))
            ]
            epoch = twins.epoch if rng.random() < 0.8 else rng.choice(EPOCHS)
            named, error = twins.step(epoch, version, partitions, forgotten if epoch > 0 else [])
            outcomes.add((error, min(len(named), 2)))
            twins.epoch = 0 if error or epoch == -1 else epoch + 1
            for one in named:
                if one.error_code:  # beyond the end, after a jump
                    offsets[one.partition] = 0
                else:
                    offsets[one.partition] = rng.choice(
                        (one.high_watermark, one.high_watermark, offsets[one.partition])
                    )
        assert {error for error, _ in outcomes} >= {0, 70, 71}
        assert {(0, 0), (0, 1), (0, 2)} <= outcomes


def test_a_session_of_ids_refuses_names(broker: "KafkaCluster") -> None:
    name = create_topic(broker.direct)
    with RawClient(broker.direct) as client:
        topic = client.topic(name).id
        twins = Twins(client, topic, 13)
        twins.step(0, 13, [asked(topic, 0)], [])

        assert twins.step(1, 12, [asked(name, 0)], [])[1] == 106
