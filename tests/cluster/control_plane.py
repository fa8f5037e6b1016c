"""etcd, the API server, the controllers and the scheduler. [process]

Owns their flags, the tokens and the kubeconfig files. Must not know whether there is a node.
Invariants: every user's token is made anew for each cluster and lies in files that only their owner can read.
"""

import json
import secrets
from typing import NamedTuple

from tests.cluster.layout import DOMAIN, NODE, SERVICES, State, find_kube
from tests.cluster.programs import build_kubectl, run, start, wait_until

ADMINISTRATORS = ("admin", "controllers", "scheduler", "dns", "proxy")
START_S = 180.0


class Place(NamedTuple):
    """Where the API server listens: `address` is told to clients. The four ports above `port` are the others'."""

    address: str
    bind: str
    port: int

    def port_of(self, offset: int) -> str:
        return str(self.port + offset)

    def url_of(self, offset: int) -> str:
        """An address of etcd, which is asked over the loopback alone."""
        return f"http://127.0.0.1:{self.port + offset}"


def start_control_plane(state: State, place: Place) -> None:
    """Start all four and return when the API server and the controllers work."""
    _write_users(state, place)
    start(state, "etcd", _build_etcd(state, place))
    start(state, "kube-apiserver", _build_apiserver(state, place))
    kubectl = build_kubectl(state)
    wait_until("the API server", lambda: run([*kubectl, "get", "--raw", "/readyz"]), START_S)
    start(state, "kube-controller-manager", _build_controllers(state, place))
    start(state, "kube-scheduler", _build_scheduler(state, place))
    wait_until(
        "the controllers", lambda: run([*kubectl, "get", "serviceaccount", "default"]), START_S
    )


def _write_users(state: State, place: Place) -> None:
    users = [(name, name, "system:masters") for name in ADMINISTRATORS]
    users.append((NODE, f"system:node:{NODE}", "system:nodes"))
    lines = []
    for name, user, group in users:
        token = secrets.token_hex(16)
        lines.append(f"{token},{user},{user},{group}\n")
        state.write(f"{name}.kubeconfig", _build_kubeconfig(state, place, token), mode=0o600)
    state.write("tokens", "".join(lines), mode=0o600)
    key = state.path("service-accounts.key")
    run(["openssl", "genrsa", "-out", key, "2048"])


def _build_kubeconfig(state: State, place: Place, token: str) -> str:
    cluster = {
        "server": f"https://{place.address}:{place.port}",
        "tls-server-name": "kubernetes.default.svc",
        "certificate-authority": str(state.path("certificates", "apiserver.crt")),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "contexts": [{"name": "only", "context": {"cluster": "only", "user": "only"}}],
        "clusters": [{"name": "only", "cluster": cluster}],
        "users": [{"name": "only", "user": {"token": token}}],
    }
    return json.dumps(config)  # JSON is YAML


def _build_etcd(state: State, place: Place) -> list[str]:
    clients, peers = place.url_of(1), place.url_of(2)
    return [
        str(find_kube()),
        "etcd",
        "--name=only",
        f"--data-dir={state.path('etcd')}",
        "--unsafe-no-fsync",  # a cluster that ends with its machine
        "--log-level=warn",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=only={peers}",
    ]


def _build_apiserver(state: State, place: Place) -> list[str]:
    key = state.path("service-accounts.key")
    return [
        str(find_kube()),
        "kube-apiserver",
        f"--etcd-servers={place.url_of(1)}",
        f"--secure-port={place.port}",
        f"--bind-address={place.bind}",
        f"--advertise-address={place.address}",
        f"--cert-dir={state.path('certificates')}",
        f"--token-auth-file={state.path('tokens')}",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        f"--service-cluster-ip-range={SERVICES}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
    ]


def _build_controllers(state: State, place: Place) -> list[str]:
    return [
        str(find_kube()),
        "kube-controller-manager",
        f"--kubeconfig={state.path('controllers.kubeconfig')}",
        "--leader-elect=false",
        f"--service-account-private-key-file={state.path('service-accounts.key')}",
        f"--root-ca-file={state.path('certificates', 'apiserver.crt')}",
        "--use-service-account-credentials",
        "--bind-address=127.0.0.1",
        f"--secure-port={place.port_of(3)}",
        f"--cert-dir={state.path('certificates')}",
    ]


def _build_scheduler(state: State, place: Place) -> list[str]:
    return [
        str(find_kube()),
        "kube-scheduler",
        f"--kubeconfig={state.path('scheduler.kubeconfig')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={place.port_of(4)}",
        f"--cert-dir={state.path('certificates')}",
    ]
