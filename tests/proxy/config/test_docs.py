"""docs/configuration.md agrees with the models."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockcache.cache import BlockCache
from blockcache.sections import plan_sections
from proxy.config.docs import PAGE, build_page, main
from proxy.config.keys import KEYS, environment_name
from proxy.config.model import Config
from proxy.config.section import Section, key_of
from proxy.config.units import GIB, KIB, MIB

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_tree_is_current() -> None:
    assert main(["--check", "--page", str(ROOT / PAGE)]) == 0


def test_every_key_has_one_row_with_its_variable() -> None:
    rows = [line for line in build_page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(KEYS)
    for key, row in zip(KEYS, rows, strict=True):
        assert row.startswith(
            f"| `{key.pattern[-1]}`<br><sub>`{environment_name(key.pattern)}`</sub> |"
        )
        assert row.count("|") == 6


def test_rows_show_defaults_and_limits_with_units() -> None:
    page = build_page()
    assert "| `5ms` | 0s to 100ms |" in page
    assert "| `100MiB` | 64KiB to" in page
    assert "| `json` | `json`, `text` |" in page
    assert "| unset | 16MiB to 4TiB |" in page


def _values_of(section: Section, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Each key's environment variable and value."""
    for attribute in type(section).model_fields:
        value = getattr(section, attribute)
        path = (*prefix, key_of(attribute))
        if isinstance(value, Section):
            yield from _values_of(value, path)
        else:
            yield environment_name(path), value


def test_the_default_of_a_key_is_in_force_where_it_is_unset() -> None:
    """Also of a section whose keys have other defaults than those of its like."""
    listener = {"listen": "a:1", "upstream": "b:2"}
    config = Config.model_validate({"listeners": [listener], "cache": {"size": "16MiB"}})
    in_force = dict(_values_of(config))
    unset = [("cache", "size"), ("admin", "tls")]
    keys = [key for key in KEYS if "[]" not in key.pattern and key.pattern[:2] not in unset]
    told = {environment_name(key.pattern): key.field.default for key in keys}
    assert told == {name: in_force[name] for name in told}
    assert told["FOREBAY_ISOLATION_CONTROL_SLOTS_FLOOR"] == 1000


def test_the_page_tells_how_many_partitions_a_cache_holds() -> None:
    """The table of partitions is a share of the arena."""
    (told,) = [line for line in build_page().splitlines() if line.startswith("| `size`")]
    found = re.search(r"One partition is cached for each (\d+) KiB of it, (\d+) at most", told)
    assert found is not None
    share_bytes, most = int(found[1]) * KIB, int(found[2])
    cache = BlockCache(16 * MIB)
    assert cache.statistics().partitions_max == 16 * MIB // share_bytes
    cache.close()
    for size_bytes in (16 * MIB, 64 * MIB, most * share_bytes, most * share_bytes * 2, 4096 * GIB):
        assert plan_sections(size_bytes)["partitions_max"] == min(size_bytes // share_bytes, most)


def test_stale_or_absent_page_is_reported_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "configuration.md"
    assert main(["--check", "--page", str(page)]) == 1
    assert main(["--page", str(page)]) == 0
    assert main(["--check", "--page", str(page)]) == 0
    page.write_text(page.read_text() + "x")
    assert main(["--check", "--page", str(page)]) == 1
    assert "run `python -m proxy.config.docs`" in capsys.readouterr().err
