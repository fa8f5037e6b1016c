"""Pod Security Standards: what a namespace that enforces `restricted` refuses of a pod.

Owns the rules of https://kubernetes.io/docs/concepts/security/pod-security-standards/ (from version 1.29 on), those of
`baseline` included, as far as a chart can break them. Knows nothing of Forebay.
"""

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
VOLUMES |= {"projected", "secret"}
SECCOMP = ("RuntimeDefault", "Localhost")


def list_violations(pod: Object) -> list[str]:
    """The reasons, one line each, why the pod's spec is refused; empty: it is admitted."""
    return [*_check_pod(pod), *(reason for one in _containers(pod) for reason in _check(pod, one))]


def _containers(pod: Object) -> Iterator[Object]:
    for key in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(key, ())


def _check_pod(pod: Object) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", ()):
        if kinds := set(volume) - {"name"} - VOLUMES:
            yield f"volume {volume['name']}: {', '.join(sorted(kinds))}"


def _check(pod: Object, container: Object) -> Iterator[str]:
    name, of_pod = container["name"], pod.get("securityContext", {})
    context = container.get("securityContext", {})
    either = {**of_pod, **context}
    if either.get("runAsNonRoot") is not True:
        yield f"{name}: runAsNonRoot is not true"
    if either.get("runAsUser") == 0:
        yield f"{name}: runAsUser is 0"
    if either.get("seccompProfile", {}).get("type") not in SECCOMP:
        yield f"{name}: no seccompProfile"
    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{name}: keeps capabilities"
    if added := set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"{name}: adds {', '.join(sorted(added))}"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield f"{name}: hostPort"
