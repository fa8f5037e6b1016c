"""The injector before brokers that somebody else owns: a label on their pods is all that they change."""

from collections.abc import Iterator

import pytest

from tests.cluster import foreign
from tests.cluster.clients import Load, build_namespace, running_load
from tests.cluster.cluster import Cluster, Object
from tests.cluster.images import KAFKA
from tests.cluster.layout import DOMAIN
from tests.cluster.programs import wait_until
from tests.cluster.release import READY_S, SMALL, Release, merge
from tests.cluster.strangers import install_stranger

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
NAMESPACE, NAME, PORT = "injected", "cache", 9192
LABEL = {"forebay/inject": NAME}
ADVERTISED = f"kafka-{{nodeId}}.kafka.{NAMESPACE}.svc.{DOMAIN}:{PORT}"
VALUES: Object = merge(
    SMALL,
    {
        "fullnameOverride": NAME,
        "config": {
            "listeners": [
                {
                    "name": "clients",
                    "listen": f":{PORT}",
                    "upstream": f"127.0.0.1:{foreign.CLIENT_PORT}",
                }
            ]
        },
        "injector": {"enabled": True, "replicas": 1, "resources": {"cpu": "20m"}},
        "brokerLogMounts": [{"name": "data", "mountPath": "/var/lib/kafka"}],
    },
)


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    cluster.apply(build_namespace(NAMESPACE))
    injector = Release(cluster, NAME, NAMESPACE)
    injector.install(VALUES)
    foreign.create_brokers(cluster, NAMESPACE, ADVERTISED, LABEL)
    wait_until("the brokers", lambda: injector.is_ready(foreign.PODS[0]), READY_S)
    injector.wait_ready(*foreign.PODS)
    yield injector
    injector.remove()


@pytest.fixture(scope="module")
def load(release: Release) -> Iterator[Load]:
    bootstrap = f"{NAME}-bootstrap.{NAMESPACE}.svc:{PORT}"
    with running_load(release.cluster, "injector", bootstrap, "events") as running:
        running.settle()
        yield running


def find_injector(release: Release) -> str:
    """The name of the injector's pod."""
    selector = "app.kubernetes.io/component=injector"
    found = release.cluster.get("pod", "-n", NAMESPACE, "-l", selector)["items"]
    running = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
    return str(running[0]["metadata"]["name"])


def test_helm_test_passes(release: Release) -> None:
    assert "Succeeded" in release.helm("test")


def test_every_broker_has_a_native_sidecar(release: Release) -> None:
    for pod in foreign.PODS:
        spec = release.pod(pod)["spec"]
        (sidecar,) = spec["initContainers"]
        assert (sidecar["name"], sidecar["restartPolicy"]) == ("forebay", "Always")
        assert spec["terminationGracePeriodSeconds"] == 60 + 25 + 5
        assert spec["enableServiceLinks"] is False


def test_the_owners_template_is_unchanged(release: Release) -> None:
    stateful = release.cluster.get("statefulset", foreign.NAME, "-n", NAMESPACE)
    assert "initContainers" not in stateful["spec"]["template"]["spec"]


def test_readers_are_served_from_memory(release: Release, load: Load) -> None:
    load.settle(500)
    assert release.count_hits(*foreign.PODS) > 0


def test_killed_sidecar(release: Release, load: Load) -> None:
    before = release.count_restarts("kafka-0", "kafka")
    with load.watching("injected sidecar killed"):
        release.kill("kafka-0", "forebay")
    assert release.count_restarts("kafka-0", "kafka") == before


def test_brokers_that_their_owner_rolls_get_it_again(release: Release, load: Load) -> None:
    with load.watching("injected: the owner restarts all brokers, one by one"):
        foreign.restart_brokers(release.cluster, NAMESPACE)
        release.wait_ready(*foreign.PODS)
    for pod in foreign.PODS:
        assert len(release.pod(pod)["spec"]["initContainers"]) == 1


def test_an_upgrade_keeps_the_certificate(release: Release) -> None:
    def authority() -> str:
        name = f"{NAME}-injector-{NAMESPACE}"
        found = release.cluster.get("mutatingwebhookconfiguration", name)
        return str(found["webhooks"][0]["clientConfig"]["caBundle"])

    before = authority()
    release.install(VALUES, {"helmTest": {"enabled": False}})
    assert authority() == before


def test_asked_again_after_a_strangers_webhook_it_adds_nothing(release: Release) -> None:
    """The API server asks again where a later webhook has changed the pod (reinvocationPolicy IfNeeded)."""
    with install_stranger(release, LABEL):
        create_pod(release, "twice")
        spec = release.pod("twice")["spec"]
        assert sorted(one["name"] for one in spec["initContainers"]) == ["forebay", "stranger"]
        shown = read_counts(release)
        assert shown["present"] >= 1 and shown["failed"] == 0
    release.kubectl("delete", "pod", "twice", "--grace-period=0", "--force")


def read_counts(release: Release) -> dict[str, float]:
    """How often the injector's pod did what."""
    address = release.pod(find_injector(release))["status"]["podIP"]
    program = (
        "import ssl, sys, urllib.request as r; c = ssl._create_unverified_context(); "
        "print(r.urlopen(sys.argv[1], timeout=10, context=c).read().decode())"
    )
    text = release.cluster.run("python3", "-c", program, f"https://{address}:9443/metrics")
    samples = [line for line in text.splitlines() if line.startswith("forebay_injector_reviews")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in samples}


def create_pod(release: Release, name: str) -> None:
    """A pod with the label, as an operator would create one."""
    container = {"name": "main", "image": KAFKA, "command": ["sleep", "infinity"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABEL},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "securityContext": {"fsGroup": 1000, "runAsUser": 1000},
            "terminationGracePeriodSeconds": 1,
        },
    }
    release.create(pod)


def test_without_an_injector_brokers_start_all_the_same(release: Release) -> None:
    """failurePolicy Ignore: the pod has no sidecar, and the command of the notes lists it."""
    release.kubectl("scale", f"deployment/{NAME}-injector", "--replicas=0")
    wait_until("no injector", lambda: count_injectors(release) == 0, READY_S)
    create_pod(release, "without")
    release.wait_ready("without")
    assert "initContainers" not in release.pod("without")["spec"]
    notes = release.cluster.helm("get", "notes", NAME, "-n", NAMESPACE)
    (line,) = [line for line in notes.splitlines() if "!forebay/sidecar" in line]
    selector = line.partition("-l ")[2].strip().strip("'")
    assert "pod/without" in release.kubectl("get", "pod", "-o", "name", "-l", selector)


def count_injectors(release: Release) -> int:
    selector = "app.kubernetes.io/component=injector"
    return len(release.cluster.get("pod", "-n", NAMESPACE, "-l", selector)["items"])
