"""Another webhook of the cluster, which changes pods after Forebay's: the injector's program with another sidecar.

Owns its objects. Its configuration sorts behind Forebay's, so that the API server asks it last and Forebay's again.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.cluster.cluster import Object
from tests.cluster.images import FOREBAY, KAFKA, find_tag
from tests.cluster.programs import run
from tests.cluster.release import Release

NAME = "zz-stranger"
SIDECAR = {
    "initContainers": [{"name": "stranger", "image": KAFKA, "command": ["true"]}],
    "volumes": [],
    "labels": {},
    "annotations": {},
    "graceSeconds": 0,
}


@contextmanager
def install_stranger(release: Release, label: Mapping[str, str]) -> Iterator[None]:
    """The webhook, ready, for pods with this label in the release's namespace."""
    namespace, cluster = release.namespace, release.cluster
    directory = cluster.state.path("stranger", "tls.crt").parent
    certificate, key = directory / "tls.crt", directory / "tls.key"
    host = f"{NAME}.{namespace}.svc"
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    new += ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    run([*new, "-keyout", key, "-out", certificate])
    files = {"sidecar.json": json.dumps(SIDECAR)}
    files |= {"tls.crt": certificate.read_text(), "tls.key": key.read_text()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": files}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": 443, "targetPort": 9443}]},
    }
    cluster.apply(secret, service, _build_pod(), namespace=namespace)
    release.wait_ready(NAME)
    authority = base64.b64encode(certificate.read_bytes()).decode()
    cluster.apply(_build_configuration(namespace, host, authority, label))
    try:
        yield
    finally:
        cluster.kubectl("delete", "mutatingwebhookconfiguration", NAME)
        release.kubectl("delete", "pod", NAME, "--grace-period=0", "--force")


def _build_pod() -> Object:
    mount = "/etc/stranger"
    flags = ["--listen=:9443", f"--sidecar={mount}/sidecar.json"]
    flags += [f"--certificate={mount}/tls.crt", f"--key={mount}/tls.key"]
    container = {
        "name": "webhook",
        "image": f"{FOREBAY}:{find_tag()}",
        "args": ["injector", *flags],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": 9443, "scheme": "HTTPS"},
            "periodSeconds": 1,
        },
        "volumeMounts": [{"name": "files", "mountPath": mount}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "files", "secret": {"secretName": NAME}}],
        "enableServiceLinks": False,
    }
    metadata = {"name": NAME, "labels": {"app": NAME}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _build_configuration(
    namespace: str, host: str, authority: str, label: Mapping[str, str]
) -> Object:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    service = {"namespace": namespace, "name": NAME, "path": "/inject"}
    webhook = {
        "name": host,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": dict(label)},
        "rules": [rule],
        "clientConfig": {"service": service, "caBundle": authority},
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [webhook],
    }
