"""The part of values.schema.json that stands for `config`: read off proxy/config/model.py, so that it cannot drift.

Owns how a type of the configuration is put in JSON Schema. Knows no bounds: what is well-formed but out of
them is left to `forebay config check`. `python -m tests.helm.config_schema` writes it into the chart;
test_schema.py tells when that is due.
"""

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MinLen
from pydantic import BaseModel

from proxy.config.model import Config
from proxy.config.section import UNIT_SUFFIXES, key_of
from proxy.config.units import Address, is_or_auto

SCHEMA_FILE = Path(__file__).parents[2] / "helm" / "forebay" / "values.schema.json"
LINE_LENGTH = 110
PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", Address: "string"}


def build_config_schema(model: type[BaseModel] = Config) -> dict[str, Any]:
    """JSON Schema of a section: every key of it, no other; only in lists are some required."""
    properties = {}
    for attribute, field in model.model_fields.items():
        if attribute.endswith(UNIT_SUFFIXES) or is_or_auto(field.metadata):
            schema: dict[str, Any] = {"type": ["string", "integer"]}
        else:
            schema = _schema_of(field.annotation)
            least = [item.min_length for item in field.metadata if isinstance(item, MinLen)]
            if least and schema["type"] == "array":
                schema = {"type": "array", "minItems": least[0], **schema}
        properties[key_of(attribute)] = schema
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema_of(annotation: Any) -> dict[str, Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _schema_of(arguments[0])
    if origin in (Union, UnionType):
        options = [_schema_of(argument) for argument in arguments if argument is not NoneType]
        assert len(options) == 1, (
            f"a choice between types has no place in the configuration: {annotation}"
        )
        return options[0] | {"type": [options[0]["type"], "null"]}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple and arguments[0] is str:
        return {"type": "string"}  # separated by commas (config/networks.py)
    if origin is tuple:
        item = build_config_schema(arguments[0])
        required = [
            key_of(name) for name, field in arguments[0].model_fields.items() if field.is_required()
        ]
        return {"type": "array", "items": item | {"required": required}}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return build_config_schema(annotation)
    return {"type": PLAIN[annotation]}


def format_json(value: Any, indent: int = 0, used: int = 0) -> str:
    """JSON that a person reads: what fits stands on one line; `used` characters stand before it there."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + used + len(line) < LINE_LENGTH or not isinstance(value, dict | list):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts = []
        for key, item in value.items():
            head = f"{json.dumps(key, ensure_ascii=False)}: "
            parts.append(inner + head + format_json(item, indent + 2, len(head)))
        brackets = "{}"
    else:
        parts = [inner + format_json(item, indent + 2) for item in value]
        brackets = "[]"
    return brackets[0] + "\n" + ",\n".join(parts) + "\n" + " " * indent + brackets[1]


def build_values_schema() -> str:
    """The text of values.schema.json: as it is, with `config` as proxy/config/model.py has it now."""
    schema = json.loads(SCHEMA_FILE.read_text())
    schema["properties"]["config"] = build_config_schema() | {
        "required": ["listeners"],
        "description": "forebay.yaml; docs/configuration.md tells what each key means.",
    }
    return format_json(schema) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(build_values_schema())
