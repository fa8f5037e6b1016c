"""Plans how a pod changes that gets the sidecar. [none]

Owns the JSON patch and the answer to an AdmissionReview (admission.k8s.io/v1). Must not know how it is
asked, nor what the sidecar consists of: the chart says so. Invariants:
* a pod is always admitted: what cannot be injected is said in a warning.
* idempotent: a pod that has the sidecar is left as it is. The API server asks again where another webhook has
  changed the pod since (reinvocationPolicy).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Literal

Object = dict[str, Any]
ReviewResult = Literal["injected", "present", "refused"]
API_VERSION = "admission.k8s.io/v1"


class BadReview(ValueError):
    """A request that is no AdmissionReview of a pod."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a pod gets: containers and volumes to add, labels and annotations to set, and seconds for the sidecar's
    own stop.
    """

    init_containers: list[Object]
    volumes: list[Object]
    labels: dict[str, str]
    annotations: dict[str, str]
    grace_s: int
    image_pull_secrets: list[Object] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InjectionPlan:
    """A JSON patch (RFC 6902), empty where nothing changes; and why the sidecar was refused, or ""."""

    result: ReviewResult
    operations: list[Object]
    warning: str = ""


def scan_sidecar(text: str) -> Sidecar:
    """Read what the chart's ConfigMap holds. Raises ValueError if it is something else."""
    said = json.loads(text)
    try:
        return Sidecar(
            said["initContainers"],
            said["volumes"],
            said["labels"],
            said["annotations"],
            int(said["graceSeconds"]),
            said.get("imagePullSecrets") or [],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a sidecar: {error!r}") from error


def scan_review(body: bytes) -> tuple[str, Object]:
    """The uid of a request, and its pod. Raises BadReview."""
    try:
        review = json.loads(body)
        request = review["request"]
        uid, pod = request["uid"], request["object"]
        is_pod = isinstance(uid, str) and isinstance(pod["spec"], dict)
    except (ValueError, KeyError, TypeError) as error:
        raise BadReview(f"not an AdmissionReview of a pod: {error!r}") from error
    if not is_pod or review.get("apiVersion") != API_VERSION:
        raise BadReview(f"not an AdmissionReview of a pod in {API_VERSION}")
    return uid, pod


def plan_injection(pod: Object, sidecar: Sidecar) -> InjectionPlan:
    """Plan the patch that gives the pod the sidecar, before its other init containers."""
    spec, metadata = pod["spec"], pod.get("metadata") or {}
    init = spec.get("initContainers") or []
    volumes = spec.get("volumes") or []
    wanted = _names(sidecar.init_containers)
    if wanted <= _names(init):
        return InjectionPlan("present", [])
    taken = wanted & (_names(init) | _names(spec.get("containers") or []))
    taken |= _names(sidecar.volumes) & _names(volumes)
    if taken:
        named = ", ".join(sorted(taken))
        return InjectionPlan(
            "refused", [], f"Forebay was not injected: the pod already has {named}"
        )
    grace_s = int(spec.get("terminationGracePeriodSeconds") or 0)
    changed: Object = {
        "/spec/initContainers": [*sidecar.init_containers, *init],
        "/spec/volumes": [*volumes, *sidecar.volumes],
        "/spec/terminationGracePeriodSeconds": grace_s + sidecar.grace_s,
        "/spec/enableServiceLinks": False,  # variables named by Services look like configuration
        "/metadata/labels": {**(metadata.get("labels") or {}), **sidecar.labels},
        "/metadata/annotations": {**(metadata.get("annotations") or {}), **sidecar.annotations},
    }
    secrets = spec.get("imagePullSecrets") or []
    missing = [one for one in sidecar.image_pull_secrets if one not in secrets]
    if missing:
        changed["/spec/imagePullSecrets"] = [*secrets, *missing]
    return InjectionPlan(
        "injected",
        [{"op": "add", "path": path, "value": value} for path, value in changed.items()],
    )


def build_answer(uid: str, plan: InjectionPlan) -> bytes:
    """The AdmissionReview that answers the request of `uid`."""
    response: Object = {"uid": uid, "allowed": True}
    if plan.operations:
        patch = base64.b64encode(json.dumps(plan.operations).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    if plan.warning:
        response["warnings"] = [plan.warning]
    review = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    return json.dumps(review).encode()


def _names(items: list[Object]) -> set[str]:
    return {str(item.get("name")) for item in items}
