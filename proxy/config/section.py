"""Base of all configuration sections: frozen, no unknown keys, camelCase keys without units.

Owns the naming of keys. Must not know a key or a default.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

UNIT_SUFFIXES = ("_bytes", "_s")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Path = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


def key_of(attribute: str) -> str:
    """The YAML key of an attribute: camelCase, without the unit."""
    for suffix in UNIT_SUFFIXES:
        attribute = attribute.removesuffix(suffix)
    return to_camel(attribute)


class Section(BaseModel):
    """A part of the configuration. Python code uses attribute names, YAML the keys.

    Validators are built at the first validation, for a whole Config at once: a worker, which is
    given a valid one, builds none at its start.
    """

    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="forbid",
        alias_generator=key_of,
        validate_by_name=True,
        serialize_by_alias=True,
    )
