"""YAML: a file as plain values, with the line of each value; and a value as text for a file.

Owns reading, its limits (bytes, depth, nodes) and quoting. Must not know a key. Invariants:
* a key that occurs twice in a mapping is refused, not overwritten.
* no tag builds an object.
* booleans are `true` and `false` alone, as in YAML 1.2: `off` is a word.
* the limits refuse an alias that contains itself or multiplies without end.
PyYAML is imported when a file is read: a worker reads none until a reload.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import yaml

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_NODES = 20_000
_MERGE = "tag:yaml.org,2002:merge"
_BOOLEAN = "tag:yaml.org,2002:bool"
_TRUE_OR_FALSE = re.compile(r"true|True|TRUE|false|False|FALSE")
_PLAIN = re.compile(r"/?[A-Za-z][A-Za-z0-9/]*|[0-9]+[A-Za-z]+")

YamlPath = tuple[str | int, ...]


class ConfigError(Exception):
    """The configuration is refused. `problems`: a sentence for each, which says how to change it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[YamlPath, str]]:
    """The mapping in a file, and the place (`forebay.yaml:7`) of each value by its path. Raises
    ConfigError if the file cannot be read, exceeds a limit or is not valid.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([f"{path}: is larger than {MAX_FILE_BYTES} bytes"])
    return parse_yaml(data, path.name)


def parse_yaml(data: bytes, name: str) -> tuple[dict[str, Any], dict[YamlPath, str]]:
    """Like read_yaml, for the bytes of a file; `name` is the file's name in places. Raises
    ConfigError.
    """
    import yaml

    try:
        loader = _build_loader(data)
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError([f"{name}: must consist of keys and values, such as `listeners:`"])
        places: dict[YamlPath, str] = {}
        problems: list[str] = []
        for count, (path, key_node, is_repeated) in enumerate(_walk(node, ())):
            if len(path) > MAX_DEPTH or count >= MAX_NODES:
                raise ConfigError([f"{name}: is nested too deeply or too large"])
            place = f"{name}:{key_node.start_mark.line + 1}"
            if is_repeated:
                problems.append(
                    f"{path[-1]}: stands twice; remove one ({places[path]} and {place})"
                )
            places[path] = place
        if problems:
            raise ConfigError(problems)
        return loader.construct_document(node), places
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError([_explain(error, name)]) from None


def _build_loader(data: bytes) -> yaml.SafeLoader:
    """A loader of `data` to which `yes`, `no`, `on` and `off` are text."""
    import yaml

    class Loader(yaml.SafeLoader):
        """With resolvers of its own."""

    Loader.yaml_implicit_resolvers = {
        first: [one for one in resolvers if one[0] != _BOOLEAN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(_BOOLEAN, _TRUE_OR_FALSE, list("tTfF"))
    return Loader(data)


def format_scalar(value: object) -> str:
    """The text of a value on one line: quoted where a reader of YAML 1.1 or 1.2 would take it for
    anything but this text.
    """
    import yaml

    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower()
    text = str(value)
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    quoted: str = yaml.safe_dump(
        text, default_style='"', allow_unicode=True, width=float("inf")
    ).rstrip("\n")
    return quoted


def _walk(node: yaml.Node, path: YamlPath) -> Iterator[tuple[YamlPath, yaml.Node, bool]]:
    """The path of each value, the node of its key, and whether the key occurred in this mapping
    before. Stops below MAX_DEPTH.
    """
    import yaml

    if len(path) > MAX_DEPTH:
        return
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, index), item, False
            yield from _walk(item, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE or not isinstance(key_node, yaml.ScalarNode):
                continue
            here = (*path, key_node.value)
            yield here, key_node, here in seen
            seen.add(here)
            yield from _walk(value_node, here)


def _explain(error: Exception, name: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = f"{name}:{mark.line + 1}" if mark else name
    return f"{place}: is not valid YAML: {getattr(error, 'problem', None) or type(error).__name__}"
