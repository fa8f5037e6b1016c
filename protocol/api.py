"""The one table of Kafka's APIs.

Owns: per API key its name, the versions whose body this package reads, the first flexible version, header
versions. Must not know: queues, handlers, what is done with a request. Invariants: a key that is absent is
relayed unread; flexible versions stay flexible (KIP-482), so the header of a version newer than this table is
still understood. Source: the request schemas of Kafka 3.9 to 4.3; keys 4 to 7 belong to ZooKeeper's days and
are left out.
"""

from typing import Final, NamedTuple

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
JOIN_GROUP: Final = 11
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DESCRIBE_CONFIGS: Final = 32
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_DELEGATION_TOKEN: Final = 38
RENEW_DELEGATION_TOKEN: Final = 39
EXPIRE_DELEGATION_TOKEN: Final = 40
DESCRIBE_DELEGATION_TOKEN: Final = 41
DESCRIBE_CLUSTER: Final = 60
CONSUMER_GROUP_HEARTBEAT: Final = 68

NEVER_FLEXIBLE: Final = 1 << 15


class Api(NamedTuple):
    """`decoded`: first and last version whose body is read, None where it never is."""

    key: int
    name: str
    flexible_from: int
    decoded: tuple[int, int] | None = None

    def decodes(self, version: int) -> bool:
        """Whether this package reads the bodies of that version."""
        return self.decoded is not None and self.decoded[0] <= version <= self.decoded[1]


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        Api(PRODUCE, "Produce", 9, (3, 13)),
        Api(FETCH, "Fetch", 12, (4, 18)),
        Api(2, "ListOffsets", 6),
        Api(METADATA, "Metadata", 9, (0, 13)),
        Api(OFFSET_COMMIT, "OffsetCommit", 8),
        Api(9, "OffsetFetch", 6),
        Api(10, "FindCoordinator", 3),
        Api(JOIN_GROUP, "JoinGroup", 6),
        Api(12, "Heartbeat", 4),
        Api(13, "LeaveGroup", 4),
        Api(14, "SyncGroup", 4),
        Api(15, "DescribeGroups", 5),
        Api(16, "ListGroups", 3),
        Api(SASL_HANDSHAKE, "SaslHandshake", NEVER_FLEXIBLE, (0, 1)),
        Api(API_VERSIONS, "ApiVersions", 3, (0, 4)),
        Api(CREATE_TOPICS, "CreateTopics", 5, (2, 7)),
        Api(20, "DeleteTopics", 4),
        Api(21, "DeleteRecords", 2),
        Api(22, "InitProducerId", 2),
        Api(23, "OffsetForLeaderEpoch", 4),
        Api(24, "AddPartitionsToTxn", 3),
        Api(25, "AddOffsetsToTxn", 3),
        Api(26, "EndTxn", 3),
        Api(27, "WriteTxnMarkers", 1),
        Api(28, "TxnOffsetCommit", 3),
        Api(29, "DescribeAcls", 2),
        Api(30, "CreateAcls", 2),
        Api(31, "DeleteAcls", 2),
        Api(DESCRIBE_CONFIGS, "DescribeConfigs", 4, (1, 4)),
        Api(33, "AlterConfigs", 2),
        Api(34, "AlterReplicaLogDirs", 2),
        Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 2, (1, 5)),
        Api(SASL_AUTHENTICATE, "SaslAuthenticate", 2, (0, 2)),
        Api(37, "CreatePartitions", 2),
        Api(CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 2),
        Api(RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 2),
        Api(EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 2),
        Api(DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 2),
        Api(42, "DeleteGroups", 2),
        Api(43, "ElectLeaders", 2),
        Api(44, "IncrementalAlterConfigs", 1),
        Api(45, "AlterPartitionReassignments", 0),
        Api(46, "ListPartitionReassignments", 0),
        Api(47, "OffsetDelete", NEVER_FLEXIBLE),
        Api(48, "DescribeClientQuotas", 1),
        Api(49, "AlterClientQuotas", 1),
        Api(50, "DescribeUserScramCredentials", 0),
        Api(51, "AlterUserScramCredentials", 0),
        Api(52, "Vote", 0),
        Api(53, "BeginQuorumEpoch", 1),
        Api(54, "EndQuorumEpoch", 1),
        Api(55, "DescribeQuorum", 0),
        Api(56, "AlterPartition", 0),
        Api(57, "UpdateFeatures", 0),
        Api(58, "Envelope", 0),
        Api(59, "FetchSnapshot", 0),
        Api(DESCRIBE_CLUSTER, "DescribeCluster", 0, (0, 2)),
        Api(61, "DescribeProducers", 0),
        Api(62, "BrokerRegistration", 0),
        Api(63, "BrokerHeartbeat", 0),
        Api(64, "UnregisterBroker", 0),
        Api(65, "DescribeTransactions", 0),
        Api(66, "ListTransactions", 0),
        Api(67, "AllocateProducerIds", 0),
        Api(CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0),
        Api(69, "ConsumerGroupDescribe", 0),
        Api(70, "ControllerRegistration", 0),
        Api(71, "GetTelemetrySubscriptions", 0),
        Api(72, "PushTelemetry", 0),
        Api(73, "AssignReplicasToDirs", 0),
        Api(74, "ListConfigResources", 0),
        Api(75, "DescribeTopicPartitions", 0),
        Api(76, "ShareGroupHeartbeat", 0),
        Api(77, "ShareGroupDescribe", 0),
        Api(78, "ShareFetch", 0),
        Api(79, "ShareAcknowledge", 0),
        Api(80, "AddRaftVoter", 0),
        Api(81, "RemoveRaftVoter", 0),
        Api(82, "UpdateRaftVoter", 0),
        Api(83, "InitializeShareGroupState", 0),
        Api(84, "ReadShareGroupState", 0),
        Api(85, "WriteShareGroupState", 0),
        Api(86, "DeleteShareGroupState", 0),
        Api(87, "ReadShareGroupStateSummary", 0),
        Api(88, "StreamsGroupHeartbeat", 0),
        Api(89, "StreamsGroupDescribe", 0),
        Api(90, "DescribeShareGroupOffsets", 0),
        Api(91, "AlterShareGroupOffsets", 0),
        Api(92, "DeleteShareGroupOffsets", 0),
    )
}

# What ApiVersions is capped to: the data APIs, whose bodies are read on every request.
CAPS: Final[dict[int, tuple[int, int]]] = {PRODUCE: (3, 13), FETCH: (4, 18)}


def is_flexible(api_key: int, version: int) -> bool:
    """Whether requests of that API and version have tagged fields; False for unknown APIs."""
    api = APIS.get(api_key)
    return api is not None and version >= api.flexible_from


def has_flexible_response_header(api_key: int, version: int) -> bool:
    """Whether the response header has a tagged section; that of ApiVersions never has (KIP-511)."""
    return api_key != API_VERSIONS and is_flexible(api_key, version)
