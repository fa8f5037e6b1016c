"""Metadata as a broker reads and answers it, through kio alone."""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import response

from proxy.replica_fetcher.topic_metadata import METADATA_VERSION
from tests.protocol import oracle

METADATA = 3
metadata: Any = response  # its fields are of types of their own
LEADER, EPOCH = 1, 5


def read_topics(frame):
    """What a request asks about, names and ids."""
    _, body = oracle.read_request(METADATA, METADATA_VERSION, frame)
    return [topic.name if topic.name is not None else topic.topic_id.bytes for topic in body.topics]


def build_answer(*topics):
    """Each topic is (name, id, partitions), or (name or id, error code)."""
    return oracle.response_frame(
        metadata.MetadataResponse(
            throttle_time=oracle.EPOCH - oracle.EPOCH,
            brokers=(),
            topics=tuple(_refused(*one) if len(one) == 2 else _explained(*one) for one in topics),
        ),
        correlation_id=0,
    )


def _refused(key, error_code):
    name, topic_id = (key, None) if isinstance(key, str) else (None, UUID(bytes=key))
    return metadata.MetadataResponseTopic(
        error_code=ErrorCode(error_code),
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=(),
    )


def _explained(name, topic_id, count):
    return metadata.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=name,
        topic_id=UUID(bytes=topic_id),
        is_internal=False,
        partitions=tuple(
            metadata.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=index,
                leader_id=LEADER,
                leader_epoch=EPOCH,
            )
            for index in range(count)
        ),
    )
