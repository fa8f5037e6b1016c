"""Loading: from a YAML file, the environment and flags to a valid Config, or to all their problems
at once.

Owns precedence (flag over environment over file over default), the source of each value, and the
wording of refusals. Must not know keys by name, except cache.size, whose default depends on the
machine, and workers, which may be `auto`. Invariants:
* an unknown key is refused, with the most similar known key.
* no refusal repeats the value of an unknown key, which may be a misplaced secret.
* a null value, or an empty section, counts as unset.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from proxy.config.check import ConfigFindings, check
from proxy.config.keys import (
    PREFIX,
    KeyPath,
    environment_name,
    find_key,
    find_variable,
    is_service_link,
    nearest_key,
    nearest_variable,
    path_text,
)
from proxy.config.memory import (
    Memory,
    MemoryPlan,
    find_filesystem_bytes,
    find_memory,
    plan_cache_size,
)
from proxy.config.model import MOST_WORKERS, Cache, Config
from proxy.config.processors import Processors, WorkersPlan, find_processors, plan_workers
from proxy.config.units import AUTO, format_duration, format_size
from proxy.config.yaml_file import ConfigError, format_scalar, read_yaml

CACHE_SIZE: KeyPath = ("cache", "size")
WORKERS: KeyPath = ("workers",)
_LONGEST_ECHO = 80


class Setting(NamedTuple):
    """A value from outside the file. `source`: the variable or flag that it came from."""

    path: KeyPath
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration. `sources`: the origin of each value that is no default. `choices`:
    sentences about derived values. `warnings`: sentences about unwise values.
    """

    config: Config
    sources: Mapping[KeyPath, str]
    choices: tuple[str, ...]
    warnings: tuple[str, ...]


def load(
    path: Path | None,
    environ: Mapping[str, str],
    flags: Iterable[Setting] = (),
    memory: Memory | None = None,
    processors: Processors | None = None,
    *,
    checks: bool = True,
) -> Loaded:
    """Read, merge, validate and check the configuration. `path` None: no file. `memory` and `processors` None: those
    of this machine; tests pass others. `checks` False: for a command beside Forebay, whose
    machine may be another; rules over several keys and the machine (config/check.py) are left out.
    Raises ConfigError with all problems found.
    """
    tree, sources = read_yaml(path) if path else ({}, {})
    settings, problems = scan_environment(environ)
    for setting in (*settings, *flags):
        problem = _put(tree, setting)
        problems += [problem] if problem else []
        sources[setting.path] = setting.source
    tree = cast("dict[str, Any]", _without_nulls(tree))
    memory = memory or find_memory()
    plan = _plan_cache(tree, memory)
    if plan:
        sources[CACHE_SIZE] = f"derived: {plan.reason}"
    workers = _plan_workers(tree, processors)
    if workers:
        sources[WORKERS] = f"derived: {workers.reason}"
    try:
        config = Config.model_validate(tree, by_alias=True, by_name=False)
    except ValidationError as refusal:
        raise ConfigError([*problems, *explain(refusal, sources)]) from None
    findings = check(config, memory) if checks else ConfigFindings((), ())
    if problems or findings.problems:
        raise ConfigError([*problems, *findings.problems])
    choices = []
    if plan:
        choices.append(f"cache.size is {format_size(config.cache.size_bytes)}: {plan.reason}")
    if workers:
        choices.append(f"workers is {config.workers}: {workers.reason}")
    return Loaded(config, sources, tuple(choices), findings.warnings)


def scan_environment(environ: Mapping[str, str]) -> tuple[list[Setting], list[str]]:
    """The settings among environment variables, in the order of their paths, and a problem for each
    unknown variable with PREFIX.
    """
    settings, problems = [], []
    for name in sorted(environ):
        path = find_variable(name)
        if path is not None:
            settings.append(Setting(path, environ[name], name))
        elif name.startswith(PREFIX) and not is_service_link(name):
            problems.append(
                f"{name}: unknown environment variable" + _suggest(nearest_variable(name))
            )
    return sorted(settings, key=lambda setting: setting.path), problems


def describe(loaded: Loaded) -> str:
    """The configuration in force as YAML, each value with its source as a comment."""
    lines: list[tuple[str, str]] = []
    _describe(loaded.config.model_dump(mode="json"), (), loaded.sources, lines)
    width = max(len(text) for text, _ in lines)
    return "".join(
        f"{text:<{width}}  # {source}\n" if source else f"{text}\n" for text, source in lines
    )


def _describe(
    node: Mapping[str, Any],
    path: KeyPath,
    sources: Mapping[KeyPath, str],
    lines: list[tuple[str, str]],
) -> None:
    indent = "  " * len(path)
    for key, value in node.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            lines.append((f"{indent}{key}:", ""))
            _describe(value, here, sources, lines)
        elif isinstance(value, list) and not value:
            lines.append((f"{indent}{key}: []", "default"))
        elif isinstance(value, list):
            lines.append((f"{indent}{key}:", ""))
            for index, item in enumerate(value):
                start = len(lines)
                _describe(item, (*here, index), sources, lines)
                lines[start] = (f"{indent}  - {lines[start][0].strip()}", lines[start][1])
        else:
            lines.append((f"{indent}{key}: {format_scalar(value)}", sources.get(here, "default")))


def _put(tree: dict[str, Any], setting: Setting) -> str | None:
    """Set a value in the tree. Returns a problem if its list index leaves a gap, else None.
    Validation finds all other problems.
    """
    node: Any = tree
    for part, following in zip(setting.path, setting.path[1:], strict=False):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(part, int):
            if part > len(node):
                return f"{setting.source}: there is no {path_text((setting.path[0], len(node)))}; count from 0"
            node.extend([empty] if part == len(node) else [])
        elif node.get(part) is None:
            node[part] = empty
        node = node[part]
        if type(node) is not type(empty):
            return None
    key = find_key(setting.path)
    unset = setting.value == "" and key is not None and key.field.default is None
    node[setting.path[-1]] = None if unset else setting.value
    return None


def _without_nulls(node: object) -> object:
    if isinstance(node, dict):
        return {key: _without_nulls(value) for key, value in node.items() if value is not None}
    if isinstance(node, list):
        return [_without_nulls(value) for value in node]
    return node


def _plan_cache(tree: dict[str, Any], memory: Memory) -> MemoryPlan | None:
    """Set cache.size in the tree if it is unset. Returns the plan, or None if the size is set or
    `cache` is no section.
    """
    cache = tree.setdefault("cache", {})
    if not isinstance(cache, dict) or "size" in cache:
        return None
    directory = cache.get("directory", Cache().directory)
    directory = directory if isinstance(directory, str) else ""
    plan = plan_cache_size(memory, directory, find_filesystem_bytes(directory))
    cache["size"] = plan.size_bytes
    return plan


def _plan_workers(tree: dict[str, Any], processors: Processors | None) -> WorkersPlan | None:
    """Put a number in place of `workers: auto`. Returns the plan, or None if there is no `auto`."""
    if tree.get("workers") != AUTO:
        return None
    plan = plan_workers(processors or find_processors(), MOST_WORKERS)
    tree["workers"] = plan.count
    return plan


def explain(refusal: ValidationError, sources: Mapping[KeyPath, str]) -> list[str]:
    """A sentence for each error, in the order of the keys, with the source of the value. None is
    pydantic's own: those speak of inputs and parsing.
    """
    problems = []
    for error in refusal.errors(include_url=False):
        path = tuple(error["loc"])
        if error["type"] == "too_short" and error["input"]:
            continue  # pydantic counts only the valid listeners
        source = sources.get(path)
        problems.append(
            f"{path_text(path)}: {_explain_one(error, path)}" + (f" ({source})" if source else "")
        )
    return problems


def _explain_one(error: Mapping[str, Any], path: KeyPath) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("extra_forbidden", "invalid_key"):
        return "unknown key" + _suggest(nearest_key(path))
    if path == ("listeners",) and kind in ("missing", "too_short"):
        return "name at least one listener, with `listen` and `upstream`; or give --listen and --upstream"
    if kind == "missing":
        return f"is missing; set it, or {environment_name(path)}"
    if kind in ("greater_than_equal", "less_than_equal"):
        edge, bound = (
            ("least", context["ge"]) if kind == "greater_than_equal" else ("most", context["le"])
        )
        shown = _in_unit(error["input"], path)
        echo = f", is {shown}" if len(shown) <= _LONGEST_ECHO else ""
        return f"must be at {edge} {_in_unit(bound, path)}{echo}"
    echo = _echo(error["input"])
    if kind == "value_error":
        return f"{echo} {context['error']}".strip()
    sentence: str = {
        "model_type": "must be a section with keys below it",
        "tuple_type": "must be a list; begin each item with a dash",
        "string_type": "must be text; put it in quotes",
        "string_unicode": "must be UTF-8 text",
        "float_parsing": "must be a number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "bool_parsing": "must be true or false",
        "bool_type": "must be true or false",
        "int_parsing": "must be a whole number",
        "int_parsing_size": "must be a whole number of fewer digits",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "string_too_short": "must not be empty; remove it to unset it",
        "string_too_long": f"must have at most {context.get('max_length')} characters",
        "too_long": f"must have at most {context.get('max_length')} items",
        "string_pattern_mismatch": "must be 1 to 63 letters, digits, dots, dashes and underscores",
        "literal_error": f"must be {context.get('expected')}",
    }.get(kind, "is not a value of this key")
    return f"{sentence}, is {echo}" if echo else sentence


def _echo(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return repr(text) if isinstance(value, str | int | float) and len(text) <= _LONGEST_ECHO else ""


def _in_unit(value: Any, path: KeyPath) -> str:
    key = find_key(path)
    if key and key.attribute.endswith("_bytes"):
        return format_size(int(value))
    if key and key.attribute.endswith("_s"):
        return format_duration(float(value))
    return str(value)


def _suggest(name: str | None) -> str:
    return (
        f"; did you mean {name}?" if name else "; remove it (docs/configuration.md lists all keys)"
    )
