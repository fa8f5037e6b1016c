"""The injector: it adds what the named templates give, stops no broker, and its certificate fits its name."""

import base64
import json
from typing import Any

import helm_python
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from proxy.injector.patch import plan_injection, scan_sidecar
from tests.helm.chart import Object, Rendered, render, render_scenario, render_sidecar
from tests.helm.pod_security import list_violations

VALUES = {"injector": {"enabled": True}}


def sidecar_text(rendered: Rendered) -> str:
    text: str = rendered.objects_of("sidecar.json")["data"]["sidecar.json"]
    return text


def test_what_it_adds_is_what_the_named_templates_give() -> None:
    values = {"config": {"log": {"level": "debug"}}, "resources": {"cpu": "2", "memory": "4Gi"}}
    found = scan_sidecar(sidecar_text(render({**VALUES, **values})))
    (container,) = found.init_containers
    own = render_sidecar(values)
    assert container == own.container
    names = {volume["name"] for volume in found.volumes}
    assert names == set(own.mounts)
    assert found.grace_s == 30


def test_what_it_makes_of_a_pod_is_admitted_under_restricted() -> None:
    plan = plan_injection(
        {"metadata": {}, "spec": {"containers": []}}, scan_sidecar(sidecar_text(render(VALUES)))
    )
    changed = {one["path"].rpartition("/")[2]: one["value"] for one in plan.operations}
    pod = {"initContainers": changed["initContainers"], "volumes": changed["volumes"]}
    assert list_violations({"containers": [], **pod}) == []
    assert changed["labels"] == {"forebay/sidecar": "trial-forebay"}


def webhook_of(rendered: Rendered) -> Object:
    (webhook,) = rendered.one("MutatingWebhookConfiguration")["webhooks"]
    found: Object = webhook
    return found


def test_it_stops_no_broker_and_sees_only_labelled_pods_of_its_namespace() -> None:
    webhook = webhook_of(render(VALUES))
    assert (webhook["failurePolicy"], webhook["reinvocationPolicy"]) == ("Ignore", "IfNeeded")
    assert webhook["timeoutSeconds"] <= 10 and webhook["sideEffects"] == "None"
    assert webhook["objectSelector"] == {"matchLabels": {"forebay/inject": "trial-forebay"}}
    assert webhook["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kafka"}
    deployment = render(VALUES).one("Deployment")["spec"]["template"]
    assert "forebay/inject" not in deployment["metadata"]["labels"]
    assert list_violations(deployment["spec"]) == []


def test_the_charts_certificate_is_for_the_services_name() -> None:
    rendered = render(VALUES)
    data = {name: base64.b64decode(text) for name, text in rendered.one("Secret")["data"].items()}
    service = webhook_of(rendered)["clientConfig"]["service"]
    authority = base64.b64decode(webhook_of(rendered)["clientConfig"]["caBundle"])
    assert authority == data["ca.crt"]
    signer, shown = (x509.load_pem_x509_certificate(data[name]) for name in ("ca.crt", "tls.crt"))
    names: Any = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"{service['name']}.kafka.svc"]
    key = signer.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert isinstance(shown.signature_hash_algorithm, hashes.HashAlgorithm)
    key.verify(
        shown.signature,
        shown.tbs_certificate_bytes,
        padding.PKCS1v15(),
        shown.signature_hash_algorithm,
    )
    assert (shown.not_valid_after_utc - shown.not_valid_before_utc).days >= 3649


def test_cert_manager_makes_it_instead() -> None:
    rendered = render_scenario("injector")
    assert rendered.of_kind("Secret") == []
    assert "caBundle" not in webhook_of(rendered)["clientConfig"]
    configuration = rendered.one("MutatingWebhookConfiguration")["metadata"]
    name = configuration["annotations"]["cert-manager.io/inject-ca-from"]
    certificate = rendered.one("Certificate", name.partition("/")[2])["spec"]
    (volume,) = [
        one
        for one in rendered.one("Deployment")["spec"]["template"]["spec"]["volumes"]
        if "secret" in one
    ]
    assert certificate["secretName"] == volume["secret"]["secretName"]


def test_numbers_of_users_may_be_the_platforms() -> None:
    """OpenShift refuses a number out of the namespace's range, and takes a pod without one."""
    sidecar = json.loads(sidecar_text(render_scenario("injector")))["initContainers"][0]
    deployment = render_scenario("injector").one("Deployment")["spec"]["template"]["spec"]
    for context in (sidecar["securityContext"], deployment["containers"][0]["securityContext"]):
        assert "runAsUser" not in context and "runAsGroup" not in context
        assert context["runAsNonRoot"] is True
    assert "fsGroup" not in deployment["securityContext"]


def test_registry_and_pull_secrets_reach_every_pod() -> None:
    rendered = render_scenario("injector")
    sidecar = json.loads(sidecar_text(rendered))
    assert sidecar["imagePullSecrets"] == [{"name": "registry"}]
    assert sidecar["initContainers"][0]["image"] == "registry.example/forebay:0.1.0"
    for pod in (
        rendered.one("Pod")["spec"],
        rendered.one("Deployment")["spec"]["template"]["spec"],
    ):
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["containers"][0]["image"] == "registry.example/forebay:0.1.0"
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] == rendered.one("ServiceAccount")["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"broker": {"enabled": True}}, "broker.enabled must be false"),
        ({"accessLogClaim": {"size": "9Gi"}}, "cannot give a StatefulSet claims"),
        ({"certManager": {"enabled": True}}, "issuerRef.name must name"),
        (
            {"certManager": {"enabled": True, "issuerRef": {"name": "a"}}},
            "dnsNames must list",
        ),
        (
            {
                "metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}},
            },
            "scrape every Forebay twice",
        ),
    ],
)
def test_refuses(values: Object, says: str) -> None:
    with pytest.raises(helm_python.HelmError) as refusal:
        render({**VALUES, **values})
    assert says in str(refusal.value)
