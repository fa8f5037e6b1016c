"""The pages of installing: what they give to Helm is rendered, and fits what they tell the brokers' owner."""

import re

import pytest
import yaml

from tests.helm.chart import HELM, Object, Rendered, render, render_example
from tests.helm.test_render import NEWEST, check_object

PAGES = HELM.parent / "docs" / "kubernetes"
BLOCK = re.compile(r"```yaml\n(# helm install (\S+) helm/forebay.*?)```", re.DOTALL)
FOUND = {
    f"{page.stem} {values.get('mode', 'injector')}": (page, name, values)
    for page in [PAGES.parent / "install-kubernetes.md", *sorted(PAGES.glob("*.md"))]
    for text, name in BLOCK.findall(page.read_text())
    for values in [yaml.safe_load(text)]
}


def render_page(which: str) -> tuple[str, Rendered, Object]:
    """The page's text, what its values render to, and the values."""
    page, name, values = FOUND[which]
    assert values["fullnameOverride"] == name
    return page.read_text(), render(values), values


def test_each_page_has_its_ways() -> None:
    assert set(FOUND) == {
        "bitnami gateway-per-broker",
        "bitnami injector",
        "confluent gateway-per-broker",
        "install-kubernetes injector",
        "strimzi gateway-per-broker",
        "strimzi injector",
    }


@pytest.mark.parametrize("which", FOUND)
def test_values_render_to_valid_objects(which: str) -> None:
    _, rendered, _ = render_page(which)
    for item in rendered.objects:
        check_object(item, NEWEST)


@pytest.mark.parametrize("which", [name for name in FOUND if "gateway" in name])
def test_brokers_are_told_names_that_the_gateways_have(which: str) -> None:
    text, rendered, _ = render_page(which)
    stateful = rendered.one("StatefulSet")
    name, names = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
    assert f"{names}." in text.replace(BLOCK.search(text)[1], "")  # type: ignore[index]
    assert re.search(rf"{name}-(\{{nodeId\}}|\$\{{POD_ID\}}|$|0\.| )", text, re.MULTILINE)
    assert f"{name}-bootstrap." in text


@pytest.mark.parametrize("which", [name for name in FOUND if "injector" in name])
def test_the_label_is_the_one_that_the_injector_looks_for(which: str) -> None:
    text, rendered, _ = render_page(which)
    (webhook,) = rendered.one("MutatingWebhookConfiguration")["webhooks"]
    ((key, value),) = webhook["objectSelector"]["matchLabels"].items()
    assert f"{{{key}: {value}}}" in text or f"`{key}: {value}`" in text


def test_values_of_a_chart_of_ones_own_render() -> None:
    """The page's values in helm/example, also with what it says of the Prometheus operator."""
    text = (PAGES.parent / "install-kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(# values.yaml.*?)```", text, re.DOTALL)
    monitored = re.sub(r"  # (metrics|alerts):", r"  \1:", block)
    assert monitored != block
    for values in (block, monitored):
        rendered = render_example(yaml.safe_load(values))
        for item in rendered.objects:
            check_object(item, NEWEST)
        has_monitor = bool(rendered.of_kind("ServiceMonitor"))
        assert has_monitor == (values is monitored)
