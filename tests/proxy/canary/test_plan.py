"""Both sides of a canary, by Forebay's own configuration."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from proxy.canary.plan import LatencyBar, PlanRefused, Side, derive_sides
from proxy.config.model import Config
from proxy.config.units import Address
from tests.kit.broker.certificates import TlsFiles, write_certificates

PLAIN: dict[str, Any] = {"listen": ":9092", "upstream": "127.0.0.1:19092"}


def build_config(*listeners: dict[str, Any]) -> Config:
    return Config.model_validate({"listeners": listeners}, by_alias=True, by_name=False)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return write_certificates(tmp_path_factory.mktemp("tls"))


def encrypted(tls: TlsFiles, **more: str) -> dict[str, Any]:
    files = {"certificateFile": str(tls.server.certificate), "keyFile": str(tls.server.key)}
    upstream = {"enabled": True, "caFile": str(tls.authority), "serverName": "broker"}
    return {**PLAIN, "name": "tls", "tls": {**files, **more}, "upstreamTls": upstream}


@pytest.mark.parametrize(
    ("listen", "through"),
    [
        (":9092", "127.0.0.1:9092"),
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        ("[::]:9092", "[::1]:9092"),
        ("10.0.0.7:9092", "10.0.0.7:9092"),
    ],
)
def test_sides_are_the_listener_and_its_upstream(listen: str, through: str) -> None:
    ahead, past = derive_sides(build_config({**PLAIN, "listen": listen}))
    assert (ahead.name, f"{ahead.address}") == ("through", through)
    assert (past.name, past.address) == ("direct", Address("127.0.0.1", 19092))
    assert ahead.build_endpoint().context is None


def test_a_listener_is_chosen_by_name_and_addresses_by_flags() -> None:
    other = {"name": "other", "listen": ":9093", "upstream": "b:1"}
    config = build_config(PLAIN, other)
    ahead, past = derive_sides(config, "other")
    assert (ahead.address.port, past.address) == (9093, Address("b", 1))
    ahead, past = derive_sides(config, None, "f:1", "[::1]:2")
    assert (ahead.address, past.address) == (Address("f", 1), Address("::1", 2))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("third",), "there is no 'third'; there are default"),
        ((None, "nowhere"), "--through: 'nowhere' is not an address"),
        ((None, None, "b:0"), "--direct: 'b:0' has a port outside"),
    ],
)
def test_what_does_not_say_enough_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        derive_sides(build_config(PLAIN), *arguments)


@pytest.mark.parametrize(
    "keys",
    [{"passThrough": True}, {"proxyProtocol": "v2", "trustedProxies": "10.0.0.0/8"}],
    ids=lambda keys: next(iter(keys)),
)
def test_a_listener_that_a_client_alone_cannot_pass_is_refused(keys: dict[str, Any]) -> None:
    first = {**PLAIN, "name": "first", **keys}
    second = {"name": "second", "listen": ":9093", "upstream": "b:2"}
    with pytest.raises(PlanRefused, match=rf"first has {next(iter(keys))}.*--listener"):
        derive_sides(build_config(first, second), "first")
    if "passThrough" in keys:
        assert derive_sides(build_config(first, second))[0].listener.name == "second"


def test_any_free_port_must_be_named() -> None:
    config = build_config({**PLAIN, "listen": ":0"})
    with pytest.raises(PlanRefused, match="--through"):
        derive_sides(config)
    assert derive_sides(config, through="f:1")[0].address == Address("f", 1)


def test_a_required_client_certificate_must_be_named(tls: TlsFiles) -> None:
    entry = encrypted(tls, clientAuth="required", clientCaFile=str(tls.authority))
    config = build_config({**entry, "allowSharedIdentity": True})
    with pytest.raises(PlanRefused, match="--client-certificate"):
        derive_sides(config)
    files = (str(tls.client.certificate), str(tls.client.key))
    ahead, _ = derive_sides(config, client_certificate=files)
    assert ahead.build_endpoint().context is not None


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str | None) -> None:
    """A whole TLS handshake in memory. Raises ssl.SSLError as either side refuses."""
    c_in, c_out, s_in, s_out = (ssl.MemoryBIO() for _ in range(4))
    ours = client.wrap_bio(c_in, c_out, server_hostname=name)
    theirs = server.wrap_bio(s_in, s_out, server_side=True)
    done: set[str] = set()
    for _ in range(10):
        for label, side in (("ours", ours), ("theirs", theirs)):
            try:
                side.do_handshake()
                done.add(label)
            except ssl.SSLWantReadError:
                pass
            s_in.write(c_out.read())
            c_in.write(s_out.read())
        if len(done) == 2:
            return
    raise AssertionError("no end")


def build_server(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(files.server.certificate), str(files.server.key))
    return context


def open_through(files: TlsFiles) -> ssl.SSLContext:
    ahead, _ = derive_sides(build_config(encrypted(files)))
    context = ahead.build_endpoint().context
    assert context is not None
    return context


def test_the_through_side_trusts_the_listeners_own_certificate_alone(
    tls: TlsFiles, tmp_path: Path
) -> None:
    """Whatever its name; not even another one of the same authority's name."""
    handshake(open_through(tls), build_server(tls), "10.0.0.7")
    other = write_certificates(tmp_path)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(open_through(tls), build_server(other), "10.0.0.7")


def test_the_direct_side_expects_what_forebay_expects(tls: TlsFiles) -> None:
    _, past = derive_sides(build_config(encrypted(tls)))
    endpoint = past.build_endpoint()
    assert endpoint.server_name == "broker" and endpoint.context is not None
    assert endpoint.context.check_hostname
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        handshake(endpoint.context, build_server(tls), endpoint.server_name)
    handshake(endpoint.context, build_server(tls), "localhost")


def test_a_missing_file_is_an_oserror_at_the_opening(tls: TlsFiles) -> None:
    entry = build_config(encrypted(tls, certificateFile="/nowhere")).listeners[0]
    with pytest.raises(OSError, match="No such file"):
        Side("through", Address("f", 1), entry).build_endpoint()


@pytest.mark.parametrize(
    ("through_ms", "direct_ms", "holds"), [(12, 1, True), (12.1, 1, False), (210, 100, True)]
)
def test_the_bar(through_ms: float, direct_ms: float, holds: bool) -> None:
    assert LatencyBar(2.0, 0.01).holds(through_ms / 1000, direct_ms / 1000) is holds
