"""The shapes of the Prometheus operator's and cert-manager's resources that the chart uses, as JSON Schema.

Owns what kubernetes-validate has no schema for. Written from the API references of monitoring.coreos.com/v1 and
cert-manager.io/v1, limited to the fields that the chart sets: one that is not here is refused, so a typing error is
found.
"""

from typing import Any

import jsonschema  # type: ignore[import-untyped]

from tests.helm.chart import Object

DURATION = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?)$",
}
TEXT = {"type": "string", "minLength": 1}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}


def _exactly(**properties: Any) -> Object:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": [name for name, schema in properties.items() if not schema.get("x-optional")],
    }


def _optional(schema: Object) -> Object:
    return {**schema, "x-optional": True}


RELABELING = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "action": {
            "enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod"]
        },
        "regex": {"type": "string"},
        "replacement": {"type": "string"},
        "separator": {"type": "string"},
        "sourceLabels": {"type": "array", "items": {"type": "string"}},
        "targetLabel": {"type": "string"},
    },
}
RELABELINGS = _optional({"type": "array", "items": RELABELING, "minItems": 1})

ENDPOINT = _exactly(
    port={"type": "string", "maxLength": 15},
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scrapeTimeout=DURATION,
    relabelings=RELABELINGS,
    metricRelabelings=RELABELINGS,
    scheme={"enum": ["http", "https"]},
    tlsConfig=_optional(
        _exactly(serverName=TEXT, ca=_exactly(secret=_exactly(name=TEXT, key=TEXT)))
    ),
    authorization=_optional(_exactly(credentials=_exactly(name=TEXT, key=TEXT))),
)
SELECTED = {
    "selector": _exactly(matchLabels={**STRINGS, "minProperties": 1}),
    "namespaceSelector": _exactly(matchNames={"type": "array", "items": TEXT, "minItems": 1}),
}
SPECS: dict[str, Object] = {
    "ServiceMonitor": _exactly(
        **SELECTED, endpoints={"type": "array", "minItems": 1, "items": ENDPOINT}
    ),
    "PodMonitor": _exactly(
        **SELECTED, podMetricsEndpoints={"type": "array", "minItems": 1, "items": ENDPOINT}
    ),
    "Issuer": _exactly(selfSigned=_exactly()),
    "Certificate": _exactly(
        secretName=TEXT,
        issuerRef=_exactly(kind={"enum": ["Issuer", "ClusterIssuer"]}, name=TEXT),
        dnsNames={"type": "array", "items": TEXT, "minItems": 1},
        duration=_optional(DURATION),
        renewBefore=_optional(DURATION),
        privateKey=_optional(_exactly(rotationPolicy={"const": "Always"})),
    ),
    "PrometheusRule": _exactly(
        groups={
            "type": "array",
            "minItems": 1,
            "items": _exactly(
                name={"type": "string", "minLength": 1},
                rules={
                    "type": "array",
                    "minItems": 1,
                    "items": _exactly(
                        **{
                            "alert": {"type": "string", "pattern": "^[A-Z][A-Za-z]+$"},
                            "expr": {"type": "string", "minLength": 1},
                            "for": _optional(DURATION),
                            "labels": STRINGS,
                            "annotations": STRINGS,
                        }
                    ),
                },
            ),
        }
    ),
}
CRD_KINDS = frozenset(SPECS)
CERTIFICATES = ("Certificate", "Issuer")


def check_crd(item: Object) -> None:
    """Raises jsonschema.ValidationError where the object is not of the operator's shape."""
    group = "cert-manager.io" if item["kind"] in CERTIFICATES else "monitoring.coreos.com"
    shape = {"apiVersion": {"const": f"{group}/v1"}, "kind": {"const": item["kind"]}}
    metadata = {"type": "object", "required": ["name", "namespace", "labels"]}
    jsonschema.validate(item, _exactly(**shape, metadata=metadata, spec=SPECS[item["kind"]]))
