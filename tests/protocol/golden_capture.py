"""Captures golden frames from a real broker: `python -m tests.protocol.golden_capture 4.3.1`.

Owns: the scenarios behind golden/kafka-VERSION.json, which `test_golden` knows by name. Requests are kio's,
of every version that broker and Forebay share, or real clients', recorded on their way. Must not know: how
frames are scanned; the code under test only helps to find topic ids and versions. Invariants: what topics
hold depends on nothing but the scenarios; each file names the broker it came from.
"""

import json
import socket
import sys
import time
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_payload_module
from kio.static.constants import EntityType

from protocol import control
from protocol.api import API_VERSIONS, FETCH, PRODUCE
from protocol.metadata import scan_metadata_response
from tests.kit.broker.kafka import KafkaBroker
from tests.protocol import oracle
from tests.protocol.batches import batch_v2
from tests.protocol.golden_clients import record_clients

GOLDEN = Path(__file__).parent / "golden"
PLAIN, STAMPED, ABORTED, ABSENT, ELSEWHERE = "plain", "stamped", "aborted", "absent", "elsewhere"
CONFIGS = {
    PLAIN: {},
    STAMPED: {"message.timestamp.type": "LogAppendTime"},
    ABORTED: {},
}
BATCHES = 3  # of two records each, in PLAIN; each Produce version appends one more to STAMPED
NOT_LEADER = 6
PATIENCE_S = 20


def make(module, name, values):
    """One of kio's entities from the values that its version has."""
    kind = getattr(module, name)
    known = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in values.items() if key in known})


def produce_body(version, topic, topic_id, records, *, acks=-1):
    """kio's Produce request of one batch to partition 0."""
    module = load_payload_module(PRODUCE, version, EntityType.request)
    partition = make(module, "PartitionProduceData", {"index": 0, "records": records})
    entry = make(
        module,
        "TopicProduceData",
        {"name": topic, "topic_id": topic_id, "partition_data": (partition,)},
    )
    values = {
        "transactional_id": None,
        "acks": acks,
        "timeout": timedelta(seconds=5),
        "topic_data": (entry,),
    }
    return make(module, "ProduceRequest", values)


def fetch_body(version, topic, topic_id, offset, *, isolation_level=0, epoch=-1, last_epoch=-1):
    """kio's session-less Fetch request of partition 0."""
    module = load_payload_module(FETCH, version, EntityType.request)
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last_epoch,
        "partition_max_bytes": 1 << 20,
    }
    entry = {
        "topic": topic,
        "topic_id": topic_id,
        "partitions": (make(module, "FetchPartition", partition),),
    }
    values = {
        "replica_id": -1,
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": isolation_level,
        "topics": (make(module, "FetchTopic", entry),),
        "forgotten_topics_data": (),
    }
    return make(module, "FetchRequest", values)


class Link:
    """A connection to the broker that remembers each exchange under its scenario's name."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=20)
        self.exchanges = []

    def call(self, request):
        """The broker's answer to a request frame."""
        self.socket.sendall(request)
        prefix = self._take(4)
        return prefix + self._take(int.from_bytes(prefix, "big"))

    def record(self, scenario, body):
        """Send kio's body, keep both frames; returns kio's reading of the answer."""
        request = oracle.request_frame(body, 1000 + len(self.exchanges), "golden")
        response = self.call(request)
        self.keep(scenario, body.__api_key__, body.__version__, request, response)
        return oracle.read_response(body.__api_key__, body.__version__, response)[1]

    def keep(self, scenario, api_key, version, request, response):
        self.exchanges.append(
            {
                "scenario": scenario,
                "api": api_key,
                "version": version,
                "request": request.hex(),
                "response": response.hex(),
            }
        )

    def _take(self, size):
        out = bytearray()
        while len(out) < size:
            part = self.socket.recv(size - len(out))
            if not part:
                raise ConnectionError("the broker closed the connection")
            out += part
        return bytes(out)


def record_api_versions(link):
    """Every version, and one that no broker knows; returns the ranges of the newest."""
    ranges: dict[int, tuple[int, int]] = {}
    for version in (0, 1, 2, 3, 4):
        request = control.build_api_versions_request(
            version, 1, "golden", software_name="golden", software_version="1"
        )
        response = link.call(request)
        answer = control.scan_api_versions_response(response, version)
        ranges = answer.ranges if answer.error_code == 0 else ranges
        link.keep("api versions", API_VERSIONS, version, request, response)
    unknown = bytearray(request)
    unknown[6:8] = (999).to_bytes(2, "big")
    link.keep("unknown version", API_VERSIONS, 999, bytes(unknown), link.call(bytes(unknown)))
    return ranges


def create_topics(bootstrap):
    """The scenarios' topics, and one aborted transaction."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, 1, 1, config=config) for name, config in CONFIGS.items()]
    for future in admin.create_topics(topics).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "golden"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(ABORTED, b"aborted", partition=0)  # stamped now: an old one rolls the segment
    producer.flush(20)
    producer.abort_transaction(20)


def shared(ranges, api_key, first, last):
    """The versions that the broker and Forebay both speak."""
    least, most = ranges[api_key]
    return range(max(first, least), min(last, most) + 1)


def record_produce(link, versions, ids):
    """Each version appends a batch to each topic; 2 scenarios and an error."""
    for index, version in enumerate(versions):
        records = batch_v2(2, value=b"version %d" % version)
        if index < BATCHES:
            link.record("produce", produce_body(version, PLAIN, ids[PLAIN], records))
        link.record("produce stamped", produce_body(version, STAMPED, ids[STAMPED], records))
        link.record("produce absent", produce_body(version, ABSENT, UUID(int=1 << 64), records))


def record_fetch(link, versions, ids, stamped):
    """Each version reads records, an aborted transaction, and gets each kind of refusal."""
    for version in versions:
        link.record("fetch", fetch_body(version, PLAIN, ids[PLAIN], 2, epoch=0))
        link.record("fetch stamped", fetch_body(version, STAMPED, ids[STAMPED], 2 * stamped - 2))
        link.record(
            "fetch aborted", fetch_body(version, ABORTED, ids[ABORTED], 0, isolation_level=1)
        )
        link.record("fetch committed", fetch_body(version, PLAIN, ids[PLAIN], 4, isolation_level=1))
        link.record("fetch out of range", fetch_body(version, PLAIN, ids[PLAIN], 1000))
        if version >= 9:
            link.record("fetch unknown epoch", fetch_body(version, PLAIN, ids[PLAIN], 0, epoch=99))
        if version >= 12:
            link.record(
                "fetch diverging",
                fetch_body(version, PLAIN, ids[PLAIN], 1000, epoch=0, last_epoch=0),
            )


def topic_ids(link, names):
    """The ids of topics, as kio's requests take them, as soon as the broker knows them."""
    request = control.build_metadata_request(12, 2, "golden", topics=names)
    until = time.monotonic() + PATIENCE_S
    while True:
        topics = scan_metadata_response(link.call(request), 12).topics
        if all(topic.topic_id for topic in topics):
            return {topic.name: UUID(bytes=topic.topic_id) for topic in topics}
        assert time.monotonic() < until, f"the broker does not know {names}"
        time.sleep(0.1)


def record_elsewhere(kafka_version, ranges):
    """What broker 2 says of a partition that only broker 1 has, with its hints in tagged fields (KIP-951)."""
    with KafkaBroker(2, version=kafka_version) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.direct})
        topic = NewTopic(ELSEWHERE, 1, replica_assignment=[[1]])
        admin.create_topics([topic])[ELSEWHERE].result(PATIENCE_S)
        link = Link(cluster.address(node_id=2))
        ids = topic_ids(Link(cluster.address(node_id=1)), [ELSEWHERE])
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            trial = link.record("trial", fetch_body(12, ELSEWHERE, ids[ELSEWHERE], 0))
            link.exchanges.clear()
            if trial.responses[0].partitions[0].error_code == NOT_LEADER:
                break
            time.sleep(0.1)
        for version in shared(ranges, PRODUCE, 9, 13):
            link.record(
                "produce elsewhere", produce_body(version, ELSEWHERE, ids[ELSEWHERE], batch_v2(1))
            )
        for version in shared(ranges, FETCH, 11, 18):
            link.record("fetch elsewhere", fetch_body(version, ELSEWHERE, ids[ELSEWHERE], 0))
        return link.exchanges, ids


def main(kafka_version):
    with KafkaBroker(version=kafka_version) as broker:
        link = Link(broker.address())
        ranges = record_api_versions(link)
        create_topics(broker.direct)
        ids = topic_ids(link, list(CONFIGS))
        produce_versions = shared(ranges, PRODUCE, 3, 13)
        record_produce(link, produce_versions, ids)
        record_fetch(link, shared(ranges, FETCH, 4, 18), ids, len(produce_versions))
    exchanges, more_ids = record_elsewhere(kafka_version, ranges)
    captured = {
        "kafka": kafka_version,
        "topic ids": {name: topic_id.hex for name, topic_id in (ids | more_ids).items()},
        "exchanges": link.exchanges + exchanges,
        "clients": record_clients(kafka_version),
    }
    rows = ",\n".join(json.dumps(exchange) for exchange in captured.pop("exchanges"))
    clients = ",\n".join(json.dumps(exchange) for exchange in captured.pop("clients"))
    text = (
        json.dumps(captured)[:-1] + f', "exchanges": [\n{rows}\n], "clients": [\n{clients}\n]}}\n'
    )
    (GOLDEN / f"kafka-{kafka_version}.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
