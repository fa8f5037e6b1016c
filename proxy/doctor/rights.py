"""Checks of what Forebay's own principal may do, by what the broker says of it (KIP-430), with the commands that help.

Owns the rights that docs/operations.md lists, and the commands. Must not try an operation. Invariants:
* internal topics do not count.
* a topic without DESCRIBE is not seen at all, so that no topic at all is a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol import control
from proxy.broker_client import CLIENT_ID, METADATA_VERSION
from proxy.doctor.checklist import CheckLine, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.control import TopicRights
    from proxy.broker_client import BrokerClient
    from proxy.config.model import ListenerConfig

READ, DESCRIBE, DESCRIBE_CONFIGS = 3, 8, 10  # org.apache.kafka.common.acl.AclOperation
OPERATIONS: Final = {READ: "Read", DESCRIBE: "Describe", DESCRIBE_CONFIGS: "DescribeConfigs"}
NOT_SAID = -(1 << 31)
CLUSTER_VERSION = 0
NAMED = 5
"""Topics that a line names at most."""
WITHOUT: Final = {
    READ: "polls go over clients' connections, and nothing is verified",
    DESCRIBE: "names and leaders are asked over clients' connections",
    DESCRIBE_CONFIGS: "their topics count as compacted",
}


async def check_rights(
    client: BrokerClient, listener: ListenerConfig, tells_node: bool, needs_log_dirs: bool
) -> list[CheckLine]:
    """The rights on topics and on the cluster. `tells_node`: the broker has described itself, for which it wants
    DESCRIBE_CONFIGS on the cluster. Raises as `BrokerClient.call`.
    """
    subject = f"rights ({listener.name})"
    frame = control.build_metadata_request(
        METADATA_VERSION, 0, CLIENT_ID, topics=None, with_rights=True
    )
    topics = control.scan_topic_rights_response(await client.call(frame), METADATA_VERSION)
    lines = [*judge_topics(subject, listener, topics), judge_node(subject, listener, tells_node)]
    if needs_log_dirs:
        frame = control.build_describe_cluster_request(CLUSTER_VERSION, 0, CLIENT_ID)
        cluster = control.scan_describe_cluster_response(await client.call(frame), CLUSTER_VERSION)
        lines.append(judge_log_dirs(subject, listener, may_do(cluster.operations, DESCRIBE)))
    if listener.use_delegation_tokens:
        lines.append(judge_tokens(subject, listener))
    return lines


def may_do(operations: int, operation: int) -> bool:
    """Whether the bit of that AclOperation is set."""
    return bool(operations >> operation & 1)


def judge_topics(
    subject: str, listener: ListenerConfig, topics: Sequence[TopicRights]
) -> list[CheckLine]:
    """One line where all is there; else one for each operation that is missing somewhere."""
    seen = [one for one in topics if not one.is_internal and one.error_code == 0]
    every = build_command(listener, (DESCRIBE, READ, DESCRIBE_CONFIGS), "--topic '*'")
    if not seen:
        text = "no topic is seen: there is none, or this principal may describe none"
        return [warned(subject, text, every)]
    if any(one.operations == NOT_SAID for one in seen):
        return [skipped(subject, "the broker does not say what this principal may do")]
    lines = []
    for operation, name in OPERATIONS.items():
        lacking = [one.name for one in seen if not may_do(one.operations, operation)]
        if lacking:
            shown = ", ".join(sorted(lacking)[:NAMED]) + (", ..." if len(lacking) > NAMED else "")
            text = f"{name} is missing on {len(lacking)} of {len(seen)} topics ({shown}): {WITHOUT[operation]}"
            lines.append(warned(subject, text, every))
    text = f"Describe, Read and DescribeConfigs on all {len(seen)} topics that are seen"
    return lines or [passed(subject, text)]


def judge_node(subject: str, listener: ListenerConfig, tells_node: bool) -> CheckLine:
    """DESCRIBE_CONFIGS on the cluster."""
    if tells_node:
        return passed(subject, "DescribeConfigs on the cluster: the broker says which node it is")
    return warned(
        subject,
        "DescribeConfigs on the cluster is missing: clients older than Fetch 11 are not served from memory",
        build_command(listener, (DESCRIBE_CONFIGS,), "--cluster"),
    )


def judge_log_dirs(subject: str, listener: ListenerConfig, may_describe: bool) -> CheckLine:
    """DESCRIBE on the cluster, for `throttle.disks[].brokerDirectory`."""
    if may_describe:
        return passed(subject, "Describe on the cluster, for throttle.disks[].brokerDirectory")
    return warned(
        subject,
        "Describe on the cluster is missing: the partitions of throttle.disks[].brokerDirectory are not found",
        build_command(listener, (DESCRIBE,), "--cluster"),
    )


def judge_tokens(subject: str, listener: ListenerConfig) -> CheckLine:
    """CREATE_TOKENS on the clients' users: no answer tells of it, so that the command stands here in any case."""
    text = (
        "CreateTokens on the clients' users cannot be asked; if a client is refused, it is missing"
    )
    command = _begin_command(listener)
    return CheckLine(
        "skip", subject, text, f"{command} --operation CreateTokens --user-principal '*'"
    )


def build_command(listener: ListenerConfig, operations: Sequence[int], resource: str) -> str:
    """The kafka-acls.sh command that allows Forebay's principal these operations."""
    asked = " ".join(f"--operation {OPERATIONS[one]}" for one in operations)
    return f"{_begin_command(listener)} {asked} {resource}"


def _begin_command(listener: ListenerConfig) -> str:
    """The command as far as the principal; PRINCIPAL where only the broker knows its name."""
    own = listener.upstream_credentials
    if own is not None or listener.upstream_tls.certificate_file is not None:
        principal = f"User:{(own and own.username) or 'PRINCIPAL'}"
    else:
        principal = "User:ANONYMOUS"
    return f"kafka-acls.sh --bootstrap-server {listener.upstream} --add --allow-principal '{principal}'"
