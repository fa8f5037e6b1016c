"""The chart's demo brokers: three with Forebay beside each, under a producer and a group, while all is done to them.

The tests of this file build on each other: one release, one load, which loses nothing from the first to the last.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.clients import Load, build_namespace, running_load
from tests.cluster.cluster import Cluster, Object
from tests.cluster.layout import NODE, ClusterError
from tests.cluster.programs import wait_until
from tests.cluster.release import READY_S, SMALL, Release

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
NAMESPACE = "demo"
STATEFUL = "trial-forebay-broker"
PODS = tuple(f"{STATEFUL}-{index}" for index in range(3))
VALUES: Object = {
    "config": {"throttle": {"disks": [{"directory": "/var/lib/kafka/data"}]}},
    "brokerLogMounts": [{"name": "kafka-data", "mountPath": "/var/lib/kafka"}],
    "broker": {
        "enabled": True,
        "replicas": 3,
        "heap": "320m",
        "resources": {"cpu": "150m", "memory": "900Mi", "cpuLimit": False},
        "config": {
            "num.partitions": 6,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
        },
    },
}


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    """Installed into a namespace that enforces Pod Security's strictest level."""
    cluster.apply(build_namespace(NAMESPACE, "restricted"))
    demo = Release(cluster, "trial", NAMESPACE)
    demo.install(SMALL, VALUES)
    yield demo
    demo.remove()


@pytest.fixture(scope="module")
def load(release: Release) -> Iterator[Load]:
    bootstrap = f"trial-forebay-bootstrap.{NAMESPACE}.svc:9092"
    with running_load(release.cluster, "demo", bootstrap, "events") as running:
        running.settle()
        yield running


def uid(release: Release, pod: str) -> str:
    return str(release.pod(pod)["metadata"]["uid"])


def test_helm_test_passes(release: Release) -> None:
    assert "Succeeded" in release.helm("test")


def test_the_throttle_knows_a_fresh_volume(release: Release) -> None:
    """The broker makes its log directory after the sidecar's start; without a restart the throttle finds its disk."""
    for pod in PODS:
        wait_until("the disk", partial(samples_disk, release, pod), 90)
        assert release.count_restarts(pod, "forebay") == 0


def samples_disk(release: Release, pod: str) -> bool:
    return release.metric(pod, "forebay_throttle_disk_sampled{") == 1


def test_a_first_start_warns_of_nothing(release: Release) -> None:
    """A broker that is not up yet is no reason for credentials."""
    for pod in PODS:
        wrong = [line for line in release.forebay_log(pod) if line["level"] in ("warning", "error")]
        assert wrong == []


def test_tailing_readers_are_served_from_memory(release: Release, load: Load) -> None:
    load.settle(500)
    assert release.count_hits(*PODS) > 0


def test_killed_sidecar(release: Release, load: Load) -> None:
    before = release.count_restarts(PODS[0], "kafka")
    with load.watching("sidecar killed"):
        release.kill(PODS[0], "forebay")
    assert release.count_restarts(PODS[0], "kafka") == before


def test_killed_broker(release: Release, load: Load) -> None:
    before = release.count_restarts(PODS[1], "forebay")
    with load.watching("broker killed"):
        release.kill(PODS[1], "kafka")
    assert release.count_restarts(PODS[1], "forebay") == before


def test_drained_node(release: Release, load: Load) -> None:
    """The eviction API: the budget lets one broker go at a time, and refuses the second meanwhile."""
    old = [uid(release, pod) for pod in PODS]
    with load.watching("node drained, one broker after the other"):
        release.kubectl("cordon", NODE)
        release.evict(PODS[2])
        with pytest.raises(ClusterError, match="disruption budget"):
            release.evict(PODS[0])
        release.kubectl("uncordon", NODE)
        wait_until("the old pod's end", lambda: uid(release, PODS[2]) != old[2], READY_S)
        release.wait_ready(*PODS)
    assert uid(release, PODS[0]) == old[0]


def test_changed_configuration(release: Release, load: Load) -> None:
    """Rolls the brokers one by one, and only once."""
    old = [uid(release, pod) for pod in PODS]
    with load.watching("configuration changed (rolling upgrade)"):
        release.install(SMALL, VALUES, {"config": {"log": {"level": "debug"}}})
        release.wait_rolled(STATEFUL)
    assert all(uid(release, pod) != one for pod, one in zip(PODS, old, strict=True))
    assert "debug" in release.ask(PODS[0], "/config")


def test_rollback(release: Release, load: Load) -> None:
    with load.watching("rolled back"):
        release.helm("rollback", "1", "--wait")
        release.wait_rolled(STATEFUL)
    assert '"level": "info"' in release.ask(PODS[0], "/config")


def test_an_image_that_is_not_there_stops_the_roll_at_the_first_broker(
    release: Release, load: Load
) -> None:
    with load.watching("upgrade to an image that is not there, and rolled back"):
        release.install(SMALL, VALUES, {"image": {"tag": "absent"}}, waits=False)
        wait_until("the last broker to wait", lambda: is_waiting(release, PODS[2]), READY_S)
        assert release.is_ready(PODS[0]) and release.is_ready(PODS[1])
        release.helm("rollback", "3")
        # The StatefulSet's controller waits for a pod of the refused version to become ready, which it never does.
        release.kubectl("delete", "pod", PODS[2])
        release.wait_rolled(STATEFUL)
        release.wait_ready(*PODS)


def is_waiting(release: Release, pod: str) -> bool:
    found = release.pod(pod)["status"].get("initContainerStatuses", [{}])
    return "waiting" in found[0].get("state", {}) and "Image" in str(found[0]["state"])
