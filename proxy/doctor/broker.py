"""Checks of the broker behind a listener: reachable, versions, what clients are told, rights, log directories, clock.

Owns the questions, which are those that Forebay itself asks, with its credentials. Must not judge the machine.
Invariants: one connection to each address, closed at the end; nothing is written or created.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocol import control
from protocol.api import (
    API_VERSIONS,
    APIS,
    CAPS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    FETCH,
    METADATA,
    PRODUCE,
)
from proxy.broker_client import (
    CLIENT_ID,
    FAILURES,
    METADATA_VERSION,
    BrokerClient,
    build_direct_endpoint,
    build_through_endpoint,
    connect,
    explain,
    find_local,
)
from proxy.doctor.checklist import CheckLine, failed, passed, skipped, warned
from proxy.doctor.processes import is_here
from proxy.doctor.rights import check_rights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from protocol.metadata import Metadata
    from proxy.config.model import Config, ListenerConfig
    from proxy.config.units import Address

ASKED_VERSIONS: Final = {
    PRODUCE: CAPS[PRODUCE][0],
    FETCH: 13,
    METADATA: METADATA_VERSION,
    API_VERSIONS: 3,
    DESCRIBE_CONFIGS: 4,
    DESCRIBE_CLUSTER: 0,
}
"""API key -> the version that Forebay, or this command, asks. Fetch 13 names topics by id (KIP-516)."""
LOG_DIRS_VERSION = 4
NAMES_ASKED = 3
"""Names of hosts that are looked up, at most."""


@dataclass(slots=True)
class ExaminedBroker:
    """What was found behind one listener. `partitions`: on that broker; None: not told."""

    lines: list[CheckLine] = field(default_factory=list)
    partitions: int | None = None


async def examine(config: Config, listener: ListenerConfig, timeout_s: float) -> ExaminedBroker:
    """All checks of one listener and its broker. `timeout_s`: for each answer."""
    found = ExaminedBroker()
    if listener.pass_through:
        found.lines.append(await _check_pass_through(listener, timeout_s))
        return found
    subject = f"broker ({listener.name})"
    try:
        endpoint = build_direct_endpoint(listener, listener.upstream)
        async with connect(endpoint, timeout_s) as client:
            found.lines.append(passed(subject, f"{listener.upstream} answers"))
            found.lines += check_versions(subject, client)
            try:
                await _ask(config, listener, client, found)
            except ConnectionError as error:
                found.lines.append(_explain_closed(subject, listener, error))
    except FAILURES as error:
        text = f"{listener.upstream}: {explain(error, timeout_s)}"
        remedy = "start the broker; compare upstream, upstreamTls and upstreamCredentials with its listeners"
        found.lines.append(failed(subject, text, remedy))
    if listener.catch_up_upstream is not None:
        found.lines += await _check_catch_up(
            config, listener, listener.catch_up_upstream, timeout_s
        )
    found.lines.append(await _check_forebay(listener, timeout_s))
    found.lines.append(check_clock(subject, listener.upstream))
    return found


async def _check_pass_through(listener: ListenerConfig, timeout_s: float) -> CheckLine:
    """The broker's listener is only connected to: TLS and credentials are the clients'."""
    subject = f"broker ({listener.name})"
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(*listener.upstream)
    except OSError as error:  # TimeoutError included
        text = f"{listener.upstream}: {explain(error, timeout_s)}"
        return failed(subject, text, "start the broker; compare upstream with its listeners")
    writer.transport.abort()
    return passed(subject, f"{listener.upstream} accepts; with passThrough no more can be asked")


async def _ask(
    config: Config, listener: ListenerConfig, client: BrokerClient, found: ExaminedBroker
) -> None:
    metadata = await client.ask_metadata([])
    node_id = await client.find_node([node.node_id for node in metadata.brokers])
    subject = f"listener ({listener.name})"
    found.lines += check_advertised(subject, config, metadata, node_id)
    hosts = [node.host for node in metadata.brokers if node_id in (None, node.node_id)]
    found.lines.append(await check_names(subject, hosts))
    needs_log_dirs = any(disk.broker_directory for disk in config.throttle.disks)
    found.lines += await check_rights(client, listener, node_id is not None, needs_log_dirs)
    found.lines += await _check_log_dirs(config, client, found)


def _explain_closed(subject: str, listener: ListenerConfig, error: ConnectionError) -> CheckLine:
    """A listener that wants SASL answers ApiVersions and closes at anything else
    (SaslServerAuthenticator.handleKafkaRequest).
    """
    if listener.upstream_credentials is not None:
        return failed(subject, f"{error}", "look at the broker's log")
    return warned(
        subject,
        f"{error}: the listener wants credentials; polls go over clients' connections",
        "set upstreamCredentials, a principal of Forebay's own",
    )


def check_versions(subject: str, client: BrokerClient) -> Iterator[CheckLine]:
    """Whether the broker speaks the versions that Forebay asks and reads."""
    missing = []
    for key, version in ASKED_VERSIONS.items():
        low, high = client.versions.get(key, (0, -1))
        if not low <= version <= high:
            missing.append(f"{APIS[key].name} {version} (it has {low} to {high})")
    if missing:
        text = f"the broker lacks {', '.join(missing)}"
        yield failed(subject, text, "put Forebay before Apache Kafka 3.9 or newer (README.md)")
        return
    offered = ", ".join(
        f"{APIS[key].name} {max(client.versions[key][0], low)} to {min(client.versions[key][1], high)}"
        for key, (low, high) in CAPS.items()
    )
    known = ", ".join(f"{name} {level}" for name, level in sorted(client.features.items()))
    yield passed(subject, f"clients are offered {offered}; finalized features: {known or 'none'}")


def check_advertised(
    subject: str, config: Config, metadata: Metadata, node_id: int | None
) -> Iterator[CheckLine]:
    """Whether the address that clients of this broker are told has a port of Forebay's. `node_id` None: not told, so
    that one broker of the cluster must have such a port.
    """
    ports = {listener.listen.port for listener in config.listeners}
    told = [node for node in metadata.brokers if node_id in (None, node.node_id)]
    shown = ", ".join(f"{node.host}:{node.port}" for node in told) or "nothing"
    if 0 in ports:
        yield skipped(subject, f"clients are told {shown}; `listen` has any free port")
    elif any(node.port in ports for node in told):
        yield passed(subject, f"clients are told {shown}: a port of Forebay's")
    else:
        ours = ", ".join(map(str, sorted(ports)))
        yield failed(
            subject,
            f"clients are told {shown}, and Forebay listens at port {ours}: they go past it",
            "give the broker's listener behind `upstream` Forebay's address in advertised.listeners, such as"
            f" CLIENT://{told[0].host if told else 'HOST'}:{min(ports)}",
        )


async def check_names(subject: str, hosts: Sequence[str]) -> CheckLine:
    """Whether the hosts that clients are told have addresses, as this machine is told."""
    unknown = []
    for host in hosts[:NAMES_ASKED]:
        try:
            await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            unknown.append(host)
    if unknown:
        text = (
            f"clients are told {', '.join(unknown)}, which has no address, as this machine is told"
        )
        return warned(subject, text, "ask for it where clients run; mend advertised.listeners")
    return passed(subject, f"{', '.join(hosts[:NAMES_ASKED]) or 'nothing'} has an address here")


async def _check_log_dirs(
    config: Config, client: BrokerClient, found: ExaminedBroker
) -> list[CheckLine]:
    """Whether the broker tells of each `brokerDirectory`. Notes the number of its partitions."""
    wanted = {
        disk.broker_directory.rstrip("/")
        for disk in config.throttle.disks
        if disk.broker_directory is not None
    }
    if client.versions.get(DESCRIBE_LOG_DIRS, (0, -1))[1] < LOG_DIRS_VERSION:
        return []
    frame = control.build_describe_log_dirs_request(LOG_DIRS_VERSION, 0, CLIENT_ID)
    answer = await client.call(frame)
    directories = control.scan_describe_log_dirs_response(answer, LOG_DIRS_VERSION)
    if directories:
        found.partitions = sum(len(one.partitions) for one in directories)
    missing = sorted(wanted - {one.path.rstrip("/") for one in directories})
    known = ", ".join(one.path for one in directories) or "none"
    if missing:
        text = f"the broker does not tell of {', '.join(missing)}; it tells of {known}"
        remedy = "write brokerDirectory as in log.dirs, and allow Describe on the cluster"
        return [failed("disks", text, remedy)]
    return (
        [passed("disks", f"the broker tells of each brokerDirectory ({known})")] if wanted else []
    )


async def _check_catch_up(
    config: Config, listener: ListenerConfig, address: Address, timeout_s: float
) -> list[CheckLine]:
    """The broker's second listener, for reads of history."""
    subject = f"catch-up ({listener.name})"
    try:
        async with connect(build_direct_endpoint(listener, address), timeout_s) as client:
            metadata = await client.ask_metadata([])
            node_id = await client.find_node([node.node_id for node in metadata.brokers])
        return list(check_advertised(subject, config, metadata, node_id))
    except FAILURES as error:
        text = f"{address}: {explain(error, timeout_s)}; history comes by the first listener"
        return [warned(subject, text, "give it the first listener's security and users")]


async def _check_forebay(listener: ListenerConfig, timeout_s: float) -> CheckLine:
    """Whether a Forebay passes a question at the listener."""
    subject, address = f"listener ({listener.name})", find_local(listener.listen)
    if address.port == 0:
        return skipped(subject, "`listen` has any free port")
    if listener.wants_certificates:
        return skipped(subject, "it requires a client certificate, which this command has not")
    if listener.proxy_protocol != "none":
        return skipped(subject, "it expects the PROXY protocol, from a load balancer alone")
    try:
        async with connect(build_through_endpoint(listener, address), timeout_s) as client:
            await client.ask_metadata([])
    except FAILURES as error:
        text = f"{address}: {explain(error, timeout_s)}"
        return warned(subject, text, "start Forebay; where it runs, look at its log")
    return passed(subject, f"Forebay passes Metadata at {address}")


def check_clock(subject: str, upstream: Address) -> CheckLine:
    """The clock: one on one machine; elsewhere the protocol has no answer that tells the broker's time."""
    if is_here(upstream.host):
        return passed(subject, "the broker is on this machine: there is one clock")
    return skipped(subject, "clock: no answer of a broker tells its time; compare `date` on both")
