"""Keys of the configuration: their paths, environment variables, and suggestions for misspelled
ones.

Owns the naming rules; the keys come from the models in config/model.py. Must not know values.
Invariants:
* every key that holds a value has exactly one environment variable, and no two keys share one.
* a list's index has the same place in the variable as in the path.
* variables that Kubernetes sets for a Service named forebay are not Forebay's.
"""

import difflib
import re
from collections.abc import Iterator
from typing import NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from proxy.config.model import Config
from proxy.config.section import Section, key_of

EVERY = "[]"  # replaces a list's index in a pattern
PREFIX = "FOREBAY_"
KeyPath = tuple[str | int, ...]
_SERVICE_LINK = re.compile(
    r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)$"
)


class SettingKey(NamedTuple):
    """A key that holds a value. `pattern` is the path with EVERY for indexes. `attribute` is the
    name in Python. `section` is the model that declares the key.
    """

    pattern: tuple[str, ...]
    attribute: str
    field: FieldInfo
    section: type[Section]


def path_text(path: KeyPath) -> str:
    """`("listeners", 0, "upstream")` is `listeners[0].upstream`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else part if part == EVERY else f".{part}"
    return text.removeprefix(".")


def section_of(annotation: object) -> tuple[type[Section] | None, bool]:
    """The section that a field's type holds, also within `| None` and tuples, and whether the field
    is a list. (None, False) if it holds a plain value.
    """
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    for argument in get_args(annotation):
        section, _ = section_of(argument)
        if section is not None:
            return section, get_origin(annotation) is tuple
    return None, False


def iterate_keys(section: type[Section], prefix: tuple[str, ...] = ()) -> Iterator[SettingKey]:
    """All keys of a section and of the sections in it, in the order of declaration. `prefix`: the
    section's path.
    """
    for attribute, field in section.model_fields.items():
        pattern = (*prefix, key_of(attribute))
        inner, is_list = section_of(field.annotation)
        if inner is None:
            yield SettingKey(pattern, attribute, field, section)
        else:
            yield from iterate_keys(inner, (*pattern, EVERY) if is_list else pattern)


def environment_name(path: KeyPath) -> str:
    """`cache.size` is `FOREBAY_CACHE_SIZE`, `listeners[0].upstream` is
    `FOREBAY_LISTENERS_0_UPSTREAM`.
    """
    parts = ("0" if part == EVERY else str(part) for part in path)
    return PREFIX + "_".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part).upper() for part in parts)


KEYS: tuple[SettingKey, ...] = tuple(iterate_keys(Config))
_BY_PATTERN = {key.pattern: key for key in KEYS}
_BY_VARIABLE = {environment_name(key.pattern): key for key in KEYS}


def find_key(path: KeyPath) -> SettingKey | None:
    """The key at a path; None if there is no such key, or the path names a section."""
    return _BY_PATTERN.get(tuple(EVERY if isinstance(part, int) else part for part in path))


def find_variable(name: str) -> KeyPath | None:
    """The path that an environment variable sets; None if it belongs to no key."""
    indexes = re.findall(r"(?<=_)\d+(?=_)", name)
    key = _BY_VARIABLE.get(re.sub(r"(?<=_)\d+(?=_)", "0", name))
    if (
        key is None
        or len(indexes) != key.pattern.count(EVERY)
        or any(len(index) > 4 for index in indexes)
    ):
        return None
    left = iter(indexes)
    return tuple(int(next(left)) if part == EVERY else part for part in key.pattern)


def is_service_link(name: str) -> bool:
    """Whether Kubernetes sets this variable by itself, for a Service whose name begins with
    forebay.
    """
    return find_variable(name) is None and _SERVICE_LINK.search(name) is not None


def nearest_variable(name: str) -> str | None:
    """The known variable most similar to an unknown `name`, with the index of `name`; None if none
    is similar.
    """
    match = difflib.get_close_matches(
        re.sub(r"(?<=_)\d+(?=_)", "0", name), _BY_VARIABLE, n=1, cutoff=0.75
    )
    index = re.search(r"(?<=_)\d+(?=_)", name)
    return re.sub(r"(?<=_)0(?=_)", index[0] if index else "0", match[0]) if match else None


def nearest_key(path: KeyPath) -> str | None:
    """The known key most similar to an unknown one: a sibling's name, else the path of a key
    elsewhere. None if none is similar.
    """
    section: type[Section] | None = Config
    for part in path[:-1]:
        fields = (
            {key_of(name): field for name, field in section.model_fields.items()} if section else {}
        )
        if isinstance(part, str):
            section = section_of(fields[part].annotation)[0] if part in fields else None
    wrong = _normalized(str(path[-1]))
    siblings = (
        {_normalized(key_of(name)): key_of(name) for name in section.model_fields}
        if section
        else {}
    )
    match = difflib.get_close_matches(wrong, siblings, n=1, cutoff=0.6)
    if match:
        return siblings[match[0]]
    elsewhere = {_normalized(key.pattern[-1]): path_text(key.pattern) for key in reversed(KEYS)}
    match = difflib.get_close_matches(wrong, elsewhere, n=1, cutoff=0.75)
    return elsewhere[match[0]] if match else None


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
