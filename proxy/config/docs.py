"""Generator of docs/configuration.md from the models: `python -m proxy.config.docs` writes,
`--check` compares.

Owns the page's words and tables. Must not know single keys: all of them come from config/model.py,
so that the page cannot stay wrong. Invariants: the page depends on nothing but the code (no clock,
no machine); each key has one row.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from proxy.config.keys import EVERY, KEYS, SettingKey, environment_name, path_text, section_of
from proxy.config.live_keys import is_live
from proxy.config.model import Config
from proxy.config.section import Section
from proxy.config.units import AUTO, format_duration, format_size, is_or_auto

PAGE = Path("docs/configuration.md")
_HEAD = """\
<!-- Generated from proxy/config/model.py by `python -m proxy.config.docs`; do not edit. -->
# Configuration

Forebay reads one YAML file at start, and again at a reload: `forebay serve --config forebay.yaml`. The smallest one:

```yaml
listeners:
  - listen: 0.0.0.0:9092      # where clients connect; the broker's advertised.listeners name this address
    upstream: 127.0.0.1:19092 # the broker's own listener
```

* **Precedence:** a flag wins over an environment variable, that over the file, that over the default.
* **Environment:** every key has a variable, named below. A list's index is part of the name:
  `FOREBAY_LISTENERS_0_UPSTREAM` is the first listener's `upstream`, `FOREBAY_LISTENERS_1_UPSTREAM` the
  second's. An unknown variable that begins with `FOREBAY_` is refused like an unknown key; those that
  Kubernetes sets for a Service named `forebay` are left alone.
* **Sizes** are bytes, or numbers with a unit: `64KiB`, `512MiB`, `1.5GiB` (powers of 1024; also `512Mi`),
  `10MB` (powers of 1000). **Durations** always carry a unit: `250ms`, `1s`, `1h30m`.
* **Secrets** are never in the file: keys that end in `File` name the files that hold them.
* **Reload:** SIGHUP or `POST /reload` changes keys marked `live`; keys marked `restart` keep their value until the next
  start ([operations.md](operations.md#reload-the-configuration)).
* **Unset:** the key is absent or null, or its variable is empty and the key may be unset.
* Unknown keys, duplicate keys and values out of bounds are refused at start, all at once. `forebay config
  check forebay.yaml` reports them without starting, and prints the effective values and their sources.
"""
_FOOT = """
## Refused at start
Forebay also does not start when

* two listeners, or a listener and the admin server, share an address, or two listeners a name;
* an `upstream` is one of Forebay's own addresses;
* client certificates would be the identity and end at Forebay (`tls.clientAuth: required`, or
  `upstreamTls.certificateFile`), unless `useDelegationTokens` gives each client its own, or
  `allowSharedIdentity` is true; memory then serves no client of that listener;
* `useDelegationTokens` is set without `upstreamCredentials` of any listener, beside `allowSharedIdentity`, or
  where no client needs it;
* keys that belong together are not set together (`certificateFile` and `keyFile`, `clientAuth` and
  `clientCaFile`, a SASL mechanism and its files), or keys of `upstreamTls` are set and `enabled` is not;
* a listener with `passThrough` has keys of TLS, SASL or the catch-up connection, or all listeners have
  `passThrough`;
* a file cannot be read, or `cache.directory` or `accessLog.directory` cannot be written;
* `cache.size` is more than the available memory (the container's limit, else the machine's), or more than
  the file system of `cache.directory` holds (in a container `/dev/shm` is often 64 MiB: mount a larger
  memory-backed volume);
* a limit of one connection is above that of the process, or `accessLog.keepSize` below
  `accessLog.rotateSize`.
"""


def build_page() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for prefix, keys in groupby(KEYS, key=lambda key: key.pattern[:-1]):
        section, title = _find_section(prefix)
        heading = f"`{path_text(prefix)}`" if prefix else "Top level"
        parts.append(f"\n## {heading}\n{title}\n\n")
        parts.append(
            "| key | default | bounds | reload | meaning |\n| --- | --- | --- | --- | --- |\n"
        )
        parts.extend(_row(key) for key in keys if key.section is section)
    return "".join(parts) + _FOOT


def _find_section(prefix: tuple[str, ...]) -> tuple[type[Section], str]:
    """The section at a path, and its title: the docstring of its class."""
    section: type[Section] = Config
    title = "" if prefix else "Keys without a section."
    for part in prefix:
        if part != EVERY:
            field = next(field for field in section.model_fields.values() if field.alias == part)
            inner, _ = section_of(field.annotation)
            section, title = inner or section, (inner.__doc__ or "").strip() if inner else ""
    return section, title


def _row(key: SettingKey) -> str:
    name = f"`{key.pattern[-1]}`<br><sub>`{environment_name(key.pattern)}`</sub>"
    meaning = (key.field.description or "").replace("|", "\\|")
    reload = "live" if is_live(key) else "restart"
    return f"| {name} | {_default(key)} | {_bounds(key)} | {reload} | {meaning} |\n"


def _default(key: SettingKey) -> str:
    default = key.field.default
    if key.field.is_required():
        return "required"
    if default is None or key.pattern == ("cache", "size"):
        return "unset"
    return f"`{_shown(key, default)}`" if default != "" else "empty"


def _bounds(key: SettingKey) -> str:
    choices = _choices(key.field)
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if key.field.annotation is bool:
        return "`true`, `false`"
    bounds = {type(item).__name__: item for item in key.field.metadata}
    least, most = (getattr(bounds.get(name), name.lower(), None) for name in ("Ge", "Le"))
    bounded = f"{_shown(key, least)} to {_shown(key, most)}" if least is not None else ""
    return f"`{AUTO}`, {bounded}" if is_or_auto(key.field.metadata) else bounded


def _choices(field: FieldInfo) -> tuple[object, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def _shown(key: SettingKey, value: object) -> str:
    if key.attribute.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if key.attribute.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stale(page: Path) -> Iterator[str]:
    found = page.read_text(encoding="utf-8") if page.exists() else ""
    if found != build_page():
        yield f"{page} is not what proxy/config/model.py says; run `python -m proxy.config.docs`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it with `--check`. Returns the exit code: 0, or 1 if the compared
    page is stale.
    """
    parser = argparse.ArgumentParser(
        prog="python -m proxy.config.docs", description="Write docs/configuration.md."
    )
    parser.add_argument(
        "--check", action="store_true", help="only compare; exit with 1 when the page is stale"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is (%(default)s)")
    options = parser.parse_args(arguments)
    if not options.check:
        options.page.write_text(build_page(), encoding="utf-8")
        return 0
    complaints = list(_stale(options.page))
    print(
        "\n".join(complaints) or f"{options.page} is current",
        file=sys.stderr if complaints else sys.stdout,
    )
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
