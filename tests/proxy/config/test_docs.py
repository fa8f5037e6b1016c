"""docs/configuration.md agrees with the models."""

from pathlib import Path

import pytest

from proxy.config.docs import PAGE, build_page, main
from proxy.config.keys import KEYS, environment_name

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
