"""The patch of a pod: complete, idempotent, and never a refusal of the pod itself."""

import base64
import json
from typing import Any

import pytest

from proxy.injector.patch import (
    API_VERSION,
    BadReview,
    InjectionPlan,
    Sidecar,
    build_answer,
    plan_injection,
    scan_review,
    scan_sidecar,
)

SIDECAR = Sidecar(
    init_containers=[{"name": "forebay", "restartPolicy": "Always"}],
    volumes=[{"name": "forebay-config", "configMap": {"name": "forebay"}}],
    labels={"forebay/sidecar": "forebay"},
    annotations={"forebay/config-checksum": "1"},
    grace_s=30,
    image_pull_secrets=[{"name": "registry"}],
)


def apply(pod: dict[str, Any], plan: InjectionPlan) -> dict[str, Any]:
    """The pod after a patch whose operations all add a member of an object."""
    changed: dict[str, Any] = json.loads(json.dumps(pod))
    for operation in plan.operations:
        assert operation["op"] == "add"
        _, section, member = operation["path"].split("/")
        changed[section][member] = operation["value"]
    return changed


def build_pod(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "kafka-0", "labels": {"app": "kafka"}},
        "spec": {"containers": [{"name": "kafka"}], "terminationGracePeriodSeconds": 60, **spec},
    }


def test_a_pod_gets_everything_and_keeps_what_it_had() -> None:
    pod = build_pod(
        initContainers=[{"name": "prepare"}],
        volumes=[{"name": "data"}],
        imagePullSecrets=[{"name": "own"}],
    )
    changed = apply(pod, plan_injection(pod, SIDECAR))
    spec, metadata = changed["spec"], changed["metadata"]
    assert [one["name"] for one in spec["initContainers"]] == ["forebay", "prepare"]
    assert [one["name"] for one in spec["volumes"]] == ["data", "forebay-config"]
    assert spec["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["enableServiceLinks"] is False
    assert spec["containers"] == pod["spec"]["containers"]
    assert metadata["labels"] == {"app": "kafka", "forebay/sidecar": "forebay"}
    assert metadata["annotations"] == {"forebay/config-checksum": "1"}


def test_asked_again_it_changes_nothing() -> None:
    pod = build_pod()
    changed = apply(pod, plan_injection(pod, SIDECAR))
    assert plan_injection(changed, SIDECAR) == InjectionPlan("present", [])


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ({"containers": [{"name": "forebay"}]}, "forebay"),
        ({"volumes": [{"name": "forebay-config"}]}, "forebay-config"),
    ],
)
def test_a_name_that_is_taken_leaves_the_pod_alone_and_warns(
    spec: dict[str, Any], taken: str
) -> None:
    plan = plan_injection(build_pod(**spec), SIDECAR)
    assert (plan.result, plan.operations) == ("refused", [])
    assert plan.warning.endswith(f"already has {taken}")
    response = json.loads(build_answer("1", plan))["response"]
    assert response == {"uid": "1", "allowed": True, "warnings": [plan.warning]}


def test_the_answer_names_the_request_and_carries_the_patch() -> None:
    pod = build_pod()
    plan = plan_injection(pod, SIDECAR)
    answer = json.loads(build_answer("u-1", plan))
    response = answer["response"]
    assert (answer["apiVersion"], answer["kind"]) == (API_VERSION, "AdmissionReview")
    assert (response["uid"], response["allowed"], response["patchType"]) == (
        "u-1",
        True,
        "JSONPatch",
    )
    assert json.loads(base64.b64decode(response["patch"])) == plan.operations


@pytest.mark.parametrize(
    "review",
    [
        b"",
        b"[]",
        b"{}",
        b'{"apiVersion": "v1", "request": {"uid": "1", "object": {"spec": {}}}}',
        b'{"apiVersion": "admission.k8s.io/v1", "request": {"uid": 1, "object": {"spec": {}}}}',
        b'{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "1", "object": null}}',
    ],
)
def test_what_is_no_review_of_a_pod_is_told_apart(review: bytes) -> None:
    with pytest.raises(BadReview):
        scan_review(review)


def test_a_review_is_read() -> None:
    pod = build_pod()
    review = {"apiVersion": API_VERSION, "request": {"uid": "1", "object": pod}}
    assert scan_review(json.dumps(review).encode()) == ("1", pod)


def test_a_file_that_is_no_sidecar_is_refused() -> None:
    for text in ("", "{}", '{"initContainers": []}', "[]"):
        with pytest.raises(ValueError):
            scan_sidecar(text)
