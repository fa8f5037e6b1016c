"""The node: the first process of namespaces of its own. [process]

    unshare --mount --uts --ipc --net --pid --fork --mount-proc python -m tests.cluster.node STATE

Owns the namespaces' mounts and network, containerd, the kubelet, the proxy, DNS and the node's volumes. Must not
know the tests. Invariants:
* nothing outside of the namespaces is changed, but for control groups below one name, and the state directory.
* all processes of the cluster are descendants of this one: when it ends, the kernel ends them.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import yaml

from tests.cluster.control_plane import Place, start_control_plane
from tests.cluster.layout import (
    API_PORT,
    DOMAIN,
    FIRST_POD,
    NODE,
    NODE_IP,
    PODS,
    VOLUMES,
    State,
    find_image,
    find_kube,
    find_packages,
)
from tests.cluster.programs import build_kubectl, run, start, wait_until

START_S = 180.0
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "systemd",
)
WEIGHT = 16 * 1024
"""All pods together count as one of the machine's processes, whose weight is 1024: they get that of sixteen."""
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What the kubelet sets for the whole machine, unless it finds these values."""


def main(directory: Path) -> None:
    """Bring the cluster up, then reap orphans until the end."""
    state = State(directory)
    os.umask(0o022)  # with a stricter one, containers could not read their own root
    _mount(state)
    _connect()
    start_control_plane(state, Place(NODE_IP, "0.0.0.0", API_PORT))
    _make_cgroups(state)
    _start_containerd(state)
    _start_node_agents(state)
    _wait_for_node(state)
    state.ready.touch()
    while True:
        with suppress(ChildProcessError):
            os.wait()
            continue
        signal.pause()


def _mount(state: State) -> None:
    run(["mount", "--make-rshared", "/"])
    packages = find_packages()
    run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={packages}/usr:/usr", "/usr"])
    upper, work = state.path("var", "upper"), state.path("var", "work")
    for path in (upper, work):
        path.mkdir()
    layers = f"lowerdir=/var,upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "overlay", "-o", layers, "/var"])
    run(["mount", "-t", "tmpfs", "tmpfs", "/run"])
    search = f"search svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"
    names = state.write("resolv.conf", f"nameserver {NODE_IP}\n{search}")
    run(["mount", "--bind", names, "/etc/resolv.conf"])
    for name, value in SYSCTLS.items():
        seen = state.write(f"sysctl/{name}", f"{value}\n")
        run(["mount", "--bind", seen, f"/proc/sys/{name}"])


def _connect() -> None:
    run(["hostname", NODE])
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "cni0", "type", "bridge"])
    run(["ip", "address", "add", f"{NODE_IP}/16", "dev", "cni0"])
    run(["ip", "link", "set", "cni0", "up"])
    # There is no way out. The kubelet and the proxy find the node's address by the default route.
    run(["ip", "route", "add", "default", "dev", "cni0"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with suppress(OSError):  # absent where bridges never pass the firewall
        Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1")


def _make_cgroups(state: State) -> None:
    if not (CGROUPS / "cpuset").is_dir():
        (CGROUPS / state.cgroup).mkdir(exist_ok=True)
        return
    for name in CONTROLLERS:
        if (CGROUPS / name).is_dir():
            (CGROUPS / name / state.cgroup).mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, and must be set before use
        text = (CGROUPS / "cpuset" / name).read_text()
        (CGROUPS / "cpuset" / state.cgroup / name).write_text(text)
    (CGROUPS / "cpu" / state.cgroup / "cpu.shares").write_text(str(WEIGHT))


def _start_containerd(state: State) -> None:
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(state.path("cni-leases")),
                    "ranges": [[{"subnet": PODS, "rangeStart": FIRST_POD}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    state.write("cni/pods.conflist", json.dumps(network))
    config = state.write(
        "containerd.toml",
        f"""
version = 2
root = "{state.path("containerd")}"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{state.path("containerd-opt")}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{state.path("cni")}"
""",
    )
    start(state, "containerd", ["containerd", "--config", config])
    wait_until("containerd", lambda: run(["ctr", "version"]), START_S)
    run(["ctr", "-n", "k8s.io", "images", "import", find_image("pause")])


def _start_node_agents(state: State) -> None:
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{state.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [NODE_IP],
        "clusterDomain": DOMAIN,
        "resolvConf": str(state.write("resolv-of-pods.conf", "")),
        "podLogsDir": str(state.path("pods")),
        "volumePluginDir": str(state.path("volume-plugins")),
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "5s",  # a changed ConfigMap or Secret is in its volume after seconds
        "configMapAndSecretChangeDetectionStrategy": "Watch",
    }
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(state.path("proxy.kubeconfig"))},
        "clusterCIDR": PODS,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    kube = find_kube()
    start(
        state,
        "kubelet",
        [
            kube,
            "kubelet",
            f"--config={state.write('kubelet.json', json.dumps(kubelet))}",
            f"--kubeconfig={state.path(f'{NODE}.kubeconfig')}",
            f"--root-dir={state.path('kubelet')}",
            f"--cert-dir={state.path('certificates')}",
            f"--node-ip={NODE_IP}",
            f"--hostname-override={NODE}",
        ],
    )
    configured = f"--config={state.write('proxy.json', json.dumps(proxy))}"
    start(state, "kube-proxy", [kube, "kube-proxy", configured, f"--hostname-override={NODE}"])
    asked = f"--kubeconfig={state.path('dns.kubeconfig')}"
    start(state, "dns", [kube, "dns", asked, f"--listen={NODE_IP}:53", f"--domain={DOMAIN}"])


def _wait_for_node(state: State) -> None:
    kubectl = build_kubectl(state)
    wait_until("the node", lambda: run([*kubectl, "get", "node", NODE]), START_S)
    run([*kubectl, "apply", "-f", "-"], stdin=_build_volumes(state))
    ready = ["wait", "--for", "condition=Ready", f"node/{NODE}", "--timeout", "1s"]
    wait_until("the node", lambda: run([*kubectl, *ready]), START_S)


def _build_volumes(state: State) -> str:
    """Local volumes in the default class. The kubelet gives local volumes to `fsGroup`, unlike hostPath."""
    name = "kubernetes.io/hostname"
    here = {"matchExpressions": [{"key": name, "operator": "In", "values": [NODE]}]}
    objects: list[dict[str, object]] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "local",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for number in range(VOLUMES):
        path = state.path("volumes", str(number))
        path.mkdir()
        spec = {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        }
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"local-{number}"},
                "spec": spec,
            }
        )
    return yaml.safe_dump_all(objects)


def remove_cgroups(state: State) -> None:
    """Remove the control groups of a cluster that has ended."""
    for root in (CGROUPS, *CGROUPS.glob("*/")):
        top = root / state.cgroup
        for directory in sorted(top.glob("**/"), key=lambda path: -len(path.parts)):
            with suppress(OSError):
                directory.rmdir()
        with suppress(OSError):
            top.rmdir()


def remove_state(state: State) -> None:
    """Remove the state directory of a cluster that has ended."""
    shutil.rmtree(state.directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
