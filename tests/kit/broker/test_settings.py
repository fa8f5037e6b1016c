"""server.properties says what was asked for."""

from pathlib import Path

from tests.kit.broker.certificates import Identity, TlsFiles
from tests.kit.broker.settings import (
    CONTROLLER,
    DIRECT,
    Listener,
    Node,
    build_addresses,
    build_properties,
    build_scram_arguments,
)

NODE = Node(1, {CONTROLLER: 11, DIRECT: 12, "CLIENT": 13})
OTHER = Node(2, {CONTROLLER: 21, DIRECT: 22, "CLIENT": 23})
SERVER = Identity(Path("b.crt"), Path("b.key"), Path("b.pem"))
TLS = TlsFiles(Path("ca.crt"), SERVER, SERVER)


def build(listener: Listener, **options: object) -> dict[str, str]:
    text = build_properties(
        NODE,
        [NODE, OTHER],
        Path("data"),
        listeners=[listener],
        users={"alice": "secret"},
        tls=TLS,
        authorizer=bool(options.pop("authorizer", False)),
        overrides=options,
    )
    return dict(line.split("=", 1) for line in text.splitlines())


def test_client_listener_may_advertise_another_address() -> None:
    said = build(Listener("CLIENT", advertised=("forebay", 9092)))
    assert (
        said["listeners"] == "CONTROLLER://127.0.0.1:11,DIRECT://127.0.0.1:12,CLIENT://127.0.0.1:13"
    )
    assert said["advertised.listeners"] == "DIRECT://127.0.0.1:12,CLIENT://forebay:9092"
    assert said["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:21"


def test_security_is_per_listener() -> None:
    said = build(Listener("CLIENT", "SASL_SSL", ("PLAIN", "SCRAM-SHA-512"), max_reauth_ms=5000))
    prefix = "listener.name.client."
    assert (
        said["listener.security.protocol.map"]
        == "CONTROLLER:PLAINTEXT,DIRECT:PLAINTEXT,CLIENT:SASL_SSL"
    )
    assert said[f"{prefix}ssl.keystore.location"] == "b.pem"
    assert said[f"{prefix}sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-512"
    assert said[f"{prefix}plain.sasl.jaas.config"].endswith('required user_alice="secret";')
    assert said[f"{prefix}scram-sha-512.connections.max.reauth.ms"] == "5000"


def test_overrides_and_listener_properties_win() -> None:
    said = build(
        Listener(
            "CLIENT",
            "SSL",
            properties={"ssl.client.auth": "required", "ssl.keystore.location": "mine.pem"},
        ),
        **{"num.io.threads": 9},
    )
    assert said["listener.name.client.ssl.client.auth"] == "required"
    assert said["listener.name.client.ssl.keystore.location"] == "mine.pem"
    assert said["num.io.threads"] == "9"


def test_authorizer_only_when_asked_for() -> None:
    assert "authorizer.class.name" not in build(Listener("CLIENT"))
    assert build(Listener("CLIENT"), authorizer=True)["super.users"] == "User:ANONYMOUS;User:admin"


def test_scram_users_are_made_once_a_mechanism() -> None:
    listeners = [
        Listener("A", "SASL_SSL", ("SCRAM-SHA-256", "PLAIN")),
        Listener("B", "SASL_SSL", ("SCRAM-SHA-256",)),
    ]
    made = build_scram_arguments(listeners, {"alice": "secret"})
    assert made == ["--add-scram", "SCRAM-SHA-256=[name=alice,iterations=4096,password=secret]"]


def test_each_node_advertises_its_own_sidecar() -> None:
    listener = Listener("CLIENT", advertised={1: ("127.0.0.1", 9001)})
    nodes = [Node(number, {"CONTROLLER": 1, "DIRECT": 2, "CLIENT": 3}) for number in (1, 2)]
    said = [str(build_addresses(node, [listener])["advertised.listeners"]) for node in nodes]
    assert "CLIENT://127.0.0.1:9001" in said[0]
    assert "CLIENT://127.0.0.1:3" in said[1]
