"""The start-up checks: each rule at its edge, refusals and warnings."""

import resource
from pathlib import Path
from typing import Any

import pytest

from proxy.config.access_log import AccessLogConfig
from proxy.config.admin import Admin, AdminTls
from proxy.config.check import (
    FURTHER_PROCESS_BYTES,
    LARGEST_SECRET_BYTES,
    PROCESS_BYTES,
    ConfigFindings,
    check,
    find_filesystem_type,
    read_secret,
)
from proxy.config.isolation import ControlSlots, Isolation, Slots
from proxy.config.memory import Memory
from proxy.config.model import (
    Cache,
    Config,
    Limits,
    ListenerConfig,
    ListenerTls,
    UpstreamCredentials,
    UpstreamTls,
)
from proxy.config.throttle import Disk, ThrottleConfig
from proxy.config.units import GIB, KIB, MIB, Address, parse_listen_address, parse_remote_address

MEMORY = Memory(4 * GIB, True, "/limit")
CACHE = Cache(size_bytes=64 * MIB, directory="")


def listener(
    listen: str = "127.0.0.1:0", upstream: str = "127.0.0.1:9092", **more: Any
) -> ListenerConfig:
    return ListenerConfig(
        listen=parse_listen_address(listen), upstream=parse_remote_address(upstream), **more
    )


def found(*listeners: ListenerConfig, cache: Cache = CACHE, **sections: Any) -> ConfigFindings:
    return check(Config(listeners=listeners or (listener(),), cache=cache, **sections), MEMORY)


@pytest.fixture(autouse=True)
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "file.pem"
    path.write_text("text")
    return str(path)


def test_a_plain_configuration_has_nothing_to_say() -> None:
    assert found() == ConfigFindings((), ())


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("127.0.0.1:9000", "127.0.0.1:9000", True),
        ("0.0.0.0:9000", "10.0.0.1:9000", True),
        (":9000", "[::1]:9000", True),
        ("localhost:9000", "127.0.0.1:9000", True),
        ("127.0.0.1:9000", "127.0.0.1:9001", False),
        ("10.0.0.1:9000", "10.0.0.2:9000", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_listeners_on_one_address_are_refused(one: str, other: str, refused: bool) -> None:
    problems = found(listener(one), listener(other, name="second")).problems
    assert [problem.split(":")[0] for problem in problems] == (
        ["listeners[1].listen"] if refused else []
    )


def test_admin_server_needs_its_own_address() -> None:
    (problem,) = found(listener(":9190")).problems
    assert problem.startswith(
        "admin.listen: 127.0.0.1:9190 is already the address of listeners[0].listen"
    )


@pytest.mark.parametrize(
    ("listen", "upstream", "refused"),
    [
        ("10.0.0.1:9092", "10.0.0.1:9092", True),
        ("0.0.0.0:9092", "127.0.0.1:9092", True),
        (":9092", "localhost:9092", True),
        ("0.0.0.0:9092", "10.0.0.9:9092", False),
        ("127.0.0.1:9092", "10.0.0.9:9092", False),
        ("10.0.0.1:9092", "10.0.0.1:9093", False),
        ("10.0.0.1:1", "127.0.0.1:9190", True),
    ],
)
def test_listener_that_is_its_upstream_is_refused(
    listen: str, upstream: str, refused: bool
) -> None:
    problems = found(listener(listen, upstream)).problems
    assert [problem.split(":")[0] for problem in problems] == (
        ["listeners[0].upstream"] if refused else []
    )


def test_listeners_have_names_of_their_own() -> None:
    assert (
        "listeners[1].name: listeners[0] is called 'default' too"
        in found(listener(), listener()).problems[0]
    )


def test_client_certificate_identity_is_refused_by_default(pem: str) -> None:
    tls = ListenerTls(
        certificate_file=pem, key_file=pem, client_auth="required", client_ca_file=pem
    )
    upstream_tls = UpstreamTls(enabled=True, certificate_file=pem, key_file=pem)
    for key, more in (
        ("tls.clientAuth", {"tls": tls}),
        ("upstreamTls.certificateFile", {"upstream_tls": upstream_tls}),
    ):
        (problem,) = found(listener(**more)).problems
        assert problem.startswith(f"listeners[0].{key}: client certificates")
        assert "listeners[0].allowSharedIdentity" in problem
        allowed = found(listener(**more, allow_shared_identity=True))
        assert allowed.problems == ()
        assert "memory serves nobody" in allowed.warnings[0]


def test_a_pass_through_listener_is_told_of_and_takes_nothing_else(pem: str) -> None:
    unread = listener(name="unread", pass_through=True)
    findings = found(listener(), unread)
    assert findings.problems == ()
    (warning,) = findings.warnings
    assert warning.startswith("listeners[1].passThrough: unread has no cache; ")
    assert "at 127.0.0.1:9092 must advertise" in warning
    tls = ListenerTls(certificate_file=pem, key_file=pem)
    beside = listener(name="unread", pass_through=True, tls=tls, allow_shared_identity=True)
    (problem,) = found(listener(), beside).problems
    assert problem.startswith("listeners[1].passThrough: ")
    assert "allowSharedIdentity, tls can do nothing" in problem
    (alone,) = found(unread).problems
    assert "all have passThrough" in alone


def test_the_admin_servers_keys_that_belong_together(pem: str) -> None:
    tls = AdminTls(certificate_file=pem, key_file=pem)
    guarded = Admin(tls=tls, token_file=pem, open_metrics=True)
    assert found(admin=guarded) == ((), ())
    (warning,) = found(admin=Admin(listen=parse_listen_address(":9190"), token_file=pem)).warnings
    assert warning.startswith("admin.tokenFile: without admin.tls")
    (problem,) = found(admin=Admin(open_metrics=True)).problems
    assert problem.startswith("admin.openMetrics: all paths are open")
    lone = tls.model_copy(update={"crl_file": pem})
    (problem,) = found(admin=Admin(tls=lone)).problems
    assert problem.startswith("admin.tls.crlFile: set clientCaFile")
    absent = tls.model_copy(update={"key_file": f"{pem}.absent", "ciphers": "none"})
    unreadable, unknown = found(admin=Admin(tls=absent)).problems
    assert unreadable.startswith("admin.tls.keyFile: ")
    assert unknown.startswith("admin.tls.ciphers: OpenSSL takes none of 'none'")


def test_ciphers_and_lists_of_a_listener(pem: str) -> None:
    tls = ListenerTls(certificate_file=pem, key_file=pem, crl_file=pem, ciphers="none")
    lists, unknown = found(listener(tls=tls)).problems
    assert lists.startswith("listeners[0].tls.crlFile: no client presents a certificate")
    assert unknown.startswith("listeners[0].tls.ciphers: OpenSSL takes none of 'none'")
    known = UpstreamTls(enabled=True, ciphers="ECDHE+AESGCM")
    assert found(listener(upstream_tls=known)) == ((), ())


def credentials(pem: str) -> UpstreamCredentials:
    return UpstreamCredentials(mechanism="SCRAM-SHA-256", username="forebay", password_file=pem)


def test_tokens_give_each_client_its_own_identity(pem: str) -> None:
    tls = ListenerTls(
        certificate_file=pem, key_file=pem, client_auth="required", client_ca_file=pem
    )
    own = credentials(pem)
    signs_in = listener(tls=tls, use_delegation_tokens=True, upstream_credentials=own)
    assert signs_in.signs_in_for_clients and not signs_in.shares_identity
    assert found(signs_in) == ((), ())
    certified = UpstreamTls(enabled=True, certificate_file=pem, key_file=pem)
    assert found(signs_in.model_copy(update={"upstream_tls": certified})).problems == ()
    away = signs_in.model_copy(update={"upstream": Address("10.0.0.9", 9092)})
    assert "in clear text" in found(away).warnings[0]
    without = signs_in.model_copy(update={"upstream_credentials": None})
    assert "set upstreamCredentials of a listener" in found(without).problems[0]
    both = signs_in.model_copy(update={"allow_shared_identity": True})
    assert "allowSharedIdentity: with useDelegationTokens" in found(both).problems[0]


def test_tokens_that_no_client_needs_are_refused(pem: str) -> None:
    own = credentials(pem)
    idle = listener(use_delegation_tokens=True, upstream_credentials=own)
    assert "no client needs one here" in found(idle).problems[0]
    second = Address("127.0.0.1", 19093)
    assert found(idle.model_copy(update={"catch_up_upstream": second})).problems == ()
    certified = UpstreamTls(enabled=True, certificate_file=pem, key_file=pem)
    shares = idle.model_copy(update={"catch_up_upstream": second, "upstream_tls": certified})
    assert shares.shares_identity, "clients sign in themselves, and may show no certificate"


def test_tls_keys_that_belong_together(pem: str) -> None:
    lone_ca = ListenerTls(certificate_file=pem, key_file=pem, client_ca_file=pem)
    assert "clientAuth `required` and clientCaFile" in found(listener(tls=lone_ca)).problems[0]
    disabled = UpstreamTls(ca_file=pem)
    assert (
        "upstreamTls.enabled: set it to true" in found(listener(upstream_tls=disabled)).problems[0]
    )
    lone_key = UpstreamTls(enabled=True, key_file=pem)
    assert "certificateFile and keyFile" in found(listener(upstream_tls=lone_key)).problems[0]
    insecure = found(listener(upstream_tls=UpstreamTls(enabled=True, insecure_skip_verify=True)))
    assert (insecure.problems, "for tests only" in insecure.warnings[0]) == ((), True)


@pytest.mark.parametrize(
    ("mechanism", "keys", "refused"),
    [
        ("PLAIN", ("username", "password_file"), False),
        ("SCRAM-SHA-256", ("username", "password_file"), False),
        ("SCRAM-SHA-512", ("username",), True),
        ("PLAIN", ("username", "password_file", "token_file"), True),
        ("OAUTHBEARER", ("token_file",), False),
        ("OAUTHBEARER", ("username", "token_file"), True),
        ("OAUTHBEARER", (), True),
    ],
)
def test_a_mechanism_takes_its_own_files(
    mechanism: Any, keys: tuple[str, ...], refused: bool, pem: str
) -> None:
    given: dict[str, Any] = dict.fromkeys(keys, pem)
    findings = found(
        listener(upstream_credentials=UpstreamCredentials(mechanism=mechanism, **given))
    )
    assert bool(findings.problems) == refused
    in_clear = [warning for warning in findings.warnings if "clear text" in warning]
    assert bool(in_clear) == (not mechanism.startswith("SCRAM"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path, pem: str) -> None:
    absent = str(tmp_path / "absent.pem")
    own = UpstreamCredentials(mechanism="OAUTHBEARER", token_file=str(tmp_path))
    problems = found(
        listener(tls=ListenerTls(certificate_file=absent, key_file=pem), upstream_credentials=own)
    ).problems
    assert problems == (
        f"listeners[0].tls.certificateFile: {absent} cannot be read: No such file or directory",
        f"listeners[0].upstreamCredentials.tokenFile: {tmp_path} cannot be read: Is a directory",
    )


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), ("", "must hold 1 to 65536 bytes")]
)
def test_unusable_admin_token_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    (problem,) = found(admin=Admin(token_file=str(path))).problems
    assert problem.startswith(f"admin.tokenFile: {path} cannot be used: ") and says in problem
    path.write_text("hunter2")
    assert found(admin=Admin(token_file=str(path))).problems == ()


def test_cache_larger_than_memory_is_refused() -> None:
    limits = Limits()
    room = 4 * GIB - limits.request_memory_bytes - limits.response_memory_bytes - PROCESS_BYTES
    assert found(cache=Cache(size_bytes=room, directory="")) == ConfigFindings((), ())
    assert (
        "above the limit of 4GiB"
        in found(cache=Cache(size_bytes=room + 1, directory="")).warnings[0]
    )
    assert found(cache=Cache(size_bytes=4 * GIB, directory="")).problems == ()
    assert (
        "more than the memory"
        in found(cache=Cache(size_bytes=4 * GIB + 1, directory="")).problems[0]
    )
    assert found(cache=Cache(size_bytes=5 * GIB, directory="", mode="off")) == ConfigFindings(
        (), ()
    )


def test_each_further_process_takes_memory() -> None:
    """One worker is in PROCESS_BYTES; from two on there are a keeper and a spare process, too."""
    limits = Limits()
    room = 4 * GIB - limits.request_memory_bytes - limits.response_memory_bytes - PROCESS_BYTES
    assert found(cache=Cache(size_bytes=room, directory=""), workers=1) == ConfigFindings((), ())
    three = room - 4 * FURTHER_PROCESS_BYTES
    assert found(cache=Cache(size_bytes=three, directory=""), workers=3).warnings == ()
    (warning,) = found(cache=Cache(size_bytes=three + 1, directory=""), workers=3).warnings
    assert "above the limit of 4GiB" in warning


def test_observing_cache_needs_a_quarter_of_memory(
    tmp_path: Path,
) -> None:
    observing = Cache(size_bytes=8 * GIB, directory="/proc", mode="observe")
    assert found(cache=observing) == ConfigFindings((), ())
    larger = Cache(size_bytes=16 * GIB + 4, directory="", mode="observe")
    assert "a quarter of" in found(cache=larger).problems[0]
    throttle = ThrottleConfig(disks=(Disk(directory=str(tmp_path)),))
    (warning,) = found(cache=observing, throttle=throttle).warnings
    assert warning == "throttle: delays nothing while cache.mode is `observe`"


def test_the_arena_needs_a_directory_that_takes_files(tmp_path: Path) -> None:
    absent = found(cache=Cache(size_bytes=64 * MIB, directory=str(tmp_path / "absent"))).problems
    assert "is not writable: No such file or directory" in absent[0]
    assert (
        found(cache=Cache(size_bytes=64 * MIB, directory="/proc"))
        .problems[0]
        .startswith("cache.directory: /proc")
    )
    assert list(tmp_path.iterdir()) == []


def test_arena_needs_a_large_enough_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.config.check.find_filesystem_bytes", lambda _: 64 * MIB)
    monkeypatch.setattr("proxy.config.check.find_filesystem_type", lambda _: "ext4")
    fits = found(cache=Cache(size_bytes=64 * MIB, directory=str(tmp_path)))
    assert (fits.problems, "lies on ext4, not in memory" in fits.warnings[0]) == ((), True)
    (problem,) = found(cache=Cache(size_bytes=64 * MIB + 1, directory=str(tmp_path))).problems
    assert "can hold, 64MiB" in problem


def test_innermost_last_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nnone {tmp_path} ext4 rw\nnone {tmp_path} tmpfs rw\nnone {tmp_path}x xfs rw\n"
    )
    assert find_filesystem_type(str(tmp_path / "below"), mounts) == "tmpfs"
    assert find_filesystem_type("/", mounts) == "ext4"
    assert find_filesystem_type("/", tmp_path / "absent") is None


def test_access_log_makes_its_directory_where_allowed(tmp_path: Path) -> None:
    assert found(access_log=AccessLogConfig(directory=str(tmp_path / "a" / "b"))).problems == ()
    assert (
        "is not writable" in found(access_log=AccessLogConfig(directory="/proc/logs")).problems[0]
    )
    assert (
        found(access_log=AccessLogConfig(rotate_size_bytes=MIB, keep_size_bytes=MIB)).problems == ()
    )
    assert (
        "raise it"
        in found(
            access_log=AccessLogConfig(rotate_size_bytes=MIB + KIB, keep_size_bytes=MIB)
        ).problems[0]
    )


def test_connection_limit_is_within_the_process_limit() -> None:
    even = Limits(request_memory_bytes=MIB, connection_request_memory_bytes=MIB)
    assert found(limits=even).problems == ()
    above = Limits(request_memory_bytes=MIB, connection_request_memory_bytes=MIB + 1)
    assert "limits.connectionRequestMemory" in found(limits=above).problems[0]
    above = Limits(response_memory_bytes=MIB, connection_response_memory_bytes=MIB + 1)
    assert "limits.connectionResponseMemory" in found(limits=above).problems[0]


def test_the_least_slots_are_not_above_the_most() -> None:
    same = Isolation(data_slots=Slots(floor=64))
    assert found(isolation=same).problems == ()
    data = found(isolation=Isolation(data_slots=Slots(floor=65)))
    assert data.problems == (
        "isolation.dataSlots.floor: 65 is more than isolation.dataSlots.ceiling, 64; lower it, or "
        "raise the ceiling",
    )
    control = found(isolation=Isolation(control_slots=ControlSlots(ceiling=999)))
    assert "isolation.controlSlots.floor: 1000 is more" in control.problems[0]


def test_too_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(max_connections=100)
    laned = listener(catch_up_upstream=parse_remote_address("127.0.0.1:9093"))
    for one, least in ((listener(), 296), (laned, 396)):
        for hard, warned in ((least, False), (least - 1, True)):
            monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (hard, hard))
            assert bool(found(one, limits=limits).warnings) == warned


def test_secret_file_loses_its_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for data, text in (
        (b"hunter2\n", "hunter2"),
        (b"hun ter2\r\n", "hun ter2"),
        (b" x\n\n", " x\n"),
    ):
        path.write_bytes(data)
        assert read_secret(str(path)) == text
    path.write_bytes(b"x" * LARGEST_SECRET_BYTES)
    assert len(read_secret(str(path))) == LARGEST_SECRET_BYTES
    for data in (b"", b"\n", b"x" * (LARGEST_SECRET_BYTES + 1), b"\xffhunter2"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="hold") as caught:
            read_secret(str(path))
        assert "hunter2" not in str(caught.value)


def test_addresses_print_as_they_are_written() -> None:
    assert str(Address("::1", 1)) == "[::1]:1"


@pytest.mark.parametrize(
    ("catch_up", "refused"),
    [
        ("127.0.0.1:9093", None),
        ("127.0.0.1:9092", "name another listener"),
        ("127.0.0.1:9000", "is Forebay's own"),
        ("elsewhere:9092", None),
    ],
)
def test_the_second_listener_is_another_of_the_brokers(catch_up: str, refused: str | None) -> None:
    problems = found(
        listener("127.0.0.1:9000", catch_up_upstream=parse_remote_address(catch_up))
    ).problems
    assert len(problems) == (refused is not None)
    assert refused is None or refused in problems[0]


@pytest.mark.parametrize(
    ("disks", "refused"),
    [
        ([Disk(device="sda")], None),
        ([Disk(directory="/logs")], None),
        ([Disk(broker_directory="/logs")], "disks[0]: tells no disk"),
        ([Disk()], "disks[0]: tells no disk"),
        ([Disk(device="sda", broker_directory="/a"), Disk(directory="/b")], None),
        (
            [Disk(device="sda", broker_directory="/a"), Disk(device="sdb")],
            "disks[1]: of several disks",
        ),
    ],
)
def test_disks_of_the_throttle_can_be_told_apart(disks: list[Disk], refused: str | None) -> None:
    problems = found(throttle=ThrottleConfig(disks=tuple(disks))).problems
    assert len(problems) == (refused is not None)
    assert refused is None or refused in problems[0]


@pytest.mark.parametrize(("floor_bytes", "refused"), [(MIB, False), (MIB + 1, True)])
def test_the_throttles_floor_is_below_its_ceiling(floor_bytes: int, refused: bool) -> None:
    problems = found(throttle=ThrottleConfig(floor_bytes=floor_bytes, ceiling_bytes=MIB)).problems
    assert bool(problems) == refused


def test_header_of_a_proxy_needs_proxies_that_are_trusted() -> None:
    for wrong in ({"proxy_protocol": "v2"}, {"trusted_proxies": ("10.0.0.0/8",)}):
        (problem,) = found(listener(**wrong)).problems
        assert "proxyProtocol `v2` and trustedProxies go together" in problem
    assert not found(listener(proxy_protocol="v2", trusted_proxies=("10.0.0.0/8",))).problems
