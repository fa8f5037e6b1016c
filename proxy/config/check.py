"""Checks of a valid configuration: rules over several keys and against this machine.

Owns the refusals and warnings at start, and the reading of files that hold secrets. Reads files and
limits, and changes nothing, except for a temporary file in directories that must be writable.
Invariants:
* every rule is a function from the configuration to findings, and stands in the table RULES.
* all rules run, so that all problems are reported at once.
* each finding says which change helps, and none repeats the content of a secret's file.
"""

import ipaddress
import itertools
import resource
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from proxy.config.memory import Memory, find_filesystem_bytes
from proxy.config.model import HELD_CONNECTIONS, Config, ListenerConfig, UpstreamTls
from proxy.config.units import MIB, Address, format_size, rough_size

LARGEST_SECRET_BYTES = 64 * 1024
OBSERVED_SHARE = 4  # an observing cache takes at most this fraction (1/4) of cache.size
PROCESS_BYTES = 96 * MIB  # worker and supervisor take 48 and 27 MiB of their own (CPython 3.11)
FURTHER_PROCESS_BYTES = 48 * MIB  # each process beside one worker, the keeper included
_FILES_BESIDE_CONNECTIONS = 64  # open files that are not client or broker connections
_MEMORY_BACKED = ("tmpfs", "ramfs", "hugetlbfs")


class Finding(NamedTuple):
    """A result of a rule: a problem refuses the start, a warning is logged."""

    kind: Literal["problem", "warning"]
    text: str


class ConfigFindings(NamedTuple):
    """The texts of all findings, in the order of RULES."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check(config: Config, memory: Memory) -> ConfigFindings:
    """Run all rules and return their findings. Touches the file system, resolves no name, opens no
    socket.
    """
    found = [finding for rule in RULES for finding in rule(config, memory)]
    problems = tuple(finding.text for finding in found if finding.kind == "problem")
    return ConfigFindings(
        problems, tuple(finding.text for finding in found if finding.kind == "warning")
    )


def read_secret(path: str) -> str:
    """The text of a secret's file, without its last line break. Raises OSError if the file cannot
    be read. Raises ValueError if it is blank, longer than LARGEST_SECRET_BYTES or not UTF-8.
    Neither error contains the secret.
    """
    with Path(path).open("rb") as file:
        data = file.read(LARGEST_SECRET_BYTES + 1)
    if not data.strip() or len(data) > LARGEST_SECRET_BYTES:
        raise ValueError(f"{path} must hold 1 to {LARGEST_SECRET_BYTES} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} does not hold UTF-8 text") from None


def _problem(text: str) -> Finding:
    return Finding("problem", text)


def _warning(text: str) -> Finding:
    return Finding("warning", text)


def _named(config: Config) -> Iterator[tuple[str, ListenerConfig]]:
    for index, listener in enumerate(config.listeners):
        yield f"listeners[{index}]", listener


def _is_any(host: str) -> bool:
    return host in ("", "*", "0.0.0.0", "::")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _collide(one: Address, other: Address) -> bool:
    """Whether two addresses may be the same: equal ports, and equal hosts or all interfaces on
    either side. False for port 0.
    """
    if one.port != other.port or one.port == 0:
        return False
    same = one.host.lower() == other.host.lower() or (
        _is_loopback(one.host) and _is_loopback(other.host)
    )
    return same or _is_any(one.host) or _is_any(other.host)


def _check_addresses(config: Config, _: Memory) -> Iterator[Finding]:
    places = [(f"{name}.listen", listener.listen) for name, listener in _named(config)]
    places.append(("admin.listen", config.admin.listen))
    for (one, address), (other, taken) in itertools.combinations(places, 2):
        if _collide(address, taken):
            yield _problem(
                f"{other}: {taken} is already the address of {one} ({address}); give it another port"
            )
    for name, listener in _named(config):
        targets = {"upstream": listener.upstream, "catchUpUpstream": listener.catch_up_upstream}
        for (key, target), (place, address) in itertools.product(targets.items(), places):
            is_own = target and (address.host == target.host or _is_loopback(target.host))
            if target and is_own and _collide(address, target):
                yield _problem(
                    f"{name}.{key}: {target} is Forebay's own {place}; name the broker's"
                )
        if listener.catch_up_upstream == listener.upstream:
            yield _problem(
                f"{name}.catchUpUpstream: {listener.upstream} is upstream; name another listener of the "
                "broker, or remove it"
            )


def _check_names(config: Config, _: Memory) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for name, listener in _named(config):
        if listener.name in first:
            yield _problem(
                f"{name}.name: {first[listener.name]} is called {listener.name!r} too; give it its own"
            )
        first.setdefault(listener.name, name)


def _check_identity(config: Config, _: Memory) -> Iterator[Finding]:
    for name, listener in _named(config):
        if listener.shares_identity and not listener.allow_shared_identity:
            requires = listener.wants_certificates
            key = "tls.clientAuth" if requires else "upstreamTls.certificateFile"
            instead = f"{name}.useDelegationTokens" if requires else ""
            yield _problem(
                f"{name}.{key}: client certificates would end at Forebay; the broker would see one identity, "
                f"Forebay's, for all clients; set "
                f"{f'{instead} to true, or ' if instead else ''}{name}.allowSharedIdentity to true, "
                f"or remove it"
            )
        elif listener.shares_identity:
            yield _warning(
                f"{name}: the broker may see one identity for all clients; memory serves nobody"
            )


def _check_pass_through(config: Config, _: Memory) -> Iterator[Finding]:
    unread = [(name, listener) for name, listener in _named(config) if listener.pass_through]
    for name, listener in unread:
        beside = listener.model_dump(by_alias=True, exclude_defaults=True)
        extra = sorted(set(beside) - {"name", "listen", "upstream", "passThrough", "allow", "deny"})
        if extra:
            yield _problem(
                f"{name}.passThrough: bytes pass unread, so that {', '.join(extra)} can do nothing; remove them, "
                "or passThrough"
            )
        yield _warning(
            f"{name}.passThrough: {listener.name} has no cache; the broker's listener at {listener.upstream} must "
            f"advertise the address that clients reach {listener.listen} by"
        )
    if unread and len(unread) == len(config.listeners):
        yield _problem(
            "listeners: all have passThrough, and Forebay would read nothing; add a listener without it"
        )


def _check_delegation_tokens(config: Config, _: Memory) -> Iterator[Finding]:
    users = [(name, one) for name, one in _named(config) if one.use_delegation_tokens]
    if users and all(one.upstream_credentials is None for one in config.listeners):
        yield _problem(
            f"{users[0][0]}.useDelegationTokens: Forebay creates the tokens over a connection of its own, "
            "which must sign in by SASL; set upstreamCredentials of a listener"
        )
    for name, listener in users:
        if not listener.wants_certificates and listener.catch_up_upstream is None:
            yield _problem(
                f"{name}.useDelegationTokens: no client needs one here; set tls.clientAuth to `required` or "
                "catchUpUpstream, or remove it"
            )
        if listener.signs_in_for_clients and listener.allow_shared_identity:
            yield _problem(
                f"{name}.allowSharedIdentity: with useDelegationTokens each client has its own; remove one"
            )
        if not listener.upstream_tls.enabled and not _is_loopback(listener.upstream.host):
            yield _warning(
                f"{name}.useDelegationTokens: without upstreamTls the broker sends the tokens of all "
                "principals in clear text"
            )


def _check_tls(config: Config, _: Memory) -> Iterator[Finding]:
    for name, listener in _named(config):
        tls, upstream = listener.tls, listener.upstream_tls
        if tls and (tls.client_auth == "required") != (tls.client_ca_file is not None):
            yield _problem(
                f"{name}.tls: clientAuth `required` and clientCaFile go together; set both or neither"
            )
        if not upstream.enabled and upstream != UpstreamTls():
            yield _problem(
                f"{name}.upstreamTls.enabled: set it to true, or remove the keys beside it"
            )
        if (upstream.certificate_file is None) != (upstream.key_file is None):
            yield _problem(
                f"{name}.upstreamTls: certificateFile and keyFile go together; set both or neither"
            )
        if tls and tls.crl_file is not None and tls.client_auth != "required":
            yield _problem(f"{name}.tls.crlFile: no client presents a certificate here; remove it")
        for section, ciphers in (("tls", tls and tls.ciphers), ("upstreamTls", upstream.ciphers)):
            if ciphers and (reason := explain_ciphers(ciphers)):
                yield _problem(
                    f"{name}.{section}.ciphers: OpenSSL takes none of {ciphers!r} ({reason}); see `openssl ciphers`"
                )
        if upstream.insecure_skip_verify:
            yield _warning(
                f"{name}.upstreamTls.insecureSkipVerify: any broker is believed; for tests only"
            )


def _check_admin(config: Config, _: Memory) -> Iterator[Finding]:
    admin, tls = config.admin, config.admin.tls
    for key, path in (tls.model_dump(mode="json", by_alias=True) if tls else {}).items():
        error = _unreadable(path) if key.endswith("File") and path else None
        if error:
            yield _problem(f"admin.tls.{key}: {path} cannot be read: {error}")
    if tls and tls.ciphers and (reason := explain_ciphers(tls.ciphers)):
        yield _problem(f"admin.tls.ciphers: OpenSSL takes none of {tls.ciphers!r} ({reason})")
    if tls and tls.crl_file is not None and tls.client_ca_file is None:
        yield _problem("admin.tls.crlFile: set clientCaFile, too, or remove it")
    is_guarded = admin.token_file is not None or (tls and tls.client_ca_file is not None)
    if admin.open_metrics and not is_guarded:
        yield _problem("admin.openMetrics: all paths are open; set tokenFile, or remove it")
    if admin.token_file is not None:
        if tls is None and not _is_loopback(admin.listen.host):
            yield _warning(
                "admin.tokenFile: without admin.tls the token crosses the network in clear text"
            )
        try:
            read_secret(admin.token_file)
        except (OSError, ValueError) as refusal:
            error = getattr(refusal, "strerror", None) or str(refusal)
            yield _problem(f"admin.tokenFile: {admin.token_file} cannot be used: {error}")


def explain_ciphers(ciphers: str) -> str:
    """Why OpenSSL does not take a list of ciphers; "" if it does."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(ciphers)
    except ssl.SSLError as error:
        return str(error)
    return ""


def _check_hosts(config: Config, _: Memory) -> Iterator[Finding]:
    for name, listener in _named(config):
        if (listener.proxy_protocol == "v2") != (listener.trusted_proxies is not None):
            yield _problem(
                f"{name}: proxyProtocol `v2` and trustedProxies go together; set both or neither"
            )


def _check_credentials(config: Config, _: Memory) -> Iterator[Finding]:
    for name, listener in _named(config):
        own = listener.upstream_credentials
        if own is None:
            continue
        has_password = own.username is not None and own.password_file is not None
        uses_password = own.username is not None or own.password_file is not None
        place = f"{name}.upstreamCredentials"
        if own.mechanism == "OAUTHBEARER" and (own.token_file is None or uses_password):
            yield _problem(f"{place}: OAUTHBEARER takes tokenFile and nothing else")
        if own.mechanism != "OAUTHBEARER" and (not has_password or own.token_file is not None):
            yield _problem(
                f"{place}: {own.mechanism} takes username and passwordFile and nothing else"
            )
        if not own.mechanism.startswith("SCRAM") and not listener.upstream_tls.enabled:
            yield _warning(
                f"{place}: {own.mechanism} without upstreamTls sends the secret in clear text"
            )


def _check_files(config: Config, _: Memory) -> Iterator[Finding]:
    for name, listener in _named(config):
        sections = {
            "tls": listener.tls,
            "upstreamTls": listener.upstream_tls,
            "upstreamCredentials": listener.upstream_credentials,
        }
        for section, values in sections.items():
            files = values.model_dump(mode="json") if values else {}
            for key, path in files.items():
                error = _unreadable(path) if key.endswith("File") and path else None
                if error:
                    yield _problem(f"{name}.{section}.{key}: {path} cannot be read: {error}")


def _unreadable(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or "the path is not valid"
    return None


def find_arena_bytes(config: Config) -> int:
    """Memory of the arena, at most: 0 without a cache, a quarter of `cache.size` where it observes."""
    share = {"serve": 1, "observe": OBSERVED_SHARE}.get(config.cache.mode)
    return config.cache.size_bytes // share if share else 0


def sum_memory_bytes(config: Config) -> int:
    """Memory of the arena, of requests and responses in flight, and of all processes, at most."""
    limits = config.limits
    in_flight_bytes = limits.request_memory_bytes + limits.response_memory_bytes
    further = config.workers + 1 if config.workers > 1 else 0  # a keeper, and a spare process
    process_bytes = PROCESS_BYTES + further * FURTHER_PROCESS_BYTES
    return find_arena_bytes(config) + in_flight_bytes + process_bytes


def count_open_files(config: Config) -> int:
    """Open files of a worker, at most."""
    limits = config.limits
    sockets = 3 if any(listener.catch_up_upstream for listener in config.listeners) else 2
    held = HELD_CONNECTIONS if limits.connection_rate_per_address else 0
    connections = sockets * limits.max_connections + config.admin.max_connections + held
    return connections + _FILES_BESIDE_CONNECTIONS


def _check_cache(config: Config, memory: Memory) -> Iterator[Finding]:
    cache = config.cache
    if cache.mode == "off":
        return
    size, total = format_size(cache.size_bytes), rough_size(memory.total_bytes)
    observes = cache.mode == "observe"
    arena_bytes, needed_bytes = find_arena_bytes(config), sum_memory_bytes(config)
    if memory.total_bytes and arena_bytes > memory.total_bytes:
        what = f"a quarter of {size}" if observes else size
        yield _problem(
            f"cache.size: {what} is more than the memory there is, {total} ({memory.origin}); lower it"
        )
    elif memory.is_limit and needed_bytes > memory.total_bytes:
        yield _warning(
            f"cache.size, limits.requestMemory, limits.responseMemory and the processes may reach "
            f"{rough_size(needed_bytes)}, above the limit of {total} ({memory.origin}); lower one"
        )
    if cache.directory and not observes:
        yield from _check_arena(config)


def _check_arena(config: Config) -> Iterator[Finding]:
    directory = config.cache.directory
    error = _unwritable(directory)
    if error:
        yield _problem(
            f"cache.directory: {directory} is not writable: {error}; name another, or none with ''"
        )
        return
    filesystem_bytes = find_filesystem_bytes(directory)
    if filesystem_bytes is not None and config.cache.size_bytes > filesystem_bytes:
        yield _problem(
            f"cache.size: {format_size(config.cache.size_bytes)} is more than {directory} can hold, "
            f"{rough_size(filesystem_bytes)}; lower it, or name a larger cache.directory"
        )
    kind = find_filesystem_type(directory)
    if kind is not None and kind not in _MEMORY_BACKED:
        yield _warning(
            f"cache.directory: {directory} lies on {kind}, not in memory; the cache would be written to disk"
        )


def _check_access_log(config: Config, _: Memory) -> Iterator[Finding]:
    log = config.access_log
    if log.keep_size_bytes < log.rotate_size_bytes:
        yield _problem("accessLog.keepSize: is less than accessLog.rotateSize; raise it")
    if log.directory:
        present = next(
            place
            for place in (Path(log.directory), *Path(log.directory).absolute().parents)
            if place.exists()
        )
        error = _unwritable(str(present))
        if error:
            yield _problem(
                f"accessLog.directory: {log.directory} is not writable: {error}; name another"
            )


def _check_limits(config: Config, _: Memory) -> Iterator[Finding]:
    limits = config.limits
    if limits.connection_request_memory_bytes > limits.request_memory_bytes:
        yield _problem(
            "limits.connectionRequestMemory: is more than limits.requestMemory; lower it"
        )
    if limits.connection_response_memory_bytes > limits.response_memory_bytes:
        yield _problem(
            "limits.connectionResponseMemory: is more than limits.responseMemory; lower it"
        )
    needed = count_open_files(config)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield _warning(
            f"limits.maxConnections: may need {needed} open files, this process may have {hard} (ulimit -n)"
        )


def _check_isolation(config: Config, _: Memory) -> Iterator[Finding]:
    isolation = config.isolation
    for key, slots in (
        ("dataSlots", isolation.data_slots),
        ("controlSlots", isolation.control_slots),
    ):
        if slots.floor > slots.ceiling:
            yield _problem(
                f"isolation.{key}.floor: {slots.floor} is more than isolation.{key}.ceiling, "
                f"{slots.ceiling}; lower it, or raise the ceiling"
            )


def _check_throttle(config: Config, _: Memory) -> Iterator[Finding]:
    throttle = config.throttle
    if throttle.floor_bytes > throttle.ceiling_bytes:
        yield _problem("throttle.floor: is more than throttle.ceiling; lower it")
    if throttle.enabled and throttle.disks and config.cache.mode != "serve":
        yield _warning(f"throttle: delays nothing while cache.mode is `{config.cache.mode}`")
    for index, disk in enumerate(throttle.disks):
        place = f"throttle.disks[{index}]"
        if disk.device is None and disk.directory is None:
            yield _problem(
                f"{place}: tells no disk; name its device, or a directory that is mounted here"
            )
        if len(throttle.disks) > 1 and disk.directory is None and disk.broker_directory is None:
            yield _problem(
                f"{place}: of several disks, each needs directory or brokerDirectory: no partition is known "
                "to lie on this one"
            )


def _unwritable(directory: str) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=directory, prefix="forebay-check-"):
            return None
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or "the path is not valid"


def find_filesystem_type(directory: str, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the file system that holds a directory, such as `tmpfs`; None if it cannot be found."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
        place = Path(directory).resolve()
    except OSError:
        return None
    mounted = [(Path(fields[1]), fields[2]) for line in lines if len(fields := line.split(" ")) > 2]
    holding = [
        (len(point.parts), index, kind)
        for index, (point, kind) in enumerate(mounted)
        if place.is_relative_to(point)
    ]
    return max(holding)[2] if holding else None


RULES: tuple[Callable[[Config, Memory], Iterator[Finding]], ...] = (
    _check_names,
    _check_addresses,
    _check_identity,
    _check_pass_through,
    _check_delegation_tokens,
    _check_tls,
    _check_hosts,
    _check_credentials,
    _check_files,
    _check_admin,
    _check_cache,
    _check_access_log,
    _check_limits,
    _check_isolation,
    _check_throttle,
)
