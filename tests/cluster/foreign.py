"""Brokers that somebody else owns: a StatefulSet that Forebay's chart neither renders nor changes. [none]

Owns its objects. It stands for an operator's brokers: what a test may choose of it is what operators let their users
choose: the labels of pods, and what the client listener advertises.
"""

from collections.abc import Mapping

from tests.cluster.cluster import Cluster, Object
from tests.cluster.images import KAFKA
from tests.cluster.layout import DOMAIN

NAME, REPLICAS, CLIENT_PORT = "kafka", 3, 9092
PODS = tuple(f"{NAME}-{index}" for index in range(REPLICAS))
LABELS = {"app": NAME}
CLUSTER_ID = "Rm9yZWJheUZvcmVpZ24hIQ"
SCRIPT = """
set -eu
id=${HOSTNAME##*-}
sed "s/{nodeId}/$id/g" /etc/kafka/server.properties > /tmp/server.properties
echo "node.id=$id" >> /tmp/server.properties
/opt/kafka/bin/kafka-storage.sh format --ignore-formatted -t "$CLUSTER_ID" -c /tmp/server.properties
exec /opt/kafka/bin/kafka-server-start.sh /tmp/server.properties
"""


def build_properties(namespace: str, advertised: str) -> str:
    """server.properties, {nodeId} standing for the broker's index. `advertised`: HOST:PORT of the client listener."""
    domain = f"{NAME}.{namespace}.svc.{DOMAIN}"
    voters = ",".join(f"{index}@{pod}.{domain}:9093" for index, pod in enumerate(PODS))
    kinds = ("CLIENT", "INTERNAL", "CONTROLLER")
    pairs = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": ",".join(f"{kind}:PLAINTEXT" for kind in kinds),
        "listeners": f"CLIENT://:{CLIENT_PORT},INTERNAL://:9094,CONTROLLER://:9093",
        "advertised.listeners": f"CLIENT://{advertised},INTERNAL://{NAME}-{{nodeId}}.{domain}:9094",
        "log.dirs": "/var/lib/kafka/data",
        "num.partitions": "6",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
    }
    return "".join(f"{key}={value}\n" for key, value in pairs.items())


def build_brokers(namespace: str, advertised: str, labels: Mapping[str, str]) -> list[Object]:
    """The owner's objects. `labels`: further ones of the pods."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "data": {"server.properties": build_properties(namespace, advertised)},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": LABELS,
            "ports": [{"name": "clients", "port": CLIENT_PORT}],
        },
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
        },
    }
    stateful = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME},
        "spec": {
            "serviceName": NAME,
            "replicas": REPLICAS,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": {**LABELS, **labels}}, "spec": _build_pod()},
            "volumeClaimTemplates": [claim],
        },
    }
    return [config, service, stateful]


def _build_pod() -> Object:
    broker = {
        "name": "kafka",
        "image": KAFKA,
        "command": ["/bin/bash", "-c", SCRIPT],
        "env": [
            {"name": "CLUSTER_ID", "value": CLUSTER_ID},
            {"name": "KAFKA_HEAP_OPTS", "value": "-Xmx320m"},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "700Mi"}},
        "readinessProbe": {"tcpSocket": {"port": CLIENT_PORT}, "periodSeconds": 2},
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/kafka"},
            {"name": "config", "mountPath": "/etc/kafka"},
        ],
    }
    return {
        "containers": [broker],
        "securityContext": {"fsGroup": 1000, "runAsUser": 1000, "runAsNonRoot": True},
        "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    }


def create_brokers(
    cluster: Cluster, namespace: str, advertised: str, labels: Mapping[str, str] | None = None
) -> None:
    """What the owner does: apply the objects."""
    cluster.apply(*build_brokers(namespace, advertised, labels or {}), namespace=namespace)


def restart_brokers(cluster: Cluster, namespace: str) -> None:
    """What the owner does: roll all brokers, and wait."""
    stateful = f"statefulset/{NAME}"
    cluster.kubectl("-n", namespace, "rollout", "restart", stateful)
    cluster.kubectl("-n", namespace, "rollout", "status", stateful, "--timeout=300s", timeout_s=310)
